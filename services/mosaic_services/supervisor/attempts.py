"""The attempts of a host: carries out what the machine decides."""

from __future__ import annotations

import asyncio
import errno
import math
import signal
import time
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

from mosaic_bus.commands import Forget, Place, Stop
from mosaic_bus.errors import CommandRefusedError
from mosaic_bus.logs import Logger
from mosaic_bus.messages import AttemptPhase, AttemptReport, FailureCategory, StreamId, Usage
from mosaic_bus.refusals import RefusalCode, RefusalDetails
from mosaic_services.attempt_folder import AttemptFolder, AttemptKey, layout
from mosaic_services.processes import is_alive
from mosaic_services.supervisor import channel, machine, run_hosts
from mosaic_services.supervisor.builder import BuildFailedError
from mosaic_services.supervisor.checkpoints import last_checkpoint
from mosaic_services.supervisor.frames import FASTLANE_DIR
from mosaic_services.supervisor.journal_watch import JournalWatch
from mosaic_services.supervisor.preparation import Preparation
from mosaic_services.supervisor.wakeup import WakeUp

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Coroutine

    from mosaic_services.environments import Environment
    from mosaic_services.home import StackHome
    from mosaic_services.supervisor.bridge import Bridge, Stream
    from mosaic_services.supervisor.builder import Builder
    from mosaic_services.supervisor.frames import Frames
    from mosaic_services.supervisor.templates import Templates

__all__ = ["Attempts"]

_log = Logger()

_START_DEADLINE_S = 10.0
_STOPS_REMEMBERED = 10_000
_DISK_FULL = (errno.ENOSPC, errno.EDQUOT)


class Tracked:
    """One attempt, with its streams, its environment and its run host."""

    def __init__(self, folder: AttemptFolder, placed: Place) -> None:
        self.folder = folder
        self.placed = placed
        self.spec = placed.spec
        self.gpus = placed.gpus
        self.streams: list[Stream] = []
        self.environment: Environment | None = None
        self.environ: dict[str, str] = {}
        self.popen: subprocess.Popen[bytes] | None = None
        self.start_deadline = 0.0
        self.host: dict[str, Any] | None = None
        self.alive_at = 0.0
        # A pidfd, readable when the run host ends. Without one, the watcher has to look every few milliseconds.
        self.end: int | None = None
        self.look_at = 0.0
        self.usage = Usage()
        self.has_limits = placed.spec.limits.model_dump(exclude_none=True) != {}
        self.warnings: list[str] = []


