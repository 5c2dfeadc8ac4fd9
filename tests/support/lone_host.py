"""A real supervisor with a real broker and real workers. Bus clients stand in for the scheduler and telemetry."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import threading
import time
from typing import TYPE_CHECKING, Any

import psutil
from stack import HOST, PATIENCE_S, Stack, wait_until
from ulid import ULID

from mosaic_bus import BusClient, topics
from mosaic_bus.commands import Place, Resend
from mosaic_bus.messages import (
    AttemptReport,
    Batch,
    HostState,
    Position,
    RunSpec,
    StoredPosition,
    StoredPositions,
    StreamTails,
)
from mosaic_services.attempt_folder import AttemptFolder, AttemptKey

if TYPE_CHECKING:
    from pathlib import Path

    from mosaic_bus.commands import Command
    from mosaic_bus.messages import Checkpoint

__all__ = ["SUPERVISOR", "Host", "StandInStore"]

SUPERVISOR = f"supervisor.{HOST}"
Key = tuple[str, int, str]


class StandInStore(threading.Thread):
    """Stands in for telemetry: stores batches in order, requests missing ones, reports its positions."""

    def __init__(self, stack: Stack) -> None:
        super().__init__(daemon=True)
        self.address = stack.home.address()
        self.lines: dict[Key, list[bytes]] = {}
        self.positions: dict[Key, Position] = {}
        self.known: dict[Key, int] = {}
        self.live: dict[Key, list[int]] = {}
        self.hosts: list[HostState] = []
        self.drop_live = 0
        self.storing = True
        self.away = False  # True: ignores everything but host states.
        self.ended: set[Key] = set()
        self._done = threading.Event()

    def run(self) -> None:
        asyncio.run(self._work())

    async def _work(self) -> None:
        async with (
            BusClient(self.address) as bus,
            bus.subscribe("journal.", "log.", "repair.", "streams.", topics.HOST_STATES) as heard,
        ):
            asked_at = reported_at = 0.0
            while not self._done.is_set():
                message = await heard.next(0.05)
                moved = message is not None and self._take(message.topic, message.payload, message.buffers)
                if self.away:
                    continue
                if moved or time.monotonic() - reported_at > 0.2:
                    reported_at = time.monotonic()
                    positions = [
                        StoredPosition(
                            run=run,
                            attempt=attempt,
                            kind=kind,
                            stored=position,
                            final=self.has_all_of((run, attempt, kind)),
                        )
                        for (run, attempt, kind), position in self.positions.items()
                    ]
                    bus.publish(topics.STORED, StoredPositions(storing=self.storing, positions=positions))
                if time.monotonic() - asked_at > 0.3:
                    asked_at = time.monotonic()
                    for (run, attempt, kind), position in self.positions.items():
                        if position.number < self.known[run, attempt, kind]:
                            ask = Resend(run=run, attempt=attempt, kind=kind, **position.model_dump())
                            with contextlib.suppress(Exception):
                                await bus.request(SUPERVISOR, ask, timeout=0.5)

    def _take(self, topic: str, payload: dict[str, Any], buffers: tuple[bytes, ...]) -> bool:
        if topic == topics.host_state(HOST):
            self.hosts.append(HostState.model_validate(payload))
        elif self.away:
            return False
        elif topic == topics.streams(HOST):
            for tail in StreamTails.model_validate(payload).tails:
                key = (tail.run, tail.attempt, tail.kind)
                self.positions.setdefault(key, Position())
                self.known[key] = max(self.known.get(key, 0), tail.sent.number)
                if tail.final:
                    self.ended.add(key)
        elif topic.startswith(("journal.", "log.", "repair.")):
            return self._take_batch(Batch.model_validate(payload), buffers[0], live=not topic.startswith("repair."))
        return False

    def _take_batch(self, batch: Batch, data: bytes, *, live: bool) -> bool:
        key = (batch.run, batch.attempt, batch.kind)
        if live:
            self.live.setdefault(key, []).extend(range(batch.first, batch.first + batch.count))
            if self.drop_live and batch.kind == "journal":
                self.drop_live -= 1
                return False
        at = self.positions.setdefault(key, Position())
        self.known[key] = max(self.known.get(key, 0), batch.first + batch.count)
        if batch.first <= at.number < batch.first + batch.count:
            self.lines.setdefault(key, []).extend(data.split(b"\n")[at.number - batch.first : -1])
            self.positions[key] = Position(number=batch.first + batch.count, offset=batch.end)
            return True
        return False

    def has_all_of(self, key: Key) -> bool:
        """Whether a stream has ended and every line is stored."""
        return key in self.ended and self.positions[key].number >= self.known[key]

    def attempt(self, run: str, attempt: int = 1) -> AttemptReport | None:
        """Return the newest report of an attempt."""
        if not self.hosts:
            return None
        found = [each for each in self.hosts[-1].attempts if (each.run, each.attempt) == (run, attempt)]
        return found[0] if found else None

    def close(self) -> None:
        self._done.set()
        self.join()


class Host:
    """A broker, a supervisor, and a stand-in for telemetry."""

    def __init__(self, folder: Path, gpus: int = 0, **environ: str) -> None:
        self.stack = Stack(folder, gpus=gpus, environ=environ)
        self.home = self.stack.home
        self.start("broker")
        self.store = StandInStore(self.stack)
        self.store.start()
        self.start("supervisor")

    def start(self, service: str) -> None:
        self.stack.start(service)
        self.stack.wait_for(service)

    def ask(self, command: Command[Any], timeout: float = 20) -> Any:
        return self.stack.bus.request(SUPERVISOR, command, timeout=timeout)

    def place(
        self,
        run: str | None = None,
        attempt: int = 1,
        *,
        grace_s: float = 5.0,
        limits: dict[str, float] | None = None,
        resources: dict[str, float] | None = None,
        gpus: dict[str, float] | None = None,
        resume: Checkpoint | None = None,
        **config: Any,
    ) -> str:
        run = run or str(ULID())
        asked = {"limits": limits or {}, "resources": resources or {}}
        spec = RunSpec.model_validate({"worker": "stress", "config": config, "grace_s": grace_s, **asked})
        self.ask(Place(run=run, attempt=attempt, run_name="a test", spec=spec, gpus=gpus or {}, resume=resume))
        return run

    def phase(self, run: str, attempt: int = 1) -> str | None:
        report = self.store.attempt(run, attempt)
        return report.phase if report else None

    def wait_running(self, run: str) -> dict[str, Any]:
        """Wait until an attempt is running; return the record of its run host."""
        wait_until("running", lambda: self.phase(run) == "running")
        return self.host_record(run)

    def host_record(self, run: str) -> dict[str, Any]:
        found = AttemptFolder(self.home, AttemptKey(run, 1)).host()
        assert found is not None
        return found

    def wait_ended(self, run: str, deadline_s: float = PATIENCE_S, attempt: int = 1) -> AttemptReport:
        wait_until("ended", lambda: self.phase(run, attempt) == "ended", deadline_s)
        report = self.store.attempt(run, attempt)
        assert report is not None
        assert report.exit is not None
        return report

    def wait_stored(self, run: str) -> list[bytes]:
        """Wait until the store has every line once, in order; return the lines."""
        wait_until(
            "stored whole", lambda: all(self.store.has_all_of((run, 1, kind)) for kind in ("journal", "log")), 30
        )
        lines = self.journal(run).read_bytes().split(b"\n")[:-1]
        assert self.store.lines.get((run, 1, "journal"), []) == lines
        return lines

    def journal(self, run: str) -> Path:
        return self.home.runs / run / "1" / "journal.jsonl"

    def events(self, run: str, attempt: int = 1) -> list[dict[str, Any]]:
        journal = self.home.runs / run / str(attempt) / "journal.jsonl"
        return [json.loads(line) for line in journal.read_text().splitlines()]

    def steps(self, run: str, attempt: int = 1) -> list[int]:
        return [event["step"] for event in self.events(run, attempt) if event["event"] == "step"]

    def worker(self, run: str) -> psutil.Process:
        (worker,) = psutil.Process(self.host_record(run)["pid"]).children()
        return worker

    def processes(self) -> list[str]:
        """Return the processes of this home, other than the services."""
        services = {process.pid for process in self.stack.processes.values()}
        left = [each for each in self.stack.leftovers() if each.startswith("process")]
        return [each for each in left if not any(f"process {pid}:" in each for pid in services)]

    def close(self) -> None:
        # Stop the supervisor first: it waits until the store has every line.
        supervisor = self.stack.processes["supervisor"]
        supervisor.terminate()
        supervisor.wait(30)
        self.store.close()
        self.stack.close()
        left = self.processes()
        for each in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(each.split()[1].rstrip(":")), signal.SIGKILL)
        assert not left
