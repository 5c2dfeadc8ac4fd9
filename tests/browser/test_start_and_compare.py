"""Forms and comparisons in a real browser: a run is started from a form, and a sweep is folded by seed."""

from __future__ import annotations

import csv
import json
import re

import pytest
from chromium import PHONE, dashboard
from mosaic_cli import Cli
from playwright.sync_api import expect
from stack import wait_until

from mosaic_bus import CommandRefusedError

pytestmark = pytest.mark.slow

SWEEP = "lengths"
SEEDS = (1, 2, 3)


@pytest.fixture(scope="module")
def sweep(stack):
    """Two settings, three seeds each, as `mosaic sweep` would submit them."""
    runs = []
    for episodes in (10, 20):
        for seed in SEEDS:
            config = {"agent": "random", "env_id": "CartPole-v1", "episodes": episodes, "seed": seed}
            name = f"random-{episodes}-seed{seed}"
            small = {"cpus": 0.5, "memory_mb": 256}
            runs.append(stack.submit(worker="baseline", name=name, config=config, group=SWEEP, resources=small))
    for run in runs:
        assert stack.wait_final(run).state == "succeeded"
        stack.wait_stored(run)
    return runs


def test_run_is_started_from_a_form(stack, board):
    board.page.get_by_role("link", name="Start a run").first.click()
    board.page.locator("#form-worker").select_option("baseline")
    board.page.locator('[name="config.episodes"]').fill("100000")
    board.page.locator('[name="config.seed"]').fill("3")
    expect(board.page.locator("#verdict")).to_have_attribute("data-ok", "true")
    command = board.page.locator("pre[data-way=command]")
    expect(command).to_contain_text(
        "mosaic submit --worker baseline agent=random env_id=CartPole-v1 episodes=100000 seed=3"
    )
    board.page.get_by_role("button", name="YAML").click()
    expect(board.page.locator("pre[data-way=yaml]")).to_contain_text("  episodes: 100000")
    board.page.get_by_role("button", name="Python").click()
    expect(board.page.locator("pre[data-way=python]")).to_contain_text("mosaic.submit({")
    board.page.locator("#submit").click()
    board.page.wait_for_url("**/run/*")
    run = board.page.url.rpartition("/")[2]
    expect(board.page.locator('h1 + [data-state="running"]')).to_be_visible()
    spec = stack.show(run).spec
    assert (spec.worker, spec.config["episodes"], spec.config["seed"]) == ("baseline", 100_000, 3)
    # The copy of a run begins with its configuration.
    board.open(f"/start?from={run}")
    expect(board.page.locator('[name="config.episodes"]')).to_have_value("100000")
    stack.cancel(run)
    stack.wait_final(run)


def test_worker_that_is_chosen_while_another_is_drawn_begins_with_its_own_example(board):
    board.page.evaluate("""() => new MutationObserver((_, observer) => {
        if (!document.querySelector('[name^="config."]')) return;
        observer.disconnect();
        const choice = document.querySelector('#form-worker');
        window.drawnFirst = choice.value;
        choice.value = 'stress';
        choice.dispatchEvent(new Event('change', { bubbles: true }));
    }).observe(document, { childList: true, subtree: true })""")
    board.page.get_by_role("link", name="Start a run").first.click()
    expect(board.page.locator("#verdict")).to_have_attribute("data-ok", re.compile("true|false"))
    board.page.wait_for_timeout(1000)  # the check of what was drawn first may come first
    expect(board.page.locator("#form-worker")).to_have_value("stress")
    assert board.page.evaluate("() => window.drawnFirst") not in {"", "stress"}
    expect(board.page.locator("#verdict")).to_have_attribute("data-ok", "true")


