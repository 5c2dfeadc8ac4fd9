"""More runs than the gateway keeps live: all are found, few are drawn, and they can be deleted from the page."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

from mosaic_bus.commands import CancelGroup, SubmitMany
from mosaic_bus.messages import RunSpec
from mosaic_services.gateway.hub import FINAL_RUNS

pytestmark = pytest.mark.slow
RUNS = FINAL_RUNS


@pytest.fixture(scope="module")
def oldest(stack):
    """A run with a return and a checkpoint, which ended before all others."""
    run = stack.submit(name="oldest", config={"events": 600, "episode_steps": 20, "checkpoint_every": 200})
    assert stack.wait_final(run).state == "succeeded"
    stack.wait_stored(run)
    return run


@pytest.fixture(scope="module")
def group(stack, oldest):
    """Runs that were cancelled: stored as any other."""
    submit_waiting(stack, "many", "stored")
    stack.bus.request("scheduler", CancelGroup(group="many"), timeout=60)
    return "many"


def submit_waiting(stack, group, name):
    """Submit as many runs as the gateway keeps of those that ended; they wait for a host that never comes."""
    specs = [
        RunSpec(worker="stress", name=f"{name}-{i:03}", group=group, requires=["nowhere"], wait_for_host=True)
        for i in range(RUNS)
    ]
    stack.bus.request("scheduler", SubmitMany(runs=[{"spec": spec} for spec in specs]), timeout=60)


def test_run_that_is_not_live_has_its_figures_and_checkpoints(board, oldest, group):
    board.open("/runs?q=600+events&sort=submitted")
    expect(board.page.locator("#shown")).to_have_text(f"1 of {RUNS + 1:,}")
    row = board.page.locator("tbody tr", has=board.page.get_by_role("link", name="oldest"))
    expect(row).to_contain_text("600")  # its last step
    expect(row).to_contain_text("20")  # its mean return
    board.open("/start?tab=resume")
    offered = board.page.locator("#form-run option").filter(has_text="oldest")
    expect(offered).to_have_count(1)
    board.open(f"/compare?runs={oldest}")
    expect(board.page.locator("#settings tbody tr")).to_contain_text("20")


def test_sort_by_disk_use_knows_runs_out_of_view(board, oldest, group):
    board.open("/runs?sort=disk")
    expect(board.page.locator("tbody tr").first).to_contain_text("oldest")


def test_a_thousand_runs_filter_sort_pin_and_delete(stack, board, group):
    board.page.get_by_role("link", name="Runs", exact=True).click()
    expect(board.page.locator("#shown")).to_have_text(f"{RUNS + 1:,} of {RUNS + 1:,}")
    assert board.page.locator("tbody tr").count() < 80, "only rows in view are drawn"
    # The last row is found by scrolling.
    board.page.locator(".virtual").evaluate("(box) => { box.scrollTop = box.scrollHeight; }")
    expect(board.page.get_by_role("link", name="stored-000")).to_be_visible()
    board.page.get_by_role("button", name="Run", exact=True).click()
    board.page.get_by_role("searchbox").fill("stored-12")
    expect(board.page.locator("#shown")).to_have_text(f"10 of {RUNS + 1:,}")
    board.page.get_by_role("button", name="pin stored-125").click()
    expect(board.page.locator("tr.pinned")).to_contain_text("stored-125")
    # The view is in the address: a reload shows the same.
    assert {"q=stored-12", "sort=name"} < set(board.page.url.partition("?")[2].split("&"))
    board.page.reload()
    expect(board.page.locator("#shown")).to_have_text(f"10 of {RUNS + 1:,}")
    expect(board.page.locator("tbody tr").first).to_contain_text("stored-125")
    board.page.get_by_label("choose all that are shown").check()
    board.page.get_by_role("button", name="Delete 10").click()
    expect(board.page.get_by_role("dialog")).to_contain_text("mosaic delete ")
    board.page.get_by_role("button", name="Delete for ever").click()
    expect(board.page.locator("#shown")).to_have_text(f"0 of {RUNS - 9:,}")


def test_run_that_ends_and_is_pushed_out_of_the_live_ones_is_not_shown_as_queued(stack, board, group):
    stack.submit(name="pushed-out", group="late", requires=["nowhere"], wait_for_host=True)
    submit_waiting(stack, "late", "late")
    board.open("/runs?state=queued")
    expect(board.page.locator("#shown")).to_contain_text(f"{RUNS + 1:,} of")
    # The older runs were asked for, too, while these waited.
    expect(board.page.locator("#shown")).not_to_contain_text(f"of {RUNS + 1:,}")
    stack.bus.request("scheduler", CancelGroup(group="late"), timeout=60)
    expect(board.page.locator("#shown")).to_have_text(re.compile("^0 of"))
