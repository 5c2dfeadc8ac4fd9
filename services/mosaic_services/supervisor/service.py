"""The supervisor's shell: carries out what its machine decides, and tells the bus what happens on this host."""

from __future__ import annotations

import asyncio
import os
import re
import time
from typing import TYPE_CHECKING, Any

import psutil
import structlog
from pydantic import ValidationError

from mosaic_bus import topics
from mosaic_bus.commands import Ack, Describe, Description, Detach, Forget, Place, Resend, Stop
from mosaic_bus.errors import CommandRefusedError
from mosaic_bus.messages import (
    AttemptPhase,
    AttemptReport,
    BuildProgress,
    FailureCategory,
    HostState,
    Model,
    Position,
    Resources,
    StoredPositions,
    StreamId,
    Usage,
)
from mosaic_bus.service import Service
from mosaic_services.supervisor import machine, processes
from mosaic_services.supervisor.bridge import Bridge
from mosaic_services.supervisor.builder import Builder, BuildFailedError
from mosaic_services.supervisor.folder import AttemptFolder, AttemptKey

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterable

    from mosaic_bus.client import Subscription
    from mosaic_bus.envelope import Message
    from mosaic_bus.home import Home
    from mosaic_bus.messages import RunSpec
    from mosaic_services.supervisor.bridge import Stream

__all__ = ["SupervisorService"]

_log = structlog.get_logger()

_IDLE_S = 0.01
_QUIET_S = 0.05
_WATCH_S = 0.02
# While we are told of a run host's end, its attempt is looked at only so often.
_TOLD_S = 1.0
# Otherwise an end is looked for at every look, the death of a run host, which costs more to find out, only so often.
_ALIVE_S = 0.25
_USAGE_S = 2.0
_SCAN_S = 5.0
_START_DEADLINE_S = 10.0
# At the end of the supervisor: how long to wait for the last lines to be stored.
_FLUSH_S = 5.0
# What can stand in a topic and name a folder.
_RUN = re.compile(r"[0-9A-Za-z_-]{1,64}")


class Tracked:
    """One attempt with what the shell needs to look after it."""

    def __init__(self, folder: AttemptFolder, name: str, spec: RunSpec) -> None:
        self.folder = folder
        self.name = name
        self.spec = spec
        self.exit_path = folder.exit_path()
        self.streams: list[Stream] = []
        self.popen: subprocess.Popen[bytes] | None = None
        self.start_deadline = 0.0
        self.host: dict[str, Any] | None = None
        self.alive_at = 0.0
        # Readable when the run host ends; while there is one, there is no need to look every few milliseconds.
        self.end: int | None = None
        self.look_at = 0.0
        self.usage = Usage()