def test_forms_of_real_workers_begin_with_their_whole_example(board):
    """Descriptions of the shape of XuanCe's, RLlib's and CleanRL's stand in for workers that take minutes to build."""
    text, maps = {"type": "string"}, {"type": "object", "additionalProperties": True}
    described = (
        ("xuance", "overrides", {"algorithm": "vdn", "overrides": {"start_training": 400, "gamma": 0.9}}),
        ("ray", "algo_params", {"algorithm": "vdn", "algo_params": {"start_training": 500}}),
        ("cleanrl", "extras.algo_params", {"algo": "vdn", "extras": {"algo_params": {"gamma": 0.5}, "mode": "x"}}),
    )
    for worker, room, example in described:
        description = {
            "worker": "baseline",
            "profile": "default",
            "status": "installed",
            "metadata": {"description": f"stands in for {worker}"},
            "capabilities": {"parameters_field": room},
            "config_schema": {
                "type": "object",
                "properties": {
                    next(iter(example)): text,
                    room.partition(".")[0]: maps
                    if "." not in room
                    else {"properties": {"algo_params": maps, "mode": text}},
                },
            },
            "example_config": example,
            "algorithms": [card("vdn", start_training="int", gamma="float"), card("qmix", gamma="float")],
            "environments": [],
        }
        board.page.route(
            "**/api/supervisor.*/describe", lambda route, _request, body=description: route.fulfill(json=body)
        )
        board.open("/start?worker=baseline")
        expect(board.page.get_by_text(f"stands in for {worker}")).to_be_visible()
        made = board.page.locator("pre[data-way=yaml]")
        board.page.get_by_role("button", name="YAML").click()
        for line in leaves(example):
            expect(made).to_contain_text(line)
        board.page.get_by_text("All hyperparameters of vdn").click()
        gamma = board.page.locator(f'[name="config.{room}.gamma"]')
        given = next(iter(each for each in leaves(example) if each.startswith("gamma")), ": ").partition(": ")[2]
        expect(gamma).to_have_value(given)
        # What the example says of one algorithm is not carried to another.
        board.page.locator(f'[name="config.{next(iter(example))}"]').select_option("qmix")
        expect(board.page.get_by_text("All hyperparameters of qmix")).to_be_visible()
        expect(made).not_to_contain_text("start_training")
        expect(made).not_to_contain_text("gamma")
        board.page.unroute("**/api/supervisor.*/describe")


def card(name, **parameters):
    """Describe an algorithm, with its hyperparameters by type."""
    fields = [{"name": each, "type": kind, "default": 1, "help": ""} for each, kind in parameters.items()]
    return {
        "name": name,
        "family": "",
        "actions": "",
        "runs": True,
        "profiles": ["default"],
        "needs": "",
        "source": "",
    } | {"parameters": fields}


def leaves(document):
    """Return the lines of a YAML file that hold values."""
    for key, value in document.items():
        if isinstance(value, dict):
            yield from leaves(value)
        else:
            yield f"{key}: {value}"


def test_script_and_resume_forms_submit_what_they_show(stack, board):
    run = stack.submit(name="trained", config={"events": 600, "checkpoint_every": 200})
    stack.wait_final(run)
    stack.wait_stored(run)
    script = write_script(stack)
    board.page.route("**/api/supervisor.*/describe", able)
    board.open(f"/start?resume={run}")
    board.page.get_by_label(re.compile("^step 400")).check()
    board.page.locator('[name="config.events"]').fill("7")
    expect(board.page.locator("pre[data-way=command]")).to_have_text("mosaic resume trained --steps 7 --from 400\n")
    assert submitted(stack, board, "Resume training").config == {
        "events": 7,
        "checkpoint_every": 200,
        "models": ["run:trained@400"],
    }

    board.open("/start?tab=script")
    board.page.locator("#form-worker").select_option("stress")
    choice = board.page.get_by_label(re.compile("two-phases.sh"))
    expect(board.page.get_by_label("Scripts")).to_contain_text("phases: this, that")
    choice.check()
    board.page.locator('[name="config.events"]').fill("7")
    assert submitted(stack, board, "Run script").config == {"models": [str(script)], "events": 7}


def able(route):
    """Let the stress worker say that it resumes and runs scripts; it does neither, and takes what the forms submit."""
    answer = route.fetch()
    told = answer.json()
    if told.get("worker") == "stress":
        told["capabilities"] |= {"resume_config": {"models": "{checkpoint}", "events": "{steps}"}}
        told["capabilities"] |= {"script_config": {"models": "{script}", "events": "{steps}"}}
    route.fulfill(response=answer, json=told)


def test_script_of_one_of_several_hosts_requires_that_host(stack, board):
    write_script(stack)

    def tell_another_host(socket):
        """Stand in for a second host."""
        server = socket.connect_to_server()

        def pass_on(message):
            if isinstance(message, str) and (told := json.loads(message))["type"] == "states":
                told["hosts"] += [each | {"host": "z-other"} for each in told["hosts"]]
                message = json.dumps(told)
            socket.send(message)

        server.on_message(pass_on)

    board.page.route_web_socket("**/ws", tell_another_host)
    board.page.route("**/api/supervisor.*/describe", able)
    board.open("/start?tab=script")
    board.page.locator("#form-worker").select_option("stress")
    board.page.get_by_label(re.compile("two-phases.sh")).check()
    board.page.get_by_role("button", name="YAML").click()
    expect(board.page.locator("pre[data-way=yaml]")).to_contain_text('requires: ["host:testhost"]')
    board.page.locator('[name="config.events"]').fill("7")
    assert submitted(stack, board, "Run script").requires == ("host:testhost",)


