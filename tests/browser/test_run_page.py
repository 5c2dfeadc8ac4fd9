"""A run in a real browser: its curve moves, its frame changes, it can be stopped, zoomed into, and asked why."""

from __future__ import annotations

import base64
import json
import os
import re
import signal

import psutil
import pytest
from chromium import PHONE, dashboard
from playwright.sync_api import expect
from stack import wait_until

from mosaic_bus.commands import PauseQueue, Series

pytestmark = pytest.mark.slow
SPIKE_STEP, SPIKE = 7_345, 1000.0
SCALARS = 12_000
COUNTS = "(run, metric) => mosaic.points().find((each) => each.run === run)?.curves[metric]?.counts ?? []"


@pytest.fixture(scope="module")
def live(stack):
    """A run with episodes, frames, a log and checkpoints that goes on."""
    config = {"events": 10**6, "rate": 100.0, "episode_steps": 20, "frames": 10**6, "frames_by_child": True}
    run = stack.submit(name="live-run", config={**config, "checkpoint_every": 200, "log_lines": 30})
    stack.wait_state(run, "running")
    yield run
    if stack.state(run).state == "running":
        stack.cancel(run)
    stack.wait_final(run)


@pytest.fixture(scope="module")
def broken(stack):
    run = stack.submit(name="broken-run", config={"events": 50, "end": "crash"})
    stack.wait_final(run)
    stack.wait_stored(run)
    return run


@pytest.fixture(scope="module")
def spiky(stack):
    """A run with so many scalars that its curve is thinned, and one of them is a spike."""
    values = (SPIKE if step == SPIKE_STEP else step % 7 for step in range(SCALARS))
    lines = "".join(f'{{"event":"scalars","step":{i},"values":{{"loss":{v}}}}}\n' for i, v in enumerate(values))
    run = stack.submit(name="spiky-run", config={"raw": [base64.b64encode(lines.encode()).decode()]})
    stack.wait_final(run)
    assert stack.wait_stored(run).events > SCALARS
    return run


def test_log_in_start_a_run_from_a_form_watch_and_cancel_it(stack, board):
    assert "token" not in board.page.url
    board.page.get_by_role("link", name="Start a run").first.click()
    board.page.locator("#form-worker").select_option("stress")
    board.page.get_by_text("All hyperparameters and settings").click()
    given = {"events": 10**6, "rate": 100.0, "episode_steps": 20, "frames": 10**6}
    for field, value in given.items():
        board.page.locator(f'[name="config.{field}"]').fill(str(value))
    board.page.locator('[name="config.frames_by_child"]').select_option("true")
    expect(board.page.locator("#verdict")).to_have_attribute("data-ok", "true")
    board.page.locator("#submit").click()
    board.page.wait_for_url("**/run/*")
    run = board.page.url.rpartition("/")[2]
    assert stack.show(run).spec.config == {**given, "frames_by_child": True}
    board.wait("(run) => mosaic.points().some((each) => each.run === run && each.curves.episode_return)", run)
    before = len(board.points(run, "episode_return")["steps"])
    drawn = "() => Number(document.querySelector('#chart-1 .chart')?.dataset.points)"
    board.wait(f"(before) => ({drawn})() >= before + 20", before)
    frame = board.wait("() => Number(document.querySelector('.run-frame canvas').dataset.frame)")
    board.wait("(frame) => Number(document.querySelector('.run-frame canvas').dataset.frame) > frame + 3", frame)
    expect(board.page.locator("#frame-figures")).to_contain_text("reward 1.5")
    # The picture is really drawn: the worker's frames are grey, and the canvas is no longer transparent.
    pixel = "() => document.querySelector('.run-frame canvas').getContext('2d').getImageData(40, 40, 1, 1).data[3]"
    assert board.page.evaluate(pixel) == 255

    board.page.get_by_role("button", name="Stop …").click()
    expect(board.page.get_by_role("dialog")).to_contain_text(f"mosaic cancel {run}")
    board.page.get_by_role("button", name="Cancel run").click()
    expect(board.page.locator('h1 + [data-state="cancelled"]')).to_be_visible()
    assert stack.wait_final(run).state == "cancelled"
    stack.wait_stored(run)
    total = (
        "(run) => mosaic.points().find((e) => e.run === run).curves.episode_return.counts.reduce((a, b) => a + b, 0)"
    )
    wait_until("the page has all", lambda: board.page.evaluate(total, run) == stack.summary(run).episodes)


