"""`mosaic watch`: when it ends, what fits the terminal, what keys do."""

from __future__ import annotations

import io
import time
from types import SimpleNamespace

import pytest
from rich.console import Console
from ulid import ULID

from mosaic_bus.commands import Curve, Logs, Rows, RunCurves, SeriesResult
from mosaic_bus.messages import HostState, Resources, RunState, RunSummary
from mosaic_services.cli.watch.endings import Endings
from mosaic_services.cli.watch.feed import Feed, View
from mosaic_services.cli.watch.panel import header, table
from mosaic_services.cli.watch.screen import Screen


def summary(**fields: object) -> RunSummary:
    return RunSummary.model_validate({"run": "r", "attempt": 1, **fields})


def state(name: str = "running", **fields: object) -> RunState:
    known = {"run": str(ULID()), "name": "n", "worker": "w", "profile": "default", "state": name, "reason": "because"}
    times = {"attempt": 1, "submitted_at": 0.0, "changed_at": 0.0, "started_at": 100.0}
    return RunState.model_validate({**known, **times, **fields})


def ended(name: str = "succeeded", *, complete: bool = True) -> tuple[RunState, RunSummary]:
    one = state(name, ended_at=200.0)
    return one, summary(run=one.run, complete=complete)


def view_of(*pairs: tuple[RunState, RunSummary | None], trouble: str = "") -> View:
    return View(
        runs=[one for one, _ in pairs],
        summaries={one.run: found for one, found in pairs if found},
        loaded=True,
        trouble=trouble,
    )


def test_watching_ends_although_the_telemetry_of_a_run_is_lost():
    endings, lost = Endings(), view_of(ended(), ended("lost", complete=False))
    assert not endings.is_over(lost, None, 100.0)
    assert not endings.is_over(lost, None, 114.0)
    assert endings.is_over(lost, None, 116.0)


def test_watching_does_not_end_before_the_summary_is_there():
    one, found = ended()
    endings = Endings()
    assert not endings.is_over(View(), None, 100.0)
    assert not endings.is_over(view_of((one, None)), one.run, 100.0)
    assert not endings.is_over(view_of((one, summary(run=one.run, complete=True, attempt=0))), one.run, 101.0)
    assert endings.is_over(view_of((one, found)), one.run, 102.0)
    assert endings.is_over(view_of(), None, 102.0)


def test_watching_does_not_take_an_outage_for_the_end():
    endings, late = Endings(), ended(complete=False)
    assert not endings.is_over(view_of(late), None, 100.0)
    for now in (110.0, 120.0, 130.0):
        assert not endings.is_over(view_of(late, trouble="telemetry does not answer"), None, now)
    assert not endings.is_over(view_of(late), None, 131.0)
    assert endings.is_over(view_of(late), None, 146.0)


@pytest.mark.parametrize("width", [60, 80, 100, 120, 160, 250])
def test_watch_fits_the_terminal(width):
    from mosaic_services.cli.watch.closeup import closeup
    from mosaic_services.cli.watch.panel import table

    runs = [state(name, detail="x" * 300) for name in ("running", "queued", "preparing", "failed", "stopping")]
    figures = {"task": "t" * 99, "returns": [1, 2, 3], "return_mean": -12345.6, "return_std": 1e6, "steps_per_s": 1e6}
    view = View(
        runs=runs,
        hosts=[HostState(host="local", total=Resources(cpus=2, memory_mb=100))],
        summaries={each.run: summary(**figures, run=each.run, scalars={"loss": 1e-9}) for each in runs},
        loaded=True,
        log=["l" * 500],
    )
    for picture in (table(view, width, 30, 200.0), closeup(view, runs[0].run, width, 30, 200.0)):
        console = Console(width=width, file=io.StringIO(), record=True)
        console.print(picture)
        lines = console.export_text().splitlines()
        assert max(map(len, lines)) <= width
        assert len(lines) <= 32


def test_watch_in_80_columns_shows_names_and_whole_times():
    from mosaic_services.cli.watch.panel import Columns, run_line

    run = state().model_copy(update={"name": "ppo-cartpole"})
    far = summary(task="CartPole-v1", run=run.run, step=1, total_steps=10**6, steps_per_s=2.0, return_mean=21.5)
    view = View(runs=[run], summaries={run.run: far}, loaded=True)
    for with_loss in (True, False):
        columns = Columns(80, with_loss=with_loss)
        line = run_line(run, view, columns, 200.0).plain
        assert "ppo-cartpole" in line
        assert line.endswith("5 d 18 h")
        assert columns.titles().plain.endswith("ETA")
        assert len(columns.titles().plain) == len(line) <= 80