def write_script(stack):
    """Put a script where the form looks for some."""
    scripts = stack.home.path / "scripts"
    scripts.mkdir(exist_ok=True)
    script = scripts / "two-phases.sh"
    script.write_text("#!/bin/sh\n# @description: First this, then that\n# @phases: this, that\n")
    return script


def submitted(stack, board, action):
    """Press the button of a form; return what the scheduler got."""
    expect(board.page.locator("#verdict")).to_have_attribute("data-ok", "true")
    board.page.get_by_role("button", name=action).click()
    board.page.wait_for_url("**/run/*")
    run = board.page.url.rpartition("/")[2]
    stack.wait_final(run)
    return stack.show(run).spec


def test_runs_that_ended_long_ago_are_deleted(stack, board):
    """It deletes all ended runs of this stack, so it comes before the tests that compare some."""
    run = stack.submit(name="old-run", config={"events": 5})
    stack.wait_final(run)
    stack.wait_stored(run)
    # The note goes a moment after the last line is stored; until then the run is kept.
    wait_until("nothing is left to report", lambda: not list((stack.home.path / "active").glob(f"{run}.*")))
    board.open("/runs?q=old-run")
    expect(board.page.locator("#shown")).to_contain_text("1 of")
    age = board.page.get_by_label("all older than")
    age.fill("soon")
    expect(board.page.get_by_role("button", name="Enter an age, such as 30d")).to_be_disabled()
    age.fill("52w")
    expect(board.page.get_by_role("button", name="Delete all 0")).to_be_disabled()
    # The clock of the page goes on: sooner or later the run is old enough.
    age.fill("1s")
    expect(board.page.locator("main")).to_contain_text(re.compile("Delete all [1-9]"))
    board.wait("(ended) => Date.now() / 1000 > ended + 3", stack.state(run).ended_at)
    board.page.get_by_role("button", name=re.compile("Delete all [1-9]")).click()
    expect(board.page.get_by_role("dialog")).to_contain_text("mosaic prune --older-than 1s")
    board.page.get_by_role("button", name="Delete for ever").click()
    expect(board.page.locator("#shown")).to_contain_text("0 of")
    with pytest.raises(CommandRefusedError, match="no run has"):
        stack.show(run)


def test_mistakes_are_told_beside_their_field_in_the_words_of_the_command_line(board):
    board.open("/start?worker=baseline")
    board.page.locator('[name="config.episodes"]').fill("many")
    board.page.locator('[name="config.env_id"]').fill("CartPole-v9")
    said = board.page.locator('[data-field="config.episodes"] [role=alert]')
    expect(said).to_have_text("'many' is not allowed; allowed: integer, at least 1")
    near = board.page.locator('[data-field="config.env_id"] [role=alert]')
    expect(near).to_contain_text("did you mean CartPole-v1")
    expect(board.page.locator("#submit")).to_be_disabled()
    board.page.locator('[name="config.episodes"]').fill("5")
    board.page.locator('[name="config.env_id"]').fill("CartPole-v1")
    expect(board.page.locator("#submit")).to_be_enabled()
    # A field among all others: its group opens, and the field says it.
    board.page.get_by_text("Name, resources, retries").click()
    board.page.locator('[name="resources.cpus"]').fill("lots")
    expect(board.page.locator('[data-field="resources.cpus"] [role=alert]')).to_contain_text("must be a number")


@pytest.fixture(scope="module")
def saver(stack):
    """A run with checkpoints."""
    run = stack.submit(name="saver", config={"events": 600, "checkpoint_every": 200})
    stack.wait_final(run)
    stack.wait_stored(run)
    return run


def test_checkpoint_of_a_run_is_evaluated_from_a_form(stack, board, saver):
    board.open(f"/start?evaluate={saver}")
    board.page.get_by_label(re.compile("^step 200")).check()
    board.page.locator('[name="config.events"]').fill("5")
    expect(board.page.locator("pre[data-way=command]")).to_contain_text("run:saver@200")
    expect(board.page.locator("#verdict")).to_have_attribute("data-ok", "true")
    board.page.get_by_role("button", name="Evaluate").click()
    board.page.wait_for_url("**/run/*")
    made = board.page.url.rpartition("/")[2]
    assert stack.wait_final(made).state == "succeeded"
    assert stack.show(made).spec.config == {"models": ["run:saver@200"], "events": 5}


