"""`mosaic logs`: every line once, although services are restarted; and an end once the stack is gone."""

from __future__ import annotations

import asyncio
import signal
import subprocess
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
from mosaic_cli import MOSAIC, Cli
from stack import wait_until
from ulid import ULID

from mosaic_bus.client.live import LiveView, Selection
from mosaic_bus.commands import Events, Rows
from mosaic_bus.errors import NoAnswerError
from mosaic_bus.messages import RunState
from mosaic_services.cli import logs
from mosaic_services.cli.options import current

if TYPE_CHECKING:
    from pathlib import Path


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