def test_zoom_shows_a_planted_spike(board, spiky):
    board.open(f"/run/{spiky}?metric=loss&smooth=1")
    chart = board.page.locator("#chart-1 .chart")
    board.wait("() => Number(document.querySelector('#chart-1 .chart')?.dataset.points) > 1000")
    # Thinned, and the spike is there all the same: buckets keep their lowest and highest point.
    assert int(chart.get_attribute("data-points")) < SCALARS / 4
    assert float(chart.get_attribute("data-highest")) == SPIKE
    # Drag over the place of the spike, as a user does.
    box = board.page.locator("#chart-1 .u-over").bounding_box()
    middle, y = box["x"] + box["width"] * SPIKE_STEP / SCALARS, box["y"] + box["height"] / 2
    board.page.mouse.move(middle - 6, y)
    board.page.mouse.down()
    board.page.mouse.move(middle, y)
    board.page.mouse.move(middle + 6, y)
    board.page.mouse.up()
    board.page.wait_for_url(re.compile(r"zoom=\d+-\d+"))
    first, last = (int(each) for each in re.search(r"zoom=(\d+)-(\d+)", board.page.url).groups())
    assert first < SPIKE_STEP < last
    # Every point of the range is drawn by itself now.
    board.wait("(n) => document.querySelector('#chart-1 .chart').dataset.points == n", last - first + 1)
    assert float(chart.get_attribute("data-highest")) == SPIKE
    board.page.get_by_role("button", name=re.compile("Show all")).click()
    board.wait("() => Number(document.querySelector('#chart-1 .chart').dataset.points) > 1000")


def test_zoom_is_asked_for_again_after_a_failure(board, spiky):
    board.cut_off = True
    refused = []

    def refuse_once(route):
        """Stand in for a telemetry that is away for a moment."""
        refused.append(route.request.url)
        route.fulfill(status=503, json={"code": "store_unavailable", "message": "away"})

    board.page.route("**/api/telemetry/series", refuse_once, times=1)
    board.open(f"/run/{spiky}?metric=loss&smooth=1&zoom={SPIKE_STEP - 10}-{SPIKE_STEP + 10}")
    board.wait("() => document.querySelector('#chart-1 .chart')?.dataset.points == 21")
    assert refused


def test_new_attempt_on_a_thinned_curve_loses_and_repeats_no_point(stack, board):
    # Attempt 2 goes on from step 4500, which lies inside of a bucket of the thinned curve.
    config = {"events": 6000, "checkpoint_every": 4500, "end": "hang"}
    run = stack.submit(name="again", config=config, retries={"max": 1, "delay_s": 0})
    wait_until("all is stored", lambda: (found := stack.summary(run)) is not None and found.step == 5999)
    board.open(f"/run/{run}?metric=reward")
    board.wait(f"() => ({COUNTS})('{run}', 'reward').some((count) => count > 1)")
    host = json.loads((stack.home.runs / run / "1" / "host.json").read_bytes())["pid"]
    os.kill(psutil.Process(host).children()[0].pid, signal.SIGKILL)

    def stored():
        return stack.bus.request("telemetry", Series(runs=[run], metrics=["reward"]), timeout=60).runs[0]

    wait_until("attempt 2 is stored", lambda: len(at := stored().position) == 2 and at[1] > 6000 - 4500)
    stack.cancel(run)
    stack.wait_final(run)
    stack.wait_stored(run)
    (curve,), position = (last := stored()).curves, last.position
    assert curve.points == 6000
    wait_until("the page is at the end", lambda: board.points(run, "reward")["position"] == position)
    assert sum(board.points(run, "reward")["counts"]) == curve.points