def test_sweep_is_folded_by_seed_and_kept_as_csv(board, sweep):
    board.page.get_by_role("link", name="Compare", exact=True).click()
    board.page.get_by_label(re.compile(SWEEP)).check()
    board.page.wait_for_url(f"**/compare?groups={SWEEP}")
    expect(board.page.locator("[data-settings]")).to_have_attribute("data-settings", "2")
    rows = board.page.locator("#settings tbody tr")
    expect(rows).to_have_count(2)
    for row in rows.all():
        expect(row).to_contain_text(re.compile(r"episodes=(10|20)"))
        expect(row.locator("td").nth(1)).to_have_text("3")
        expect(row.locator("td").nth(3)).to_contain_text(re.compile(r"\[.+, .+\]"))
    expect(board.page.locator(".legend")).to_contain_text("n = 3")
    with board.page.expect_download() as kept:
        board.page.locator(".exports").get_by_role("button", name="CSV").click()
    with kept.value.path().open(newline="") as file:
        found = list(csv.DictReader(file))
    assert {row["setting"] for row in found} == {"episodes=10", "episodes=20"}
    assert max(int(row["n"]) for row in found) == len(SEEDS)
    assert all(float(row["low"]) <= float(row["value"]) <= float(row["high"]) for row in found)
    with board.page.expect_download() as drawn:
        board.page.locator(".exports").get_by_role("button", name="SVG").click()
    assert "<polyline" in drawn.value.path().read_text()
    with board.page.expect_download() as picture:
        board.page.locator(".exports").get_by_role("button", name="PNG").click()
    assert picture.value.path().read_bytes().startswith(b"\x89PNG")
    # The view is in the address: a reload shows the same.
    board.page.get_by_label("Centre").select_option("iqm")
    board.page.reload()
    expect(board.page.get_by_label("Centre")).to_have_value("iqm")
    expect(board.page.locator("#settings tbody tr")).to_have_count(2)
    expect(board.page.locator(".parallel polyline")).to_have_count(6)


def test_scores_equal_those_of_the_command_line(stack, board, sweep):
    told = Cli(stack.home.path).json("compare", SWEEP)
    board.open(f"/compare?groups={SWEEP}")
    with board.page.expect_download() as kept:
        board.page.get_by_label("Settings").get_by_role("button", name="CSV").click()
    with kept.value.path().open(newline="") as file:
        found = {row["setting"]: row for row in csv.DictReader(file)}
    for setting in told["settings"]:
        row = found[setting["setting"]]
        assert float(row["mean"]) == pytest.approx(setting["mean"])
        assert float(row["iqm"]) == pytest.approx(setting["iqm"])
        low, high = setting["mean_interval"]
        assert float(row["mean_low"]) == pytest.approx(low, rel=1e-3)
        assert float(row["mean_high"]) == pytest.approx(high, rel=1e-3)


def test_worker_page_leads_to_the_form(board):
    board.page.get_by_role("link", name="Workers", exact=True).click()
    row = board.page.locator('[data-profile="baseline/default"]')
    expect(row).to_contain_text("installed")
    row.get_by_role("link", name="Start a run").click()
    board.page.wait_for_url("**/start?worker=baseline")
    expect(board.page.locator("#form-worker")).to_have_value("baseline")


FORM = "#verdict[data-ok]"
# Each page, and what is there once it has its content.
PAGES = {
    "/start?worker=baseline": FORM,
    "/start?resume={run}": FORM,
    "/start?tab=script": f".start:has({FORM}):has(.choices input)",
    "/start?evaluate={run}": FORM,
    "/workers?open=baseline/default": ".details",
    f"/compare?groups={SWEEP}": ".legend",
    "/compare": "text=Choose runs or groups above.",
}


def open_page(board, path, content, run):
    """Open a page and wait for its content."""
    board.open(path.format(run=run))
    board.page.wait_for_selector(content)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_no_accessibility_violation(browser, stack, sweep, saver, theme):
    write_script(stack)
    with dashboard(browser, stack, theme=theme, axe=True) as board:
        board.page.route("**/api/supervisor.*/describe", able)
        for path, content in PAGES.items():
            open_page(board, path, content, saver)
            assert board.axe() == [], path


def test_pages_fit_a_phone(browser, stack, sweep, saver):
    write_script(stack)
    with dashboard(browser, stack, size=PHONE) as board:
        board.page.route("**/api/supervisor.*/describe", able)
        for path, content in PAGES.items():
            open_page(board, path, content, saver)
            assert board.width() <= PHONE["width"], path


def test_viewer_is_offered_no_form(browser, stack):
    with dashboard(browser, stack, viewer=True) as board:
        board.open("/start")
        expect(board.page.get_by_text("You may look and not start anything")).to_be_visible()
        assert board.page.locator("#submit").count() == 0
        board.open("/workers")
        expect(board.page.locator('[data-profile="baseline/default"]')).to_contain_text("installed")
        assert board.page.get_by_role("button", name=re.compile("Install")).count() == 0
