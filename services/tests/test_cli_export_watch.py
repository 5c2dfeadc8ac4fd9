"""What `mosaic export`, `logs` and `watch` must not do: delete what is not theirs, wait for ever, hide what runs."""

from __future__ import annotations

import asyncio
import io
import os
import signal
import subprocess
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest
from mosaic_cli import MOSAIC, Cli
from rich.console import Console
from stack import wait_until
from ulid import ULID

from mosaic_bus.client.live import LiveView, Selection
from mosaic_bus.commands import Events, Logs, Rows
from mosaic_bus.errors import NoAnswerError
from mosaic_bus.messages import RunState
from mosaic_services.cli import logs
from mosaic_services.cli.export import command as export
from mosaic_services.cli.export.columns import EPISODES, table_of
from mosaic_services.cli.options import current
from mosaic_services.cli.watch.feed import View
from mosaic_services.cli.watch.panel import table
from mosaic_services.cli.watch.screen import Screen

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(scope="module")
def cli(tmp_path_factory) -> Iterator[Cli]:
    made = Cli(tmp_path_factory.mktemp("cli") / "home")
    made("workers", "install", "baseline", timeout=280)
    made("up", "--detach", "--cpus", "4")
    yield made
    made("down")


# ── export ───────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
def test_force_replaces_only_an_export(cli, tmp_path, monkeypatch):
    run = cli.json("submit", "--worker", "baseline", "episodes=3", f"seed={2**63}", "--wait")["runs"][0]["run"]
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "thesis.txt").write_text("x")
    link = tmp_path / "link"
    link.symlink_to(mine)
    monkeypatch.chdir(mine)
    for out in (str(mine), str(link), "."):
        refused = cli("export", run, "--out", out, "--force", code=2).stderr
        assert f"{mine} is not only an export: it also holds thesis.txt" in refused
    assert (mine / "thesis.txt").read_text() == "x"

    real = tmp_path / "real"
    link.unlink()
    link.symlink_to(real)
    cli("export", run, "--out", str(link))
    (real / "logs.parquet").write_text("stale")
    cli("export", run, "--out", str(link), "--force")
    assert link.is_symlink()
    assert pq.read_table(link / "logs.parquet").num_rows == 0
    monkeypatch.chdir(real)
    assert "is the folder you are in" in cli("export", run, "--out", ".", "--force", code=2).stderr
    assert sorted(each.name for each in tmp_path.iterdir()) == ["link", "mine", "real"]

    episodes = pq.read_table(real / "episodes.parquet").to_pylist()
    lines = pq.read_table(real / "events.parquet").column("line").to_pylist()
    assert len(episodes) == 3
    assert any(str(2**63) in line for line in lines)


def folder_of(tmp_path: Path, *names: str) -> Path:
    folder = tmp_path / "out"
    folder.mkdir()
    for name in names:
        (folder / name).write_text("old")
    return folder


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (("run.json", "a", "b", "c", "d"), "more than an export: a, b, c and 1 more"),
        (("logs.parquet",), "has no run.json"),
    ],
)
def test_a_folder_that_is_no_export_is_refused(tmp_path, names, said):
    with pytest.raises(export.InputError, match=said):
        export._require_replaceable(folder_of(tmp_path, *names))


@pytest.mark.parametrize("names", [(), ("run.json",), ("run.json", "events.parquet", "logs.parquet")])
def test_an_export_or_an_empty_folder_is_replaced(tmp_path, names):
    folder, scratch = folder_of(tmp_path, *names), tmp_path / "scratch"
    scratch.mkdir()
    (scratch / "run.json").write_text("new")
    export._replace(scratch, folder)
    assert [(each.name, each.read_text()) for each in folder.iterdir()] == [("run.json", "new")]
    assert list(tmp_path.iterdir()) == [folder]


def test_an_export_that_cannot_be_put_in_place_leaves_the_old_one(tmp_path):
    folder = folder_of(tmp_path, "run.json")
    with pytest.raises(FileNotFoundError):
        export._replace(tmp_path / "gone", folder)
    assert (folder / "run.json").read_text() == "old"
    assert list(tmp_path.iterdir()) == [folder]


def test_a_folder_that_cannot_be_moved_stays_and_nothing_is_left_beside_it(tmp_path, monkeypatch):
    folder, scratch = folder_of(tmp_path, "run.json"), tmp_path / "scratch"
    scratch.mkdir()

    def busy(*_: object) -> None:
        """A fake of os.replace for a folder that something is mounted on."""
        raise OSError(16, "busy")

    monkeypatch.setattr(os, "replace", busy)
    with pytest.raises(OSError, match="busy"):
        export._replace(scratch, folder)
    assert (folder / "run.json").read_text() == "old"
    assert sorted(tmp_path.iterdir()) == [folder, scratch]


@pytest.mark.parametrize(
    ("column", "value", "kept"),
    [
        ("seed", 2**63, None),
        ("seed", -(2**63) - 1, None),
        ("seed", float(2**70), None),  # how a larger number comes out of JSON
        ("seed", 2**63 - 1, 2**63 - 1),
        ("return", 2**60, float(2**60)),
        ("agent", 7, None),
    ],
)
def test_a_value_that_does_not_fit_its_column_is_null_there(column, value, kept):
    rows = [{"attempt": 1, "number": 0, column: value}, {"attempt": 1, "number": 1, "seed": 5}]
    first, second = table_of(rows, EPISODES).to_pylist()
    assert (first["number"], first[column]) == (0, kept)
    assert (second["number"], second["seed"]) == (1, 5)