def test_failed_run_says_why(board, broken):
    expect(board.page.get_by_label("Last failures")).to_contain_text("loss is NaN at step 40960")
    board.page.get_by_label("Last failures").get_by_role("link", name="broken-run").click()
    expect(board.page.locator("#why .answer")).to_contain_text("application: RuntimeError: loss is NaN at step 40960")
    expect(board.page.locator("#why pre")).to_contain_text("Traceback (most recent call last)")


def test_tabs_of_a_run(board, live):
    board.open(f"/run/{live}?tab=log")
    expect(board.page.locator("#log")).to_contain_text("log line 29 of a worker")
    board.page.get_by_role("tab", name="Checkpoints").click()
    expect(board.page.get_by_role("link", name="checkpoints/200.json")).to_be_visible()
    board.page.get_by_role("tab", name="Artifacts").click()
    with board.page.expect_download() as download:
        board.page.get_by_role("link", name="1/log.txt", exact=True).click()
    assert "log line 29" in download.value.path().read_text()
    board.page.get_by_role("tab", name="Resources").click()
    expect(board.page.get_by_text("Where time goes")).to_be_visible()
    board.page.get_by_role("tab", name="Raw events").click()
    expect(board.page.get_by_role("region", name="raw events")).to_contain_text('"event":"run_started"')
    board.page.get_by_role("tab", name="Config").click()
    expect(board.page.get_by_label("the command that submits this run")).to_contain_text(
        "mosaic submit --worker stress --name live-run events=1000000"
    )
    assert "tab=config" in board.page.url


def test_time_goes_to_phases_only(stack, board, broken):
    ended = stack.state(broken).ended_at
    said = ("submitted", -100), ("warning", -95), ("placed", -80), ("preparing", -78), ("running", -60), ("host", -55)
    again = ("retry", -50), ("placed", -40), ("running", -38), ("priority", -30), ("given up", 0), ("failed", 0)

    def decided(route):
        """Give the run a longer story than a test has time for."""
        answer = route.fetch()
        decisions = [{"at": ended + at, "event": event, "reason": ""} for event, at in (*said, *again)]
        route.fulfill(response=answer, json=answer.json() | {"decisions": decisions})

    board.page.route("**/api/scheduler/show", decided)
    board.open(f"/run/{broken}?tab=resources")
    spent = ["queued 30 s (30 %)", "starting 4 s (4 %)", "preparing 18 s (18 %)", "running 48 s (48 %)"]
    expect(board.page.locator(".time-list li")).to_have_text(spent)


def test_silent_host_hides_no_files_of_others(board, broken):
    board.cut_off = True

    def moved(route):
        answer = route.fetch()
        told = answer.json()
        told["attempts"].append(told["attempts"][0] | {"attempt": 2, "host": "elsewhere"})
        route.fulfill(response=answer, json=told)

    def more(route):
        answer = route.fetch()
        route.fulfill(response=answer, json=answer.json() | {"more": True})

    silent = {"code": "no_answer", "message": "elsewhere does not answer"}
    board.page.route("**/api/scheduler/show", moved)
    board.page.route("**/api/supervisor.testhost/files", more)
    board.page.route("**/api/supervisor.elsewhere/files", lambda route: route.fulfill(status=504, json=silent))
    board.open(f"/run/{broken}?tab=artifacts")
    expect(board.page.get_by_role("link", name="1/log.txt", exact=True)).to_be_visible()
    expect(board.page.get_by_text("elsewhere: elsewhere does not answer")).to_be_visible()
    expect(board.page.get_by_text("The run has more files than these")).to_be_visible()