class Attempts:
    """Looks after every attempt of this host, from its placement until it is stored and forgotten."""

    def __init__(
        self,
        home: StackHome,
        builder: Builder,
        templates: Templates,
        bridge: Bridge,
        frames: Frames,
        gpus: frozenset[str],
        spawn: Callable[[Coroutine[Any, Any, None], str], None],
        log_head: int,
    ) -> None:
        self.home = home
        self._log_head = log_head
        self.machine = machine.Machine()
        self.tracked: dict[AttemptKey, Tracked] = {}
        # Wake the tasks that report, that carry lines and that watch.
        self.changed = WakeUp()
        self.streams_changed = WakeUp()
        self.stirred = WakeUp()
        self.warm_starts = 0
        self.cold_starts = 0
        self._preparation = Preparation(builder, gpus, home.shared)
        self._templates = templates
        self._bridge = bridge
        self._journals = JournalWatch(bridge.look)
        self._frames = frames
        self._spawn = spawn
        self._children: set[subprocess.Popen[bytes]] = set()
        # Attempts that were stopped before they were placed; a placement that arrives late is refused.
        self._stopped_early: OrderedDict[AttemptKey, None] = OrderedDict()

    # ── what the scheduler wants ────────────────────────────────────────────────────────────────

    async def place(self, command: Place) -> bool:
        """Take on an attempt; return False if it is here already."""
        key = machine.key_of(command)
        folder = AttemptFolder(self.home, key)
        await asyncio.to_thread(self._preparation.require_environments, command.spec)
        # No await from here to the machine: the same attempt may be placed twice at the same time.
        if key in self.tracked:
            return False
        if folder.exit() is not None or key in self._stopped_early:
            raise CommandRefusedError(
                RefusalCode.ALREADY_ENDED,
                f"attempt {key.attempt} of {key.run} has ended here before",
                RefusalDetails(run=key.run),
            )
        self._preparation.require_gpus(command.gpus)
        try:
            folder.place(command, self._log_head)
        except OSError as error:
            folder.drop_note()
            raise CommandRefusedError(
                RefusalCode.HOST_UNAVAILABLE, f"cannot write {folder.path}: {error.strerror}"
            ) from None
        self._track(folder, command, adopted=False)
        await self.do(command)
        return True

    async def stop(self, command: Stop) -> None:
        """Stop an attempt, or make sure that it never starts."""
        key = machine.key_of(command)
        if key not in self.tracked:
            self._stopped_early[key] = None
            if len(self._stopped_early) > _STOPS_REMEMBERED:
                self._stopped_early.popitem(last=False)
        await self.do(command)

    async def forget(self, command: Forget) -> None:
        """Note that the scheduler has recorded the end of an attempt."""
        key = machine.key_of(command)
        if self.is_ended(key):
            self.tracked[key].folder.mark(layout.FORGOTTEN)
        await self.do(command)

    def tell(self, key: AttemptKey, line: str) -> None:
        """Write a line to the stdin of an interactive attempt, or refuse to."""
        tracked = self._running(key)
        if not tracked.spec.interactive:
            raise _refused(key, RefusalCode.NOT_INTERACTIVE)
        try:
            channel.tell(tracked.folder.stdin, line.encode() + b"\n")
        except channel.ChannelFullError as error:
            raise _refused(key, RefusalCode.NOT_READING, str(error)) from None
        except channel.ChannelClosedError:
            # Its phase does not tell: an attempt may be stopped before its worker has started.
            started = tracked.folder.has_begun() or tracked.folder.has_exit()
            raise _refused(key, RefusalCode.ALREADY_ENDED if started else RefusalCode.NOT_STARTED) from None

    async def pause(self, key: AttemptKey, *, paused: bool) -> None:
        """Let a worker pause or go on, or refuse to."""
        tracked = self._running(key)
        host = tracked.host or tracked.folder.host()
        number = signal.SIGUSR1 if paused else signal.SIGUSR2
        if host is None or not await asyncio.to_thread(run_hosts.signal_worker, host, number):
            raise _refused(key, RefusalCode.NOT_PAUSABLE)

    def _running(self, key: AttemptKey) -> Tracked:
        """Return an attempt that has not ended, or refuse."""
        tracked = self.tracked.get(key)
        if tracked is None:
            ended = AttemptFolder(self.home, key).has_exit()
            raise _refused(key, RefusalCode.ALREADY_ENDED if ended else RefusalCode.UNKNOWN_ATTEMPT)
        if self.is_ended(key):
            raise _refused(key, RefusalCode.ALREADY_ENDED)
        return tracked

    async def adopt_all(self) -> None:
        """Take over what an earlier supervisor left."""
        for folder in AttemptFolder.active(self.home):
            try:
                await self._adopt(folder)
            except Exception:
                # One unreadable folder must not affect the other attempts.
                _log.exception("cannot adopt", attempt=str(folder.key), folder=str(folder.path))
                self.machine.attempts.pop(folder.key, None)
                if (tracked := self.tracked.pop(folder.key, None)) is not None:
                    self._close_streams(tracked)
        self._frames.sweep(each.folder.key for each in self.live())

    def reap(self) -> None:
        """Reap run hosts that have ended, also those of attempts that were released."""
        self._children = {child for child in self._children if child.poll() is None}

    # ── what is known ───────────────────────────────────────────────────────────────────────────

    def is_ended(self, key: AttemptKey) -> bool:
        """Whether an attempt has ended."""
        attempt = self.machine.attempts.get(key)
        return attempt is not None and attempt.phase is AttemptPhase.ENDED

    def live(self) -> list[Tracked]:
        """Return the attempts that have not ended."""
        return [each for key, each in self.tracked.items() if not self.is_ended(key)]

    def reports(self) -> list[AttemptReport]:
        """Report every attempt whose end the scheduler has not recorded."""
        known = self.machine.attempts
        return [self._report(key, each) for key, each in self.tracked.items() if not known[key].forgotten]

    def run_hosts(self) -> dict[AttemptKey, int]:
        """Return the pid of each run host."""
        return {each.folder.key: each.host["pid"] for each in self.live() if each.host}

    # ── from placement to release ───────────────────────────────────────────────────────────────

    def _track(self, folder: AttemptFolder, placed: Place, *, adopted: bool) -> None:
        self.tracked[folder.key] = Tracked(folder, placed)
        if folder.is_marked(layout.STORED):
            return
        for kind, path in (("journal", folder.journal), ("log", folder.log)):
            stream = StreamId(run=folder.key.run, attempt=folder.key.attempt, kind=kind)  # type: ignore[arg-type]
            opened = self._bridge.open(stream, str(path), time.monotonic(), adopted=adopted, log_head=folder.log_head())
            self.tracked[folder.key].streams.append(opened)
            if placed.spec.interactive and kind == "journal":
                self._journals.add(stream, path)
        self.streams_changed.set()

    async def _adopt(self, folder: AttemptFolder) -> None:
        """Take over an attempt that was found on disk, in whatever phase."""
        placed = folder.placed()
        if placed is None:
            folder.drop_note()
            return
        key = folder.key
        self._track(folder, placed, adopted=True)
        self.tracked[key].warnings = folder.warnings()
        _log.info("adopted", attempt=str(key))
        self.machine.attempts[key] = attempt = machine.Attempt()
        report, host = None, folder.host()
        if host is None or not is_alive(host):  # Before that, the record may be a file of the worker's.
            report = folder.exit()
        if host is not None:
            self.tracked[key].host = host
            attempt.phase = AttemptPhase.STARTING
            self._frames.follow(key)
            if folder.has_begun():
                await self.do(machine.JournalGrew(key))
            if (reason := folder.stop_reason()) is not None:
                await self.do(Stop(run=key.run, attempt=key.attempt, reason=reason))
        if report is not None:
            await self.do(machine.Exited(key, report))
        elif host is None:
            await self._obey(machine.Prepare(key))
        if folder.is_marked(layout.FORGOTTEN):
            await self.do(Forget(run=key.run, attempt=key.attempt))
        if folder.is_marked(layout.STORED):
            await self.do(machine.StreamsStored(key))

    async def do(self, stimulus: machine.Stimulus) -> None:
        """Tell the machine what happened, and carry out what it decides."""
        key = machine.key_of(stimulus)
        before = self.machine.attempts.get(key)
        phase = before.phase if before else None
        for instruction in self.machine.handle(stimulus, time.time()):
            await self._obey(instruction)
        after = self.machine.attempts.get(key)
        if after is None or after.phase is not phase:
            self.changed.set()
            if phase is not None and (after is None or after.phase is AttemptPhase.ENDED):
                self._end_frames(key)
        if self.is_ended(key):
            self._end_streams(key)
        self.stirred.set()

    def _end_streams(self, key: AttemptKey) -> None:
        going_on = [stream for stream in self.tracked[key].streams if not stream.ended]
        for stream in going_on:
            stream.ended = True
        if going_on:
            self.streams_changed.set()

    def streams_stored(self, key: AttemptKey) -> bool:
        """Close the streams of an attempt if every line of them is stored."""
        tracked = self.tracked[key]
        if not all(stream.is_stored for stream in tracked.streams):
            return False
        tracked.folder.mark(layout.STORED)
        self._close_streams(tracked)
        return True

    def _close_streams(self, tracked: Tracked) -> None:
        for stream in tracked.streams:
            self._bridge.close(stream.id)
            self._journals.forget(stream.id)
        tracked.streams = []

    def _end_frames(self, key: AttemptKey) -> None:
        streams = self._frames.end(key)
        if streams:
            try:
                AttemptFolder(self.home, key).keep_frames(streams)
            except OSError as error:  # Only the last frames are then unknown.
                _log.warning("cannot record the last frames", attempt=str(key), reason=str(error))

    async def _obey(self, instruction: machine.Instruction) -> None:
        tracked = self.tracked[instruction.key]
        match instruction:
            case machine.Prepare(key):
                self._spawn(self._prepare(key, tracked), "prepare")
            case machine.Start():
                await self._start(tracked)
            case machine.SignalStop(key, reason):
                try:
                    tracked.folder.ask_to_stop(reason)
                except OSError as error:  # The disk may be full; the run is stopped all the same.
                    _log.warning("cannot record a stop", attempt=str(key), reason=str(error))
                if (host := tracked.host or tracked.folder.host()) is not None:
                    run_hosts.stop(host)
            case machine.Sweep(key):
                self._spawn(self._sweep(key, tracked), "sweep")
            case machine.FindCheckpoint(key):
                self._spawn(self._find_checkpoint(key, tracked), "find checkpoint")
            case machine.RecordEnd(_, report):
                try:
                    tracked.folder.end_without_start(report)
                except OSError as error:  # The scheduler still learns of it.
                    _log.warning("cannot record an end", attempt=str(instruction.key), reason=str(error))
            case machine.Release(key):
                tracked.folder.drop_note()
                del self.tracked[key]

    async def _prepare(self, key: AttemptKey, tracked: Tracked) -> None:
        try:
            tracked.environment, tracked.environ = await self._preparation.prepare(tracked.folder, tracked.placed)
        except Exception as error:
            if not isinstance(error, BuildFailedError | CommandRefusedError | OSError):
                _log.exception("cannot prepare", attempt=str(key))
            reason = str(error)
            if isinstance(error, OSError) and error.errno in _DISK_FULL:
                reason = f"disk full: cannot write {tracked.folder.path}"
            of_worker = isinstance(error, BuildFailedError) and error.caused_by_worker
            category = FailureCategory.APPLICATION if of_worker else FailureCategory.INFRASTRUCTURE
            await self.do(machine.PrepareFailed(key, reason, category))
        else:
            await self.do(machine.Prepared(key))

    async def _start(self, tracked: Tracked) -> None:
        tracked.start_deadline = math.inf  # The run host is not late while a template is asked.
        frames = self._frames.make(tracked.folder.key)
        if frames is not None:
            tracked.environ[FASTLANE_DIR] = frames
        environment = tracked.environment
        warm = environment is not None and await self._templates.start(tracked.folder, environment, tracked.environ)
        tracked.start_deadline = time.monotonic() + _START_DEADLINE_S
        if warm:
            self.warm_starts += 1
            return
        try:
            tracked.popen = run_hosts.start(tracked.folder, tracked.environ)
        except OSError as error:
            _log.warning("cannot start a run host", attempt=str(tracked.folder.key), reason=str(error))
            tracked.start_deadline = 0.0  # The watcher finds it missing at once.
            return
        self.cold_starts += 1
        self._children.add(tracked.popen)

    async def _sweep(self, key: AttemptKey, tracked: Tracked) -> None:
        killed = await asyncio.to_thread(run_hosts.sweep, tracked.folder)
        _log.warning("swept", attempt=str(key), killed=killed)
        await self.do(machine.Swept(key))

    async def _find_checkpoint(self, key: AttemptKey, tracked: Tracked) -> None:
        folder, found = tracked.folder, None
        try:
            if folder.can_resume():
                found = await asyncio.to_thread(last_checkpoint, folder.journal, folder.path)
        except (OSError, ValueError) as error:  # The next attempt then starts from the beginning.
            _log.warning("cannot look for a checkpoint", attempt=str(key), reason=str(error))
        await self.do(machine.CheckpointSought(key, found))

    def _report(self, key: AttemptKey, tracked: Tracked) -> AttemptReport:
        attempt = self.machine.attempts[key]
        detail = ""
        if attempt.phase is AttemptPhase.PREPARING:
            detail = self._preparation.progress(tracked.spec)
        return AttemptReport(
            run=key.run,
            attempt=key.attempt,
            phase=attempt.phase,
            detail=detail,
            resources=tracked.spec.resources,
            gpus=tracked.gpus,
            started_at=tracked.host["started_at"] if tracked.host else None,
            exit=attempt.exit,
            usage=Usage() if attempt.phase is AttemptPhase.ENDED else tracked.usage,
            warnings=tracked.warnings,
            warm=bool(tracked.host and tracked.host.get("warm")),
        )


def _refused(key: AttemptKey, code: RefusalCode, more: str = "") -> CommandRefusedError:
    said = f"attempt {key.attempt} of {key.run}: {code.meaning}"
    return CommandRefusedError(code, f"{said} ({more})" if more else said, RefusalDetails(run=key.run))
