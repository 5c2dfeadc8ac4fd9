"""Plays one experiment: carries events to its state machine, and the machine's instructions out."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING, Any

from mosaic_bus import topics
from mosaic_bus.client import Follower
from mosaic_bus.commands import Cancel, Events, Submit
from mosaic_bus.errors import BusError, CommandRefusedError
from mosaic_bus.logs import Logger
from mosaic_bus.messages import ExperimentStateName
from mosaic_bus.refusals import RefusalCode
from mosaic_services.experiments.provenance import Found, complete
from mosaic_services.operator import events
from mosaic_services.operator import instructions as todo

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from pathlib import Path

    from mosaic_bus.client import BusClient
    from mosaic_bus.messages import ExperimentState
    from mosaic_services.experiments.folder import ExperimentFolder
    from mosaic_services.operator.machine import ExperimentMachine

__all__ = ["Playing"]

_log = Logger()

_TICK_S = 1.0
_ANSWER_S = 10.0
_RETRY_S = 1.0
# Interval of publishing: of a change at most, and without one at least.
_PUBLISH_S = 0.3
_REPEAT_S = 5.0
# Events per question; a page is also limited in bytes by telemetry.
_PAGE = 5000
# Refusals that pass by themselves.
_FOR_NOW = frozenset({RefusalCode.STORE_UNAVAILABLE, RefusalCode.BUSY, RefusalCode.INTERNAL})


class Playing:
    """One experiment that is being played. `run` returns when it is over and everything is written."""

    def __init__(
        self,
        bus: BusClient,
        folder: ExperimentFolder,
        machine: ExperimentMachine,
        spawn: Callable[[Coroutine[Any, Any, None], str], None],
        epoch: int,
        runs: Path,
        found: Found | None = None,
    ) -> None:
        self.folder = folder
        self.machine = machine
        self.saved = asyncio.Event()
        self.failure = ""
        self._bus = bus
        self._spawn = spawn
        self._runs = runs
        self._versions = epoch << 32
        self._queue: asyncio.Queue[tuple[todo.Instruction, dict[str, Any]]] = asyncio.Queue()
        self._over = asyncio.Event()
        self._published = (-1, 0.0)
        # What shards report besides episodes.
        self._found = found or Found()

    @property
    def state(self) -> ExperimentState:
        """The experiment as it is now. It has not ended before its files are written."""
        state = self._decided
        if state.state.final and not self._over.is_set():
            return state.model_copy(update={"state": ExperimentStateName.RUNNING, "ended_at": None})
        return state

    @property
    def _decided(self) -> ExperimentState:
        # One more once it is over: a reader must see that it differs from what was shown before.
        version = self._versions + self.machine.version + self._over.is_set()
        return self.machine.render(str(self.folder.path), version)

    def feed(self, event: events.Event) -> None:
        """Pass an event to the machine and carry out its instructions."""
        self.apply(self.machine.handle(event))

    def apply(self, decided: list[todo.Instruction]) -> None:
        """Carry out instructions, in order. What is saved is the state as it is now, and not as it will be then."""
        for instruction in decided:
            self._queue.put_nowait((instruction, self._document() if isinstance(instruction, todo.Save) else {}))

    def _document(self) -> dict[str, Any]:
        return {
            "progress": self.machine.progress.model_dump(mode="json"),
            "summary": self._decided.model_dump(mode="json"),
            "found": self._found.model_dump(mode="json"),
        }

    async def run(self) -> None:
        """Play until the experiment has ended."""
        follower = Follower(self._bus, group=self.machine.plan["group"], hosts=False)
        await follower.start()
        tasks = [asyncio.create_task(each) for each in (self._follow(follower), self._publish_changes())]
        tasks.append(asyncio.create_task(self._work()))
        try:
            # The work ends with the experiment, the others never: one that ends has failed, and so has this.
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                if task.done():
                    task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await follower.close()
        self.publish()

    async def _work(self) -> None:
        while not self._over.is_set():
            instruction, document = await self._queue.get()
            await self._carry_out(instruction, document)

    async def _follow(self, follower: Follower) -> None:
        revision = 0
        while True:
            changes = await follower.wait(revision, _TICK_S)
            revision = changes.revision
            for run in changes.runs:
                if (state := follower.view.runs.get(run)) is not None:
                    self.feed(events.RunSeen(time.time(), state, follower.view.summaries.get(run)))
            self.feed(events.Tick(time.time()))

    async def _publish_changes(self) -> None:
        while True:
            version, at = self._published
            if self.machine.version != version or time.monotonic() - at > _REPEAT_S:
                self.publish()
            await asyncio.sleep(_PUBLISH_S)

    def publish(self) -> None:
        """Publish the state."""
        self._published = (self.machine.version, time.monotonic())
        self._bus.publish(topics.experiment_state(self.folder.name), self.state)

    # ── instructions ────────────────────────────────────────────────────────────────────────────

    async def _carry_out(self, instruction: todo.Instruction, document: dict[str, Any]) -> None:
        match instruction:
            case todo.Append(lines=lines):
                await self._write(lambda: self.folder.append(lines))
            case todo.Save():
                await self._write(lambda: self.folder.write_state(document))
                self.saved.set()
            case todo.Submit():
                self._spawn(self._submit(instruction), "submit")
            case todo.Cancel():
                self._spawn(self._cancel(instruction), "cancel")
            case todo.Collect():
                self._spawn(self._collect(instruction), "collect")
            case todo.Finish():
                await self._write(self._finish)
                self._over.set()
            case _:
                raise TypeError(f"no such instruction: {instruction!r}")

    async def _write(self, write: Callable[[], None]) -> None:
        """Write a file, as often as it takes: with a full disk, the experiment waits for room."""
        while True:
            try:
                await asyncio.to_thread(write)
            except OSError as error:
                self.failure = f"{self.folder.path}: {error.strerror or error}"
                _log.warning("cannot write", experiment=self.folder.name, reason=str(error))
                await asyncio.sleep(_RETRY_S)
            else:
                self.failure = ""
                return

    def _finish(self) -> None:
        self.folder.sort()
        self._found.videos = self.folder.keep_videos(self._found.videos)
        if self.machine.plan["steps"]:
            shards = self.machine.progress.shards
            self.folder.keep_steps(
                path.parent for each in shards for path in (self._runs / each.run).glob("*/steps.jsonl")
            )
        self.folder.write_plan(complete(self.machine.plan, self.machine.records, self._decided, self._found))
        self.folder.write_state(self._document())

    async def _submit(self, wanted: todo.Submit) -> None:
        while not self._over.is_set():
            if self.machine.progress.state.value == "stopping":
                self.feed(events.Refused(time.time(), wanted.run, "the experiment stops"))
                return
            try:
                await self._bus.request("scheduler", Submit(run=wanted.run, spec=wanted.spec), timeout=_ANSWER_S)
            except CommandRefusedError as error:
                if error.code not in _FOR_NOW:
                    _log.warning("shard refused", experiment=self.folder.name, code=error.code, reason=error.message)
                    self.feed(events.Refused(time.time(), wanted.run, error.message))
                    return
            except BusError as error:
                _log.debug("no answer", reason=str(error))
            else:
                self.feed(events.Acknowledged(time.time(), wanted.run))
                return
            await asyncio.sleep(_RETRY_S)

    async def _cancel(self, wanted: todo.Cancel) -> None:
        """Cancel a shard, until it has ended: it may reach the scheduler after the first try."""
        shard = next((each for each in self.machine.progress.shards if each.run == wanted.run), None)
        while shard is not None and not shard.settled and not self._over.is_set():
            with contextlib.suppress(BusError):
                await self._bus.request("scheduler", Cancel(run=wanted.run, reason=wanted.reason), timeout=_ANSWER_S)
            await asyncio.sleep(_RETRY_S)

    async def _collect(self, wanted: todo.Collect) -> None:
        lines: list[str] = []
        position: int | None = wanted.start
        end = wanted.start
        host = next((each.host for each in self.machine.progress.shards if each.run == wanted.run), None)
        while position is not None and not self._over.is_set():
            command = Events(
                run=wanted.run,
                attempt=max(1, wanted.attempt),
                kinds=["episode", "run_started", "artifact"],
                start=position,
                limit=_PAGE,
            )
            try:
                page = await self._bus.request("telemetry", command, timeout=_ANSWER_S)
            except CommandRefusedError as error:
                if error.code == RefusalCode.UNKNOWN_RUN:  # it has written nothing
                    break
                _log.warning("records refused", run=wanted.run, reason=error.message)
                await asyncio.sleep(_RETRY_S)
                continue
            except BusError as error:
                _log.debug("no answer", reason=str(error))
                await asyncio.sleep(_RETRY_S)
                continue
            for row in page.rows:
                if row["event"] == "episode":
                    lines.append(row["line"])
                else:
                    self._found.take(row["line"], host, self._runs / wanted.run / str(max(1, wanted.attempt)))
                end = row["number"] + 1
            position = page.next
        self.feed(
            events.Collected(time.time(), wanted.run, wanted.attempt, tuple(lines), end, whole=wanted.whole),
        )