def test_dead_stream_says_when_it_ended_after_a_reload_too(stack, board):
    run = stack.submit(name="still-run", config={"frames": 60, "end": "hang"})
    board.open("/wall")
    told = board.page.locator(f'[data-run="{run}"]').get_by_role("status")
    expect(told).to_contain_text("Last frame")
    board.page.reload()
    expect(told).to_contain_text("Last frame")
    stack.cancel(run)
    stack.wait_final(run)
    board.open(f"/run/{run}")
    expect(board.page.get_by_label("Live frame").get_by_role("status")).to_contain_text("Last frame")


def test_address_of_a_host_shows_it_alone(board, live):
    board.page.get_by_role("link", name="testhost").click()
    board.page.wait_for_url("**/hosts?host=testhost")
    expect(board.page.get_by_label("Runs on testhost")).to_contain_text("live-run")
    board.open("/hosts?host=elsewhere")
    expect(board.page.get_by_text("No host elsewhere has reported")).to_be_visible()
    board.page.get_by_role("link", name="All hosts").click()
    expect(board.page.locator('[data-host="testhost"]')).to_be_visible()


def test_log_that_grows_keeps_its_last_lines(stack, board):
    stack.bus.request("scheduler", PauseQueue(paused=True))
    try:
        run = stack.submit(name="talkative", config={"log_lines": 12_000})
        board.open(f"/run/{run}?tab=log")
        expect(board.page.locator("#log")).to_contain_text("Nothing was printed yet")
    finally:
        stack.bus.request("scheduler", PauseQueue(paused=False))
    expect(board.page.locator("#log")).to_contain_text("log line 11999 of")
    lines = "() => document.querySelector('#log').textContent.split('\\n').length"
    assert board.page.evaluate(lines) == 5000
    expect(board.page.get_by_text("the last 5,000 lines")).to_be_visible()
    board.page.get_by_role("button", name="Earlier lines").click()
    board.wait(f"() => ({lines})() === 7000")


def test_raw_events_are_live_and_paged_by_kind(stack, board, live):
    board.open(f"/run/{live}?tab=raw-events&kind=checkpoint_saved")
    events = board.page.get_by_role("region", name="raw events")
    expect(events).to_contain_text("checkpoint_saved")
    count = "() => document.querySelector('[aria-label=\"raw events\"]').textContent.split('\\n').length"
    board.wait(f"(before) => ({count})() > before", board.page.evaluate(count))

    odd = (f'{{"event":"{"episode" if i % 2 else "scalars"}","step":{i},"values":{{}}}}\n' for i in range(1000))
    run = stack.submit(config={"raw": [base64.b64encode("".join(odd).encode()).decode()]})
    stack.wait_final(run)
    stack.wait_stored(run)
    board.open(f"/run/{run}?tab=raw-events&kind=episode")
    first = "lines 2 to 400"  # two hundred of them
    shown = board.page.locator(".number", has_text=re.compile("lines .* to"))
    expect(shown).to_have_text(first)
    board.page.get_by_role("button", name="Later").click()
    expect(shown).to_have_text("lines 402 to 800")
    board.page.get_by_role("button", name="Earlier").click()
    expect(shown).to_have_text(first)


def test_theme_follows_the_system_until_it_is_chosen(board):
    ground = "() => getComputedStyle(document.documentElement).backgroundColor"
    light = board.page.evaluate(ground)
    board.page.emulate_media(color_scheme="dark")
    board.wait(f"(light) => ({ground})() !== light", light)
    board.page.emulate_media(color_scheme="light")
    board.wait(f"(light) => ({ground})() === light", light)
    board.page.get_by_role("button", name="Dark theme").click()
    board.page.reload()
    board.wait(f"(light) => ({ground})() !== light", light)