@pytest.mark.parametrize("wide", [{"return_mean": -12345.6, "return_std": 1e6}, {"steps_per_s": 1e7}])
def test_watch_in_80_columns_cuts_no_time_whatever_the_figures(wide):
    from mosaic_services.cli.watch.panel import Columns, run_line

    run = state()
    figures = {"step": 1, "total_steps": 10**12, "steps_per_s": 2e6, "returns": [1.0, 2.0, 3.0, 4.0], **wide}
    view = View(runs=[run], summaries={run.run: summary(run=run.run, **figures)}, loaded=True)
    assert run_line(run, view, Columns(80, with_loss=False), 200.0).plain.endswith(" h")


@pytest.mark.parametrize("width", range(80, 161))
def test_watch_cuts_no_time_in_any_width(width):
    from mosaic_services.cli.watch.panel import Columns, run_line

    run = state(run="01ARZ3NDEKTSV4RRFFQ69G5FAV", started_at=0.0)
    busy = summary(run=run.run, step=100, total_steps=10_000, steps_per_s=1_000_000.0, return_mean=-1234.5)
    view = view_of((run, busy.model_copy(update={"scalars": {"losses/policy_loss": -1.234e-05}, "return_std": 123.4})))
    columns = Columns(width, with_loss=True)
    assert "…" not in run_line(run, view, columns, 200.0).plain[-9:]


def test_watch_keeps_names_apart_that_differ_at_their_end_and_titles_times_and_losses():
    from mosaic_services.cli.watch.panel import table

    def picture(*runs):
        scalars = {"losses/policy_loss": 0.5}
        figures = {each.run: summary(run=each.run, scalars=scalars) for each in runs}
        view = View(runs=list(runs), summaries=figures, loaded=True)
        console = Console(width=100, file=io.StringIO(), record=True)
        console.print(table(view, 100, 30, 200.0))
        return console.export_text()

    names = [f"ppo-cartpole-with-a-long-name-seed{number}" for number in (1, 2)]
    going = [state().model_copy(update={"name": name}) for name in names]
    over = state("succeeded")
    shown = picture(*going)
    assert "seed1" in shown
    assert "seed2" in shown
    assert "LOSS: losses/policy_loss" in shown
    titles = [next(line for line in text.splitlines() if "RUN" in line) for text in (shown, picture(over))]
    assert [line.split()[-1] for line in titles] == ["ETA", "TOOK"]
    assert "ETA/TOOK" in picture(*going, over)


def test_cpu_and_memory_are_shown_from_100_columns():
    from mosaic_services.cli.watch.panel import Columns

    assert Columns(100, with_loss=False).usage
    assert not Columns(80, with_loss=False).usage
    assert Columns(110, with_loss=True).usage


def lines_of(view: View, height: int, selected: str | None) -> list[str]:
    console = Console(width=100, file=io.StringIO(), record=True)
    console.print(table(view, 100, height, 200.0, selected))
    return console.export_text().splitlines()


def runs_shown(view: View, height: int, selected: str | None = None) -> list[str]:
    known = {each.run[-6:] for each in view.runs}
    return [line[:6] for line in lines_of(view, height, selected) if line[:6] in known]


@pytest.fixture
def sweep() -> View:
    """Sixty runs that were submitted together: those that run were not the first to be listed."""
    queued, running = [state("queued", attempt=0) for _ in range(57)], [state("running") for _ in range(3)]
    return View(runs=[*queued, *running], loaded=True)


def test_what_runs_is_shown_before_what_waits(sweep):
    older = state("stopping", submitted_at=-5.0)
    sweep.runs.append(older)
    running = sorted(each.run for each in sweep.runs if each.state == "running")
    waiting = sorted(each.run for each in sweep.runs if each.state == "queued")
    assert [each.run for each in sweep.active] == [older.run, *running, *waiting]
    assert runs_shown(sweep, 22)[:4] == [run[-6:] for run in (older.run, *running)]


