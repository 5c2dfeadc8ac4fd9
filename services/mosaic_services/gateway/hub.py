"""What all pages share: one live view, one ear for commits, and one question for equal wishes."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic import ValidationError

from mosaic_bus import topics
from mosaic_bus.client.follower import Follower
from mosaic_bus.commands import Events, Logs, Series
from mosaic_bus.errors import CommandRefusedError
from mosaic_bus.messages import BuildProgress, ExperimentState, ExperimentStateName, ServiceState, StoredPositions
from mosaic_bus.refusals import RefusalCode, RefusalDetails
from mosaic_services.gateway.frames import Frames

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Hashable

    from mosaic_bus.client import BusClient
    from mosaic_bus.client.live import LiveView
    from mosaic_bus.commands import Rows, RunCurves

__all__ = ["Hub", "Wish"]

FINAL_RUNS = 1000
"""Ended runs in the live view. Older ones are asked for with `runs`."""
TICK_S = 0.25
"""Interval at which commits are passed on: curves and logs move four times a second."""
_ANSWER_S = 10.0
_QUEUE = 10_000


class Wish(NamedTuple):
    """The curves that a page wants of a run."""

    run: str
    metrics: tuple[str, ...]
    agent: str | None
    max_points: int


class Hub:
    """Listens to the bus once for all pages."""

    def __init__(self, bus: BusClient) -> None:
        self.bus = bus
        self.follower = Follower(bus, final_limit=FINAL_RUNS)
        self.frames = Frames(bus, self.host_of)
        self.services: dict[str, ServiceState] = {}
        self.builds: dict[str, BuildProgress] = {}
        # Those that were heard of: an experiment is published while it is played, and when it ends.
        self.experiments: dict[str, ExperimentState] = {}
        # Counts changes of services, builds and experiments; the view counts those of runs and hosts.
        self.revision = 0
        self.pulls = 0
        self._pages: dict[object, Callable[[set[tuple[str, str]]], None]] = {}
        # Runs with new lines, by kind, and questions, both since the last tick; and all that are being answered.
        self._grown: set[tuple[str, str]] = set()
        self._asked: dict[Hashable, asyncio.Task[Any]] = {}
        self._asking: set[asyncio.Task[Any]] = set()

    @property
    def view(self) -> LiveView:
        """Runs, summaries and hosts."""
        return self.follower.view

    @property
    def silent(self) -> dict[str, float]:
        """Services that were not heard for some seconds."""
        return self.follower.silent()

    def host_of(self, run: str) -> str | None:
        """Return the host of a run that has not ended."""
        state = self.view.runs.get(run)
        return None if state is None or state.state.final else state.host

    def has_ended(self, run: str) -> bool:
        """Whether a run has ended, or is gone."""
        state = self.view.runs.get(run)
        return state is None or state.state.final

    async def start(self) -> None:
        """Subscribe. The view fills when the scheduler answers."""
        self._subscription = self.bus.subscribe(
            topics.STORED, topics.SERVICE_STATES, topics.EXPERIMENT_STATES, "build.", max_queue=_QUEUE
        )
        await self.follower.start()

    async def close(self) -> None:
        """Let go of everything."""
        self.frames.close()
        for task in self._asking:
            task.cancel()
        await self.follower.close()

    def join(self, page: object, tell: Callable[[set[tuple[str, str]]], None]) -> None:
        """Tell a page at every tick which journals and logs have grown."""
        self._pages[page] = tell

    def leave(self, page: object) -> None:
        """Tell it no more."""
        self._pages.pop(page, None)

    async def listen(self) -> None:
        """Take messages in, for ever."""
        async for message in self._subscription:
            try:
                if message.topic == topics.STORED:
                    self._take_stored(StoredPositions.model_validate(message.payload))
                elif message.topic.startswith(topics.SERVICE_STATES):
                    state = ServiceState.model_validate(message.payload)
                    self.services[state.service] = state
                    self.revision += 1
                elif message.topic.startswith(topics.EXPERIMENT_STATES):
                    experiment = ExperimentState.model_validate(message.payload)
                    self.experiments[experiment.experiment] = experiment
                    if experiment.state is ExperimentStateName.DELETED:
                        del self.experiments[experiment.experiment]
                    self.revision += 1
                else:
                    progress = BuildProgress.model_validate(message.payload)
                    self.builds[f"{progress.host}/{progress.worker}/{progress.profile}"] = progress
                    self.revision += 1
            except ValidationError:
                self.bus.counters["bad"] += 1

    def _take_stored(self, stored: StoredPositions) -> None:
        for each in stored.positions:
            self._grown.add((each.run, each.kind))

    async def tick(self) -> None:
        """Tell all pages, four times a second, what has grown; equal questions of a tick are asked once."""
        while True:
            began = time.monotonic()
            grown, self._grown = self._grown, set()
            self._asked = {}  # an answer that is on its way may lack what was stored since it was asked for
            for tell in list(self._pages.values()):
                tell(grown)
            # Raises what ended the follower, and the gateway with it: else its pages stay as they are, without a word.
            await self.follower.wait(self.view.revision, 0)
            await asyncio.sleep(max(0.0, TICK_S - (time.monotonic() - began)))

    # ── asking ──────────────────────────────────────────────────────────────────────────────────

    async def curves(self, wish: Wish, since: tuple[int, ...]) -> RunCurves:
        """Ask for the curves of a run after a position."""
        command = Series(
            runs=[wish.run],
            metrics=list(wish.metrics),
            agent=wish.agent,
            max_points=wish.max_points,
            since={wish.run: list(since)} if since else {},
        )
        answer = await self._once((wish, since), lambda: self.bus.request("telemetry", command, timeout=_ANSWER_S))
        if not answer.runs:  # only lines of its log are stored so far
            said = f"no event of run {wish.run} is stored yet"
            raise CommandRefusedError(RefusalCode.UNKNOWN_RUN, said, RefusalDetails(value=wish.run))
        return answer.runs[0]  # type: ignore[no-any-return]

    async def log(self, run: str, attempt: int | None, start: int, limit: int) -> Rows:
        """Ask for lines of a log."""
        command = Logs(run=run, attempt=attempt, start=start, limit=limit)
        key = ("log", run, attempt, start, limit)
        return await self._once(key, lambda: self.bus.request("telemetry", command, timeout=_ANSWER_S))  # type: ignore[no-any-return]

    async def events(self, run: str, attempt: int | None, kinds: tuple[str, ...], start: int, limit: int) -> Rows:
        """Ask for events of an attempt."""
        command = Events(run=run, attempt=attempt, kinds=list(kinds), start=start, limit=limit)
        key = ("events", run, attempt, kinds, start, limit)
        return await self._once(key, lambda: self.bus.request("telemetry", command, timeout=_ANSWER_S))  # type: ignore[no-any-return]

    async def _once(self, key: Hashable, ask: Callable[[], Awaitable[Any]]) -> Any:
        """Ask, or share the answer to the same question of this tick."""
        task = self._asked.get(key)
        if task is None:
            self.pulls += 1

            async def asking() -> Any:
                return await ask()

            task = self._asked[key] = asyncio.create_task(asking())
            self._asking.add(task)
            task.add_done_callback(self._answered)
        return await asyncio.shield(task)

    def _answered(self, task: asyncio.Task[Any]) -> None:
        self._asking.discard(task)
        if not task.cancelled():
            task.exception()  # the page that asked may be gone; then nobody else looks at it