# ── a stack that is gone ─────────────────────────────────────────────────────────────────────────────


def start_impatient(cli: Cli, command: list[str], output: Path) -> subprocess.Popen[str]:
    """Start a command that waits a second, not a minute, for somebody to answer again."""
    with output.open("w") as file:
        return subprocess.Popen(
            [*MOSAIC, *command],
            env={**cli.env, "MOSAIC_CLI__OUTAGE_S": "1"},
            stdout=file,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509 - as in Cli.start
        )


@pytest.mark.slow
def test_following_and_watching_until_done_end_once_the_stack_is_gone(tmp_path):
    cli = Cli(tmp_path / "home")
    cli("workers", "install", "baseline", timeout=280)
    cli("up", "--detach", "--cpus", "4")
    run = cli.submit("name=long", "episodes=1000000")
    commands = (["logs", run, "--events", "--follow"], ["watch", run, "--until-done"], ["watch", run])
    outputs = [tmp_path / str(number) for number in range(3)]
    processes = [start_impatient(cli, command, output) for command, output in zip(commands, outputs, strict=True)]
    try:
        for output in outputs:
            wait_until("something is printed", output.read_text)
        cli("down", "--keep-runs")
        following, until_done, watching = processes
        for process in (following, until_done):
            said = process.communicate(timeout=60)[1]
            assert process.returncode == 3
            assert "does not answer\n       see: mosaic status" in said
            assert "Traceback" not in said
        # A person sees that nobody answers, and decides.
        assert "does not answer" in watching.stderr.readline()
        assert watching.poll() is None
        watching.send_signal(signal.SIGINT)
        assert watching.wait(20) == 0
    finally:
        for process in processes:
            process.kill()
            process.communicate()
        cli("up", "--detach", "--cpus", "4")  # takes the run over, so that it can be ended
        cli("down")


def state(name: str, **fields: object) -> RunState:
    known = {"run": str(ULID()), "name": "n", "worker": "w", "profile": "default", "reason": "because"}
    times = {"attempt": 1, "submitted_at": 0.0, "changed_at": 0.0}
    return RunState.model_validate({**known, **times, "state": name, **fields})


class FakeBus:
    """Stands for the bus of one run that has ended: telemetry answers with these pages in turn, or not (None)."""

    def __init__(self, *pages: Rows | None, messages: tuple[SimpleNamespace, ...] = (), seen=lambda: None) -> None:
        self.state = state("succeeded")
        self._pages = list(pages)
        self._messages = list(messages)
        self._seen = seen

    async def request(self, service, command):
        if isinstance(command, Events):
            self._seen()
            page = self._pages.pop(0) if self._pages else Rows(rows=[])
            if page is None:
                raise NoAnswerError(service, command.name, 10.0)
            return page
        counters = SimpleNamespace(attempt=1, kind="journal", stored=4, final=True, missing=0)
        return SimpleNamespace(streams=[counters])

    async def next(self, _timeout):
        return self._messages.pop(0) if self._messages else None

    def take_all(self):
        return []


def rows(*numbers: int, further: int | None = None) -> Rows:
    return Rows(rows=[{"number": number, "line": f"line {number}"} for number in numbers], next=further)


def test_a_hole_while_telemetry_is_restarted_does_not_end_following(capsys):
    place = {"host": "h", "run": str(ULID()), "kind": "journal", "offset": 14, "end": 21}
    live = SimpleNamespace(payload={**place, "attempt": 1, "first": 2, "count": 1}, buffers=[b"line 2\n"])
    bus = FakeBus(rows(0), None, rows(1, 2, 3), messages=(live,))
    asyncio.run(logs._Reader(bus, bus.state, "journal", None)._follow(None, bus, LiveView(Selection())))
    assert capsys.readouterr().out.splitlines() == ["line 0", "line 1", "line 2", "line 3"]


def test_following_gives_up_when_nobody_answers_for_long(monkeypatch):
    monkeypatch.setenv("MOSAIC_CLI__OUTAGE_S", "1e-9")
    monkeypatch.setattr(current, "_loaded", None)
    bus = FakeBus(rows(0), None, rows(1))
    with pytest.raises(NoAnswerError):
        asyncio.run(logs._Reader(bus, bus.state, "journal", None)._follow(None, bus, LiveView(Selection())))


def test_stored_lines_are_printed_page_by_page(capsys):
    printed: list[str] = []
    bus = FakeBus(rows(0, 1, further=2), rows(2), seen=lambda: printed.append(capsys.readouterr().out))
    assert asyncio.run(logs._Reader(bus, bus.state, "journal", None).print_stored(None))
    assert [*printed, capsys.readouterr().out] == ["", "line 0\nline 1\n", "line 2\n"]


# ── the table of a sweep that does not fit the screen ────────────────────────────────────────────────


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