@pytest.mark.parametrize("trouble", ["", "scheduler does not answer"])
@pytest.mark.parametrize("height", [1, 8, 22, 100])
def test_the_selected_run_is_always_shown(sweep, height, trouble):
    view = View(runs=sweep.runs, loaded=True, trouble=trouble)
    for each in view.active:
        assert each.run[-6:] in runs_shown(view, height, each.run)
        assert len(lines_of(view, height, each.run)) <= max(height, 6)


def test_only_a_run_that_is_listed_can_be_cancelled(sweep):
    screen = Screen(None, SimpleNamespace(view=sweep, focus=None), pinned=False)
    for key in ("down", "down", "c"):
        assert screen._obey(key)
    assert screen._asked_to_cancel == sweep.active[1].run
    screen._obey("n")
    sweep.runs.remove(sweep.active[1])  # it has ended, and others after it
    screen._obey("c")
    assert screen._asked_to_cancel is None


def test_ended_run_offers_no_cancel_and_keys_open_pages():
    class Answers:
        def request(self, _service, command, timeout):
            if isinstance(command, Logs):
                return Rows(rows=[{"line": "Epoch 1"}])
            return SimpleNamespace(answer="it has failed", facts=["exit 1"])

    over, going = state("failed"), state("running")
    view = View(runs=[over, going], loaded=True)
    screen = Screen(Answers(), SimpleNamespace(view=view, focus=None, look_at=lambda _run: None), pinned=False)
    assert "[c] cancel" not in screen._hints()
    screen._selected = over.run
    assert "[c] cancel" not in screen._hints()
    assert screen._obey("c")
    assert screen._asked_to_cancel is None
    screen._selected = going.run
    assert "[c] cancel" in screen._hints()
    for key, said in (("l", "Epoch 1"), ("w", "it has failed\n  · exit 1"), ("?", "cancel it")):
        assert screen._obey(key)
        assert said in screen._page[1]
        assert screen._obey("escape")
        assert screen._page is None
    assert len(screen._hints()) <= 80


def test_lines_that_are_not_stored_yet_are_not_called_lost():
    text = header(view_of((one := state(), summary(run=one.run, missing=3))), 120).plain
    assert "missing 3" in text
    assert "lost" not in text


class Telemetry:
    """A bus with two live runs whose summaries never change; `while_asked` is called within each request."""

    def __init__(self) -> None:
        self.states = [state(), state()]
        self.log = "first"
        self.while_asked = lambda: None

    def follow(self, **_):
        return self

    def __enter__(self):
        runs = {each.run: each for each in self.states}
        return SimpleNamespace(runs=runs, counts={}, summaries={}, hosts={}, silent={}, wait=lambda _seconds: None)

    def __exit__(self, *_):
        pass

    def request(self, _service, command, timeout):
        self.while_asked()
        if isinstance(command, Logs):
            return Rows(rows=[{"line": f"{self.log} {command.run}"}])
        columns = {key: [] for key in ("steps", "values", "lows", "highs", "times", "counts")}
        curve = Curve(metric=command.metrics[0], **columns, points=0)
        return SeriesResult(runs=[RunCurves(run=command.runs[0], position=[1], curves=[curve])])


@pytest.fixture
def opened():
    """A feed whose thread has ended, so that a test says when it looks; the first run is open."""
    bus = Telemetry()
    feed = Feed(bus, bus.states[0].run)
    feed.close()
    return bus, feed


def test_details_of_a_run_that_was_left_meanwhile_are_not_shown(opened):
    bus, feed = opened
    feed.look_at(bus.states[0].run)
    bus.while_asked = lambda: feed.look_at(bus.states[1].run)
    feed._look(bus.__enter__())
    assert (feed.view.series, feed.view.log) == (None, [])
    bus.while_asked = lambda: None
    feed._look(bus.__enter__())
    assert feed.view.log == [f"first {bus.states[1].run}"]


def test_log_of_a_live_run_is_asked_for_although_its_journal_is_silent(opened, monkeypatch):
    bus, feed = opened
    feed._look(bus.__enter__())
    bus.log = "second"
    later = time.monotonic() + 2
    monkeypatch.setattr("mosaic_services.cli.watch.feed.time.monotonic", lambda: later)
    feed._look(bus.__enter__())
    assert feed.view.log == [f"second {bus.states[0].run}"]