# Each page, and what is there once it has its content.
PAGES = {
    "/": ".live-run canvas[data-frame]",
    "/runs": "tbody tr",
    "/wall": "canvas[data-frame]",
    "/hosts": "[data-host] tbody tr",
    "/run/{live}": ".run-top:has(.u-over):has(#frame-figures)",
    "/run/{live}?tab=log": "#log:has-text('log line')",
    "/run/{live}?tab=resources": ".time-bar",
    "/run/{broken}?tab=why": "#why .answer",
    "/run/{live}?tab=checkpoints": "[aria-label=Checkpoints] tbody tr",
    "/run/{live}?tab=videos": "text=No video yet",
    "/run/{live}?tab=artifacts": "[aria-label='Files of the run'] tbody tr",
    "/run/{live}?tab=attempts": "[aria-label=Attempts] tbody tr",
    "/run/{live}?tab=raw-events": "[aria-label='raw events']:has-text('run_started')",
    "/nowhere": "text=There is no page at",
}


def open_page(board, path, content, **runs):
    """Open a page and wait for its content."""
    board.open(path.format(**runs))
    board.page.wait_for_selector(content)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_no_accessibility_violation(browser, stack, live, broken, theme):
    with dashboard(browser, stack, theme=theme, axe=True) as board:
        for path, content in PAGES.items():
            open_page(board, path, content, live=live, broken=broken)
            assert board.axe() == [], path
        board.open(f"/run/{live}")
        board.page.get_by_role("button", name="Stop …").click()
        expect(board.page.get_by_role("dialog")).to_be_visible()
        assert board.axe("dialogue") == [], "a dialogue"


def test_logged_out_page_says_how_to_log_in(browser, stack):
    with dashboard(browser, stack, axe=True) as board:
        board.cut_off = True
        board.page.context.clear_cookies()
        board.page.evaluate("() => mosaic.drop()")
        expect(board.page.get_by_role("alert")).to_contain_text("You are logged out. Run this and open the address")
        assert board.axe("logged out") == []
        board.page.reload()
        expect(board.page.get_by_role("heading", name="Not logged in")).to_be_visible()
        assert board.axe("not logged in") == []


def test_pages_fit_a_phone(browser, stack, live, broken):
    with dashboard(browser, stack, size=PHONE) as board:
        for path, content in PAGES.items():
            open_page(board, path, content, live=live, broken=broken)
            assert board.width() <= PHONE["width"], path


def test_viewer_is_offered_no_commands(browser, stack, live):
    links = re.compile(r"^(duplicate|resume|evaluate) …$", re.IGNORECASE)
    with dashboard(browser, stack) as board:
        board.open(f"/run/{live}")
        expect(board.page.get_by_role("main").get_by_role("link", name=links)).to_have_count(2)
    with dashboard(browser, stack, viewer=True) as board:
        for path in ("/", "/runs", "/hosts", f"/run/{live}"):
            board.open(path)
            board.page.wait_for_selector("main h1")
            board.wait("() => document.querySelector('main a, main [role=tab]')")
            words = re.compile(r"stop …|cancel|rerun|delete|drain|pause|duplicate|resume|evaluate", re.IGNORECASE)
            assert board.page.get_by_role("main").get_by_role("button", name=words).count() == 0, path
            assert board.page.get_by_role("main").get_by_role("link", name=links).count() == 0, path
        expect(board.page.get_by_text("commands are not offered")).to_be_visible()


def test_lost_connection_is_told_and_mended(browser, stack, live):
    with dashboard(browser, stack, axe=True) as board:
        board.cut_off = True
        board.open("/")
        stack.kill("gateway")
        expect(board.page.get_by_role("alert")).to_contain_text("Connection lost at")
        assert board.page.locator(".shell.stale").count() == 1
        times = "() => [...document.querySelectorAll('time')].map((each) => each.textContent).join()"
        before = board.page.evaluate(times)
        board.page.wait_for_timeout(2500)
        assert board.page.evaluate(times) == before, "clocks must stand still"
        assert board.axe() == []
        stack.start("gateway")
        board.page.wait_for_selector('#link[data-link="open"]')
        expect(board.page.get_by_role("alert")).to_have_count(0)
