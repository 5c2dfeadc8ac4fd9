"""A whole stack of real processes for tests and benches: start, kill, restart, find leftovers."""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar

import psutil

from mosaic_bus import Bus, BusError
from mosaic_bus.commands import Cancel, Ping, Show, Submit, Summaries
from mosaic_bus.messages import RunSpec, RunState, RunSummary
from mosaic_services.home import StackHome
from mosaic_services.stack.services import in_start_order

if TYPE_CHECKING:
    from collections.abc import Callable

    from mosaic_bus.commands import RunDetail

ROOT = Path(__file__).parents[2]
STRESS = ROOT / "tests" / "workers" / "stress_worker"
# Without the gateway: the few tests that need it name it in `also`.
SERVICES = tuple(row.name for row in in_start_order() if row.name != "gateway")
HOST = "testhost"
Value = TypeVar("Value")
# Deadline for a hung process; generous, so that a busy machine does not fail tests.
PATIENCE_S = 300.0


def wait_until(what: str, condition: Callable[[], Value], deadline_s: float = PATIENCE_S) -> Value:
    """Return the first true value of a condition; past the deadline, fail with the name of the condition."""
    deadline = time.monotonic() + deadline_s
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"{what}: not within {deadline_s} s (last: {value!r})")
        time.sleep(0.02)


