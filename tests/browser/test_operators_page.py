"""Operators and experiments in a real browser: stepped side by side, played by click and by key, reported."""

from __future__ import annotations

import re

import pytest
from chromium import PHONE, dashboard, free_port
from experiments import finish, start
from playwright.sync_api import expect
from stack import Stack

from mosaic_services.environments import build, recipe_for
from mosaic_services.home import StackHome

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

EXPERIMENT = """
name: from-the-page
environment: {id: CartPole-v1}
operators:
  random: {worker: random}
  passive: {worker: noop}
episodes: 30
"""


@pytest.fixture(scope="module")
def stack(tmp_path_factory, workers):
    """A stack whose host has the arena."""
    home = StackHome.find(tmp_path_factory.mktemp("build-home"))
    build(recipe_for("arena", home), "default", lambda _step, _percent: None)
    environ = {"MOSAIC_GATEWAY__PORT": str(free_port())}
    with Stack(tmp_path_factory.mktemp("operators") / "home", cpus=16, also=("gateway",), environ=environ) as running:
        yield running
    assert running.leftovers() == []


def open_session(board, environment, *rows):
    """Fill the form: one row per board, with an operator for each player."""
    board.open("/operators")
    board.page.locator("#session-env").fill(environment)
    for _ in rows[1:]:
        board.page.get_by_role("button", name="Add a board").click()
    for row, operators in zip(board.page.locator(".board-rows li").all(), rows, strict=True):
        for choice, operator in zip(row.locator("select").all(), operators, strict=True):
            choice.select_option(operator)
    board.page.locator("#open-session").click()
    board.page.wait_for_url("**/operators?session=*")
    expect(board.page.locator('[data-status="ready"]')).to_have_count(len(rows))


def end_session(board):
    board.page.get_by_role("button", name="End session").click()
    board.page.get_by_role("dialog").get_by_role("button", name="End session").click()
    expect(board.page.locator("#open-session")).to_be_visible()


def test_two_operators_are_stepped_side_by_side(board):
    open_session(board, "CartPole-v1", ["random"], ["noop"])
    columns = board.page.locator("[data-board]")
    expect(columns.nth(0)).to_have_attribute("data-board", "random")
    board.page.locator("#reset").click()
    expect(board.page.locator('[data-status="reset"]')).to_have_count(2)
    # One seed for both: they see the same world.
    seen = [columns.nth(each).locator(".seen").inner_text() for each in (0, 1)]
    assert seen[0] == seen[1] != "–"
    board.page.locator("#step").click()
    expect(board.page.locator('[data-step="1"]')).to_have_count(2)
    board.page.get_by_role("button", name="Step n").click()
    expect(columns.nth(0)).to_contain_text(re.compile("step 9|step 1[0-9]|Episode over"))
    expect(columns.nth(0)).to_contain_text("return")
    # Each has a picture of its own.
    drawn = "() => [...document.querySelectorAll('[data-board] canvas')].every((each) => each.dataset.frame)"
    board.wait(drawn)
    board.page.locator("#reset").click()
    board.page.locator("#play").click()
    expect(board.page.locator('[data-status="over"]')).to_have_count(2)
    expect(columns.nth(1)).to_contain_text("Episode over: terminated")
    end_session(board)


def test_person_plays_by_click_and_by_key(board):
    open_session(board, "tictactoe_v3", ["human", "random"], ["random", "random"])
    board.page.locator("#reset").click()
    mine = board.page.locator("[data-board]").nth(0)
    expect(mine).to_have_attribute("data-status", "waiting_for_human")
    expect(mine.locator(".cell.can")).to_have_count(9)
    mine.locator(".cell").nth(4).click()  # the middle
    expect(mine.locator(".cell").nth(4)).to_have_text("X")
    # The other has answered, and it is the person's turn again.
    expect(mine).to_have_attribute("data-step", "2")
    expect(mine).to_have_attribute("data-status", "waiting_for_human")
    free = mine.locator(".cell.can").count()
    assert free == 7
    move = mine.locator(".move").first
    key = move.locator("kbd").inner_text()
    board.page.keyboard.press(key)
    board.wait("() => [...document.querySelectorAll('[data-board]')][0].querySelectorAll('.owner-1').length === 2")
    # To the end, always the first legal move.
    for _ in range(4):
        board.wait(
            "() => ['waiting_for_human', 'over'].includes(document.querySelector('[data-board]').dataset.status)"
        )
        if mine.get_attribute("data-status") == "over":
            break
        step = int(mine.get_attribute("data-step"))
        mine.locator(".move").first.click()
        board.wait("(step) => Number(document.querySelector('[data-board]').dataset.step) > step", step)
    expect(mine).to_contain_text(re.compile("won by|a draw"))
    # The board beside it was not touched.
    expect(board.page.locator("[data-board]").nth(1)).to_have_attribute("data-step", "0")
    # A reload shows the same: the boards are read from the run's journal.
    board.page.reload()
    expect(mine).to_have_attribute("data-status", "over")
    end_session(board)