class SupervisorService(Service):
    """Runs attempts on one host."""

    def __init__(self, home: Home, bus_address: str | None, host: str, total: Resources) -> None:
        super().__init__(topics.supervisor(host), home, bus_address)
        self.lock = home.lock("supervisor")
        self.host = host
        self.total = total
        self.machine = machine.Machine()
        self.tracked: dict[AttemptKey, Tracked] = {}
        self.builder = Builder(home, host, self._tell_build)
        self.bridge = Bridge(host, self._publish, time.monotonic())
        self.meter = processes.UsageMeter()
        self.detached = False
        self._children: set[subprocess.Popen[bytes]] = set()
        self._bad_reports = 0
        self._troubled: set[AttemptKey] = set()
        self._changed = asyncio.Event()
        self._tails_changed = asyncio.Event()
        self.handle(Place, self._on_place)
        self.handle(Stop, self._on_stop)
        self.handle(Forget, self._on_forget)
        self.handle(Resend, self._on_resend)
        self.handle(Describe, self._on_describe)
        self.handle(Detach, self._on_detach)

    async def start(self) -> None:
        """Adopt what an earlier supervisor left, then work."""
        await asyncio.to_thread(self.builder.scan)
        heard = self.bus.subscribe(topics.STORED)
        await self.bus.synced()
        for folder in AttemptFolder.active(self.home):
            try:
                await self._adopt(folder)
            except (ValueError, OSError):
                # One unreadable folder must not keep the others from being looked after.
                _log.exception("cannot adopt", attempt=str(folder.key), folder=str(folder.path))
        self.spawn(self._listen(heard), "listen")
        self.spawn(self._pump(), "pump")
        self.spawn(self._watch(), "watch")
        self.spawn(self._report(), "report")
        self.spawn(self._announce_tails(), "tails")
        self.spawn(self._measure(), "measure")
        self.spawn(self._scan(), "scan")

    async def finish(self) -> None:
        """Stop every attempt, unless told to leave them; see that what they wrote is stored."""
        await self.builder.close()
        if self.detached or self._failure is not None:
            # A supervisor that fails does not take the runs with it: the next one adopts them.
            return
        for key in list(self.machine.attempts):
            await self._do(machine.StopAsked(key, "the supervisor was stopped", time.time()))
        live = [each for key, each in self.tracked.items() if not self._is_ended(key)]
        deadline = time.monotonic() + max((each.spec.grace_s for each in live), default=0) + 10
        while time.monotonic() < deadline and any(not self._is_ended(key) for key in self.tracked):
            await asyncio.sleep(_WATCH_S)
        deadline = time.monotonic() + _FLUSH_S
        while time.monotonic() < deadline and self.bridge.streams and self.bridge.store_is_alive(time.monotonic()):
            await asyncio.sleep(_WATCH_S)
        # Once more, so that the scheduler has heard how everything ended.
        self.bus.publish(topics.host_state(self.host), self._host_state())

    def counters(self) -> dict[str, int | float]:
        """What the bridge carried, and how much work there is."""
        carried: dict[str, int | float] = {f"bridge_{name}": count for name, count in self.bridge.counters.items()}
        return {
            **carried,
            "streams": len(self.bridge.streams),
            "attempts": len(self.tracked),
            "bad_reports": self._bad_reports,
        }

    # ── commands ────────────────────────────────────────────────────────────────────────────────

    async def _on_place(self, command: Place) -> Ack:
        if not _RUN.fullmatch(command.run) or command.attempt < 1:
            raise CommandRefusedError("invalid_arguments", f"{command.run!r}, {command.attempt}: not a run and attempt")
        key = AttemptKey(command.run, command.attempt)
        folder = AttemptFolder(self.home, key)
        await asyncio.to_thread(self.builder.get, command.spec.worker, command.spec.profile)
        # From here to the machine without a pause: the same attempt may be placed twice at the same time.
        if key in self.tracked:
            return Ack(note="already here")
        if folder.exit() is not None:
            raise CommandRefusedError(
                "already_ended", f"attempt {command.attempt} of {command.run} has ended here before"
            )
        folder.place(command.run_name, command.spec)
        self._track(folder, command.run_name, command.spec, adopted=False)
        await self._do(machine.Placed(key))
        return Ack()

    async def _on_stop(self, command: Stop) -> Ack:
        await self._do(machine.StopAsked(AttemptKey(command.run, command.attempt), command.reason, time.time()))
        return Ack()

    async def _on_forget(self, command: Forget) -> Ack:
        key = AttemptKey(command.run, command.attempt)
        if self._is_ended(key):
            self.tracked[key].folder.mark("forgotten")
        await self._do(machine.Forgotten(key))
        return Ack()

    async def _on_resend(self, command: Resend) -> Ack:
        stream = StreamId(run=command.run, attempt=command.attempt, kind=command.kind)
        if not self.bridge.resend(stream, Position(number=command.number, offset=command.offset)):
            raise CommandRefusedError("unknown_stream", f"{self.host} carries no {command.kind} of {command.run}")
        return Ack()

    async def _on_describe(self, command: Describe) -> Description:
        return await asyncio.to_thread(self.builder.describe, command.worker, command.profile)

    async def _on_detach(self, _: Detach) -> Ack:
        self.detached = True
        return Ack(note="runs will be left going")

    # ── attempts ────────────────────────────────────────────────────────────────────────────────

    def _track(self, folder: AttemptFolder, name: str, spec: RunSpec, *, adopted: bool) -> None:
        self.tracked[folder.key] = Tracked(folder, name, spec)
        if folder.is_marked("stored"):
            return
        for kind, path in (("journal", folder.journal), ("log", folder.log)):
            stream = StreamId(run=folder.key.run, attempt=folder.key.attempt, kind=kind)  # type: ignore[arg-type]
            opened = self.bridge.open(stream, str(path), time.monotonic(), adopted=adopted)
            self.tracked[folder.key].streams.append(opened)

    async def _adopt(self, folder: AttemptFolder) -> None:
        """Take over an attempt found on disk, wherever its life stands."""
        placed = folder.placed()
        if placed is None:
            folder.drop_note()
            return
        key = folder.key
        self._track(folder, *placed, adopted=True)
        _log.info("adopted", attempt=str(key))
        self.machine.attempts[key] = attempt = machine.Attempt()
        report, host = folder.exit(), folder.host()
        if report is not None:
            await self._do(machine.Exited(key, report))
        elif host is not None:
            self.tracked[key].host = host
            attempt.phase = AttemptPhase.STARTING  # Its first line, if it has written one, is noticed at once.
            if (reason := folder.stop_reason()) is not None:
                await self._do(machine.StopAsked(key, reason, time.time()))
        else:
            await self._obey(machine.Prepare(key))
        if folder.is_marked("forgotten"):
            await self._do(machine.Forgotten(key))
        if folder.is_marked("stored"):
            await self._do(machine.StreamsStored(key))

    async def _do(self, stimulus: machine.Stimulus) -> None:
        before = self.machine.attempts.get(stimulus.key)
        phase = before.phase if before else None
        for instruction in self.machine.handle(stimulus):
            await self._obey(instruction)
        after = self.machine.attempts.get(stimulus.key)
        if after is None or after.phase is not phase:
            self._changed.set()
        if self._is_ended(stimulus.key):
            self._end_streams(stimulus.key)

    def _is_ended(self, key: AttemptKey) -> bool:
        attempt = self.machine.attempts.get(key)
        return attempt is not None and attempt.phase is AttemptPhase.ENDED

    def _end_streams(self, key: AttemptKey) -> None:
        for stream in self.tracked[key].streams:
            stream.ended = True

    async def _obey(self, instruction: machine.Instruction) -> None:
        tracked = self.tracked[instruction.key]
        match instruction:
            case machine.Prepare(key):
                self.spawn(self._prepare(key, tracked), "prepare")
            case machine.Start():
                self._start(tracked)
            case machine.SignalStop(_, reason):
                if tracked.folder.stop_reason() is None:
                    tracked.folder.ask_to_stop(reason)
                if (host := tracked.folder.host()) is not None:
                    processes.stop_run_host(host)
            case machine.Sweep(key):
                self.spawn(self._sweep(key, tracked), "sweep")
            case machine.RecordEnd(_, report):
                try:
                    tracked.folder.end_without_start(report)
                except OSError as error:  # The scheduler hears of it all the same.
                    _log.warning("cannot record an end", attempt=str(instruction.key), reason=str(error))
            case machine.Release(key):
                tracked.folder.drop_note()
                del self.tracked[key]

    async def _prepare(self, key: AttemptKey, tracked: Tracked) -> None:
        try:
            environment = await self.builder.ensure(tracked.spec.worker, tracked.spec.profile)
            own = {
                "MOSAIC_RUN_ID": key.run,
                "MOSAIC_ATTEMPT": str(key.attempt),
                "MOSAIC_RUN_DIR": str(tracked.folder.path),
                processes.MARK: processes.mark_of(tracked.folder),
            }
            argv = environment.command("--config", str(tracked.folder.path / "worker.json"))
            tracked.folder.order(argv, {**environment.environ(), **own}, tracked.spec.grace_s)
        except (BuildFailedError, CommandRefusedError, OSError) as error:
            await self._do(machine.PrepareFailed(key, str(error), FailureCategory.INFRASTRUCTURE, time.time()))
        else:
            await self._do(machine.Prepared(key))

    def _start(self, tracked: Tracked) -> None:
        try:
            tracked.popen = processes.start_run_host(tracked.folder)
        except OSError as error:
            _log.warning("cannot start a run host", attempt=str(tracked.folder.key), reason=str(error))
            return  # It will be found missing.
        self._children.add(tracked.popen)
        tracked.start_deadline = time.monotonic() + _START_DEADLINE_S

    async def _sweep(self, key: AttemptKey, tracked: Tracked) -> None:
        killed = await asyncio.to_thread(processes.sweep, tracked.folder)
        _log.warning("swept", attempt=str(key), killed=killed)
        await self._do(machine.Swept(key, time.time()))

    async def _watch(self) -> None:
        """Notice what happens to attempts: first line, exit, death of a run host, everything stored."""
        while True:
            # Run hosts are our children, and are reaped even if nobody speaks of their attempt any more.
            self._children = {child for child in self._children if child.poll() is None}
            now = time.monotonic()
            for key, tracked in list(self.tracked.items()):
                if tracked.end is not None and now < tracked.look_at:
                    continue
                try:
                    await self._look_at(key, tracked)
                except (ValueError, OSError):
                    # A file that cannot be read or written stops this attempt's progress, not that of the others.
                    if key not in self._troubled:
                        self._troubled.add(key)
                        _log.exception("cannot look after", attempt=str(key), folder=str(tracked.folder.path))
            await asyncio.sleep(_WATCH_S)

    async def _look_at(self, key: AttemptKey, tracked: Tracked) -> None:
        attempt = self.machine.attempts.get(key)
        if attempt is None:
            return
        if tracked.popen is not None and tracked.popen.returncode is not None:
            tracked.popen = None
        if attempt.phase in (AttemptPhase.STARTING, AttemptPhase.RUNNING, AttemptPhase.STOPPING):
            await self._look_at_process(key, tracked, attempt)
        elif attempt.phase is AttemptPhase.ENDED and not attempt.stored:
            await self._look_at_streams(key, tracked)

    async def _look_at_process(self, key: AttemptKey, tracked: Tracked, attempt: machine.Attempt) -> None:
        folder = tracked.folder
        if tracked.host is None:
            tracked.host = folder.host()
            if tracked.host is not None and (reason := folder.stop_reason()) is not None:
                # A stop that came before the run host was up to hear it.
                await self._do(machine.StopAsked(key, reason, time.time()))
        if tracked.host is not None and tracked.end is None:
            self._listen_for_end(tracked, processes.open_end(tracked.host))
        if attempt.phase is AttemptPhase.STARTING and folder.journal.exists() and folder.journal.stat().st_size:
            await self._do(machine.JournalGrew(key))
        if attempt.phase is not AttemptPhase.STARTING:
            tracked.look_at = time.monotonic() + _TOLD_S
        # Liveness is read before the exit record: a run host writes it last, so if it is dead and there is
        # none, there never will be one.
        gone = self._is_gone(tracked)
        if os.path.exists(tracked.exit_path):  # noqa: PTH110 - asked fifty times a second for each attempt
            report = folder.exit()
            if report is not None:
                await self._do(machine.Exited(key, report))
        elif gone:
            await self._do(machine.RunHostGone(key))

    @staticmethod
    def _listen_for_end(tracked: Tracked, end: int | None) -> None:
        if end is None:
            return

        def ended() -> None:
            loop.remove_reader(end)
            os.close(end)
            tracked.end = None

        loop = asyncio.get_running_loop()
        loop.add_reader(end, ended)
        tracked.end = end

    @staticmethod
    def _is_gone(tracked: Tracked) -> bool:
        now = time.monotonic()
        if tracked.host is None:
            return tracked.popen is None and now >= tracked.start_deadline
        if now - tracked.alive_at < _ALIVE_S:
            return False
        tracked.alive_at = now
        return not processes.is_alive(tracked.host)

    async def _look_at_streams(self, key: AttemptKey, tracked: Tracked) -> None:
        unconfirmed = any(stream.drained and not stream.confirmed for stream in tracked.streams)
        if unconfirmed and self.bridge.store_is_alive(time.monotonic()):
            self._tails_changed.set()
        if all(stream.is_stored for stream in tracked.streams):
            tracked.folder.mark("stored")
            for stream in tracked.streams:
                self.bridge.close(stream.id)
            tracked.streams = []
            await self._do(machine.StreamsStored(key))

    # ── telling and hearing ─────────────────────────────────────────────────────────────────────

    def _publish(self, topic: str, body: Model, buffers: Iterable[bytes]) -> bool:
        return self.bus.publish(topic, body, buffers)

    def _tell_build(self, progress: BuildProgress) -> None:
        self.bus.publish(topics.build(self.host), progress)
        self._changed.set()

    async def _listen(self, heard: Subscription) -> None:
        async for message in heard:
            self._hear(message)

    def _hear(self, message: Message) -> None:
        if message.topic != topics.STORED:
            return
        try:
            report = StoredPositions.model_validate(message.payload)
            streams = [StreamId(run=at.run, attempt=at.attempt, kind=at.kind) for at in report.positions]
        except ValidationError as error:
            self._bad_reports += 1
            if self._bad_reports == 1:
                _log.warning("bad body", source=message.header.src, topic=message.topic, reason=str(error))
            return
        self.bridge.store_heard(time.monotonic(), storing=report.storing)
        for stream, at in zip(streams, report.positions, strict=True):
            self.bridge.set_stored(stream, at.stored, final=at.final)

    async def _pump(self) -> None:
        while True:
            moved = self.bridge.pump(time.monotonic())
            pause = _QUIET_S if self.bridge.is_quiet else _IDLE_S
            await asyncio.sleep(0 if moved else pause)

    async def _announce_tails(self) -> None:
        while True:
            if self.bridge.streams:
                self.bus.publish(topics.host_streams(self.host), self.bridge.tails())
            await _wait(self._tails_changed, 1.0, at_least=0.2)

    async def _report(self) -> None:
        while True:
            self.bus.publish(topics.host_state(self.host), self._host_state())
            await _wait(self._changed, 1.0, at_least=0.01)

    async def _measure(self) -> None:
        while True:
            roots = {
                key: each.host["pid"] for key, each in self.tracked.items() if each.host and not self._is_ended(key)
            }
            usages = await asyncio.to_thread(self.meter.measure, roots, time.monotonic())
            for key, usage in usages.items():
                if key in self.tracked:
                    self.tracked[key].usage = usage
            await asyncio.sleep(_USAGE_S)

    async def _scan(self) -> None:
        while True:
            await asyncio.sleep(_SCAN_S)
            await asyncio.to_thread(self.builder.scan)

    def _host_state(self) -> HostState:
        return HostState(
            host=self.host,
            total=self.total,
            environments=self.builder.statuses(),
            attempts=[self._attempt_report(key, tracked) for key, tracked in self.tracked.items()],
            cpu_percent=psutil.cpu_percent(),
            memory_used_mb=round(psutil.virtual_memory().used / 2**20, 1),
        )

    def _attempt_report(self, key: AttemptKey, tracked: Tracked) -> AttemptReport:
        attempt = self.machine.attempts[key]
        progress = self.builder.progress(tracked.spec.worker, tracked.spec.profile)
        detail = ""
        if attempt.phase is AttemptPhase.PREPARING and progress is not None:
            detail = f"{progress.step} {progress.percent:.0f} %"
        return AttemptReport(
            run=key.run,
            attempt=key.attempt,
            phase=attempt.phase,
            detail=detail,
            resources=tracked.spec.resources,
            started_at=tracked.host["started_at"] if tracked.host else None,
            exit=attempt.exit,
            usage=Usage() if attempt.phase is AttemptPhase.ENDED else tracked.usage,
        )


async def _wait(event: asyncio.Event, seconds: float, at_least: float) -> None:
    """Wait for an event, but neither longer than `seconds` nor shorter than `at_least`."""
    await asyncio.sleep(at_least)
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        pass
    event.clear()


def default_total() -> Resources:
    """What this machine has, less nothing: the scheduler places no more than that."""
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return Resources(cpus=float(cpus), memory_mb=int(psutil.virtual_memory().total / 2**20))