class Stack:
    """The services of one home, each a real process."""

    def __init__(
        self,
        folder: Path,
        *,
        cpus: float = 8,
        gpus: int = 0,
        environ: dict[str, str] | None = None,
        also: tuple[str, ...] = (),
    ) -> None:
        self.home = StackHome.find(folder)
        self.home.create()
        self.cpus = cpus
        self.gpus = gpus
        self.services = (*SERVICES, *also)
        self.environ = {**os.environ, "MOSAIC_WORKERS": str(STRESS), **(environ or {})}
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self._bus: Bus | None = None

    def __enter__(self) -> Self:
        try:
            for service in self.services:
                self.start(service)
            for service in self.services:
                self.wait_for(service)
        except BaseException:
            self.close()  # `with` calls __exit__ only after a complete start
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def bus(self) -> Bus:
        """A bus connection, opened on first use."""
        if self._bus is None:
            self._bus = Bus(self.home.address(), connect_timeout=20)
        return self._bus

    @staticmethod
    def service_name(service: str) -> str:
        """Return the name of a service on the bus."""
        return f"supervisor.{HOST}" if service == "supervisor" else service

    def start(self, service: str) -> None:
        """Start one service."""
        offered = ["--host", HOST, "--cpus", str(self.cpus), "--gpus", str(self.gpus)]
        extra = offered if service == "supervisor" else []
        with (self.home.logs / f"{service}.log").open("ab") as log:
            self.processes[service] = subprocess.Popen(
                [sys.executable, "-m", f"mosaic_services.{service}", "--home", str(self.home.path), *extra],
                stdout=log,
                stderr=log,
                env=self.environ,
            )

    def wait_for(self, service: str) -> None:
        """Wait until a service answers."""

        def answers() -> bool:
            code = self.processes[service].poll()
            assert code is None, f"{service} ended with {code}:\n{self.log(service)}"
            with contextlib.suppress(BusError):
                self.bus.request(self.service_name(service), Ping(), timeout=1)
                return True
            return False

        wait_until(f"{service} answers", answers)

    def log(self, service: str) -> str:
        """Return the end of a service's log."""
        return (self.home.logs / f"{service}.log").read_text()[-4000:]

    def kill(self, service: str) -> None:
        """SIGKILL a service."""
        self.processes[service].kill()
        self.processes[service].wait()

    def kill_and_restart(self, service: str) -> None:
        """SIGKILL a service and start it again at once."""
        self.kill(service)
        self.start(service)

    def submit(self, **spec: Any) -> str:
        """Submit a run, by default of the stress worker; return its id."""
        spec = {"worker": "stress", "resources": {"cpus": 0.5, "memory_mb": 128}, **spec}
        return self.bus.request("scheduler", Submit(spec=RunSpec.model_validate(spec)), timeout=20).run

    def show(self, run: str) -> RunDetail:
        """Return the scheduler's details of a run."""
        return self.bus.request("scheduler", Show(run=run), timeout=20)

    def state(self, run: str) -> RunState:
        """Return the state of a run."""
        return self.show(run).run

    def cancel(self, run: str) -> None:
        """Cancel a run."""
        self.bus.request("scheduler", Cancel(run=run))

    def summary(self, run: str) -> RunSummary | None:
        """Return telemetry's summary of a run."""
        found = self.bus.request("telemetry", Summaries(runs=[run]), timeout=20).summaries
        return found[0] if found else None

    def wait_state(self, run: str, *states: str, deadline_s: float = PATIENCE_S) -> RunState:
        """Wait until a run is in one of the given states."""

        def reached() -> RunState | None:
            state = self.state(run)
            return state if state.state in states else None

        return wait_until(f"run {run} is {' or '.join(states)}", reached, deadline_s)

    def wait_final(self, run: str, deadline_s: float = PATIENCE_S) -> RunState:
        """Wait until a run has ended."""
        return self.wait_state(run, "succeeded", "failed", "cancelled", "lost", deadline_s=deadline_s)

    def wait_stored(self, run: str, deadline_s: float = PATIENCE_S) -> RunSummary:
        """Wait until every line of an ended run is stored."""

        def complete() -> RunSummary | None:
            summary = self.summary(run)
            return summary if summary is not None and summary.complete else None

        return wait_until(f"run {run} is stored whole", complete, deadline_s)

    # ── files on disk ───────────────────────────────────────────────────────────────────────────

    def journal(self, run: str, attempt: int = 1) -> Path:
        """Return the path of an attempt's journal."""
        return self.home.runs / run / str(attempt) / "journal.jsonl"

    def stored_lines(self, run: str, kind: str = "journal", attempt: int = 1) -> list[tuple[int, str | bytes]]:
        """Return the line numbers and lines of a stream, read from the database."""
        with contextlib.closing(sqlite3.connect(self.home.telemetry_store)) as store:
            (stream,) = store.execute(
                "select id from streams where run = ? and attempt = ? and kind = ?", (run, attempt, kind)
            ).fetchone()
            table = "events" if kind == "journal" else "logs"
            return store.execute(
                f"select id & 1099511627775, line from {table} where id >> 40 = ? order by id", (stream,)
            ).fetchall()

    def assert_stored_exactly_once(self, run: str) -> int:
        """Compare the journal on disk with the store, line by line; return the number of events except heartbeats."""
        lines = self.journal(run).read_bytes().decode().splitlines()
        stored = self.stored_lines(run)
        assert [number for number, _ in stored] == list(range(len(lines)))
        assert [line for _, line in stored] == lines
        return sum('"event":"heartbeat"' not in line for line in lines)

    # ── shutdown ────────────────────────────────────────────────────────────────────────────────

    def close(self) -> None:
        """Stop the services in reverse order; fail if one does not end on SIGTERM."""
        if self._bus is not None:
            self._bus.close()
            self._bus = None
        for service in reversed(self.services):
            process = self.processes.pop(service, None)
            if process is not None and process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.terminate()
                try:
                    process.wait(30)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
                    raise AssertionError(f"{service} did not end on SIGTERM:\n{self.log(service)}") from None

    def leftovers(self) -> list[str]:
        """Return what is left of this home: processes, sockets, files in /dev/shm."""
        home = str(self.home.path)
        found = []
        for process in psutil.process_iter(["pid", "cmdline", "status"]):
            with contextlib.suppress(psutil.Error):
                if process.pid == os.getpid() or process.info["status"] == psutil.STATUS_ZOMBIE:
                    continue
                marks = " ".join(process.info["cmdline"] or []).rstrip()
                if home in marks or home in str(process.environ().get("MOSAIC_ATTEMPT_MARK", "")):
                    found.append(f"process {process.pid}: {marks}")
        found += [f"socket {path}" for path in self.home.sockets.glob("*.sock")]
        if self.home.frames.exists():
            found += [f"shared memory {path}" for path in (self.home.frames, *self.home.frames.rglob("*"))]
        return found