def test_operator_that_is_refused_greys_its_own_column_only(board):
    board.open("/operators")
    board.page.locator("#session-env").fill("CartPole-v1")
    board.page.get_by_role("button", name="Add a board").click()
    board.page.locator(".board-rows li").nth(0).locator("select").select_option("other")
    board.page.locator(".reference").fill('{"worker": "baseline", "behavior": "clever"}')
    board.page.locator("#open-session").click()
    expect(board.page.locator('[data-status="ready"]')).to_have_count(1)
    dead = board.page.locator(".column.dead")
    expect(dead).to_have_count(1)
    expect(dead.get_by_role("alert")).to_contain_text("clever")
    board.page.locator("#reset").click()
    expect(board.page.locator('[data-status="reset"]')).to_have_count(1)
    end_session(board)


def test_experiment_is_started_followed_and_reported(stack, board):
    board.page.get_by_role("link", name="Experiments", exact=True).click()
    board.page.locator("#experiment-text").fill("name: [")
    expect(board.page.get_by_role("alert")).to_contain_text("not YAML")
    board.page.locator("#experiment-text").fill("name: x\nenvironment: {id: CartPole-v1}\noperators: {}\n")
    expect(board.page.get_by_role("alert")).to_contain_text("operators")
    board.page.locator("#experiment-text").fill(EXPERIMENT)
    expect(board.page.locator("#plan")).to_contain_text("Plays 60 episodes")
    board.page.locator("#start-experiment").click()
    board.page.wait_for_url("**/experiment/from-the-page")
    expect(board.page.locator("#episodes")).to_have_text("60 of 60 episodes")
    expect(board.page.get_by_text("finished")).to_be_visible()
    rows = board.page.locator("#lineups tbody tr")
    expect(rows).to_have_count(2)
    expect(rows.nth(0)).to_contain_text("random")  # the better one first
    expect(board.page.get_by_label("Shards")).to_contain_text("testhost")
    board.page.locator("#write-report").click()
    report = board.page.frame_locator("iframe.report")
    expect(report.get_by_role("heading", name="from-the-page")).to_be_visible()
    expect(report.get_by_text("Interquartile mean").first).to_be_visible()
    assert (stack.home.experiments / "from-the-page" / "report" / "index.html").exists()
    board.open("/experiments")
    expect(board.page.locator('[data-experiment="from-the-page"]')).to_contain_text("60 of 60")


@pytest.fixture(scope="module")
def pages(stack, browser):
    """Addresses of each page in use: a session with a person to move, and a finished experiment."""
    with dashboard(browser, stack) as board:
        open_session(board, "connect_four_v3", ["human", "random"], ["random", "random"])
        board.page.locator("#reset").click()
        expect(board.page.locator('[data-status="waiting_for_human"]')).to_have_count(1)
        session = board.page.url.rpartition("=")[2]
    yield ("/operators", f"/operators?session={session}", "/experiments", "/experiment/from-the-page")
    with dashboard(browser, stack) as board:
        board.open(f"/operators?session={session}")
        end_session(board)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_no_accessibility_violation(browser, stack, pages, theme):
    with dashboard(browser, stack, theme=theme, axe=True) as board:
        for path in pages:
            board.open(path)
            board.page.wait_for_selector("main h1")
            board.page.wait_for_timeout(700)  # boards and tables
            assert board.axe() == [], path


def test_pages_fit_a_phone(browser, stack, pages):
    with dashboard(browser, stack, size=PHONE) as board:
        for path in pages:
            board.open(path)
            board.page.wait_for_selector("main h1")
            board.page.wait_for_timeout(700)
            assert board.width() <= PHONE["width"], path


def test_experiment_is_deleted_from_the_page(stack, board):
    start(stack, "short-lived", shards=1, environment={"id": "CartPole-v1"})
    finish(stack, "short-lived")
    board.open("/experiments")
    row = board.page.locator('[data-experiment="short-lived"]')
    row.get_by_role("button", name="Delete").click()
    dialogue = board.page.get_by_role("dialog")
    expect(dialogue).to_contain_text("mosaic experiments delete short-lived")
    dialogue.get_by_role("button", name="Delete for ever").click()
    expect(row).to_have_count(0)
    assert not (stack.home.experiments / "short-lived").exists()
