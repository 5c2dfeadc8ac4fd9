"""The supervisor as a service: answers commands and reports on the bus what happens on this host."""

from __future__ import annotations

import asyncio
import signal
import time
from typing import TYPE_CHECKING

import psutil
from pydantic import ValidationError

from mosaic_bus import topics
from mosaic_bus.commands import (
    Ack,
    Describe,
    Description,
    Detach,
    DiskUse,
    DiskUseResult,
    FileChunk,
    Files,
    FilesResult,
    Forget,
    FrameStreams,
    FrameStreamsResult,
    Install,
    PauseRun,
    Place,
    ReadFile,
    RemoveFiles,
    Resend,
    Scripts,
    ScriptsResult,
    Stop,
    Tell,
    WatchFrames,
    WatchFramesResult,
)
from mosaic_bus.errors import CommandRefusedError
from mosaic_bus.logs import Logger
from mosaic_bus.messages import (
    BuildProgress,
    HostState,
    Model,
    Position,
    StoredPositions,
    StreamId,
)
from mosaic_bus.refusals import RefusalCode, RefusalDetails
from mosaic_bus.service import Service, explain
from mosaic_bus.wire.envelope import new_id
from mosaic_services.attempt_folder import AttemptFolder, AttemptKey
from mosaic_services.supervisor import files, frames, pictures
from mosaic_services.supervisor.attempts import Attempts
from mosaic_services.supervisor.bridge import Bridge
from mosaic_services.supervisor.builder import Builder, BuildFailedError
from mosaic_services.supervisor.frames import Frames
from mosaic_services.supervisor.inputs import with_inputs
from mosaic_services.supervisor.pictures import Lease, Pictures
from mosaic_services.supervisor.scripts import list_scripts
from mosaic_services.supervisor.templates import Templates
from mosaic_services.supervisor.usage import UsageMeter
from mosaic_services.supervisor.watcher import Watcher
from mosaic_services.supervisor.worker_counters import worker_counters

if TYPE_CHECKING:
    from collections.abc import Iterable

    from mosaic_bus.client import Subscription
    from mosaic_bus.wire.envelope import Message
    from mosaic_services.home import StackHome
    from mosaic_services.settings.model import Settings
    from mosaic_services.supervisor.inventory import Inventory

__all__ = ["SupervisorService"]

_log = Logger()

_SCAN_S = 5.0
_ENDING_S = 0.02
# Seconds that a supervisor that ends waits for the last lines to be stored.
_FLUSH_S = 5.0


class SupervisorService(Service):
    """Runs attempts on one host."""

    home: StackHome

    def __init__(self, home: StackHome, bus_address: str | None, inventory: Inventory, settings: Settings) -> None:
        host = inventory.host
        super().__init__(topics.supervisor(host), home, bus_address, heartbeat_s=settings.services.heartbeat_s)
        self._tuning = tuning = settings.supervisor
        self.lock = home.lock("supervisor")
        self.host = host
        self.inventory = inventory
        self.builder = Builder(home, host, self._tell_build, tuning)
        self.bridge = Bridge(
            host, self._publish, time.monotonic(), window=tuning.window_mb * 2**20, look_s=tuning.look_every_s
        )
        self.templates = Templates(home.runs, self.spawn, tuning.template_idle_s)
        self.frames = Frames(home.frames, host, self._publish)
        self.pictures = Pictures(self.frames)
        gpus = frozenset(each.id for each in inventory.gpus)
        log_head = tuning.run_log_mb * 2**20
        self.attempts = Attempts(
            home, self.builder, self.templates, self.bridge, self.frames, gpus, self.spawn, log_head
        )
        self.watcher = Watcher(self.attempts, self.bridge)
        self.meter = UsageMeter()
        self.instance = new_id()
        self.detached = False
        self._bad_reports = 0
        self.handle(Place, self._on_place)
        self.handle(Stop, self._on_stop)
        self.handle(Tell, self._on_tell)
        self.handle(PauseRun, self._on_pause_run)
        self.handle(Forget, self._on_forget)
        self.handle(Resend, self._on_resend)
        self.handle(Describe, self._on_describe)
        self.handle(Detach, self._on_detach)
        self.handle(FrameStreams, self._on_frame_streams)
        self.handle(WatchFrames, self._on_watch_frames)
        self.handle(Install, self._on_install)
        self.handle(Scripts, self._on_scripts)
        self.handle(Files, self._on_files)
        self.handle(ReadFile, self._on_read_file)
        self.handle(DiskUse, self._on_disk_use)
        self.handle(RemoveFiles, self._on_remove_files)

    async def start(self) -> None:
        """Adopt the attempts of an earlier supervisor, then start all tasks."""
        await asyncio.to_thread(self.builder.scan)
        heard = self.bus.subscribe(topics.STORED)
        await self.bus.synced()
        # Connecting may have taken a while. Give the store time to report before it counts as away; otherwise adopted
        # streams would be published again from the beginning.
        self.bridge.store_heard(time.monotonic(), storing=True)
        await self.attempts.adopt_all()
        # Sent when `mosaic up` dies: the runs go on.
        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR2, self._end_without_runs)
        self.spawn(self._listen(heard), "listen")
        self.spawn(self._pump(), "pump")
        self.spawn(self.watcher.run(), "watch")
        self.spawn(self._report(), "report")
        self.spawn(self._announce_tails(), "tails")
        self.spawn(self._measure(), "measure")
        self.spawn(self._follow_frames(), "frames")
        self.spawn(self._encode_pictures(), "pictures")
        self.spawn(self._scan(), "scan")

    async def finish(self) -> None:
        """Stop every attempt, unless detached, and wait until their lines are stored."""
        await self.builder.close()
        await self.templates.close()
        if self.detached or self._failure is not None:
            # A supervisor that fails leaves its runs for the next one to adopt.
            return
        # Announce the end first, so that the scheduler places nothing more here.
        self.bus.publish(topics.host_state(self.host), self._host_state())
        live = self.attempts.live()
        deadline = time.monotonic() + max((each.spec.grace_s for each in live), default=0) + 10
        asked: set[AttemptKey] = set()
        while time.monotonic() < deadline and (live := self.attempts.live()):
            for key in {each.folder.key for each in live} - asked:
                asked.add(key)
                await self.attempts.stop(Stop(run=key.run, attempt=key.attempt, reason="the supervisor was stopped"))
            await asyncio.sleep(_ENDING_S)
        deadline = time.monotonic() + _FLUSH_S
        while time.monotonic() < deadline and self.bridge.streams and self.bridge.store_is_alive(time.monotonic()):
            await asyncio.sleep(_ENDING_S)
        # A last report, so that the scheduler knows how every attempt ended.
        self.bus.publish(topics.host_state(self.host), self._host_state())

    def counters(self) -> dict[str, int | float]:
        """Return counters of the bridge, attempts, templates and frames, and those that workers share."""
        carried: dict[str, int | float] = {f"bridge_{name}": count for name, count in self.bridge.counters.items()}
        return {
            **carried,
            "streams": len(self.bridge.streams),
            "attempts": len(self.attempts.tracked),
            "warm_starts": self.attempts.warm_starts,
            "cold_starts": self.attempts.cold_starts,
            "templates": len(self.templates),
            "bad_reports": self._bad_reports,
            **self.frames.counters,
            **self.pictures.counters,
            **worker_counters(self.attempts.home.shared),
        }

    # ── commands ────────────────────────────────────────────────────────────────────────────────

    async def _on_place(self, command: Place) -> Ack:
        key = AttemptKey(command.run, command.attempt)
        if self.status == "stopping" and key not in self.attempts.tracked:
            raise CommandRefusedError(RefusalCode.STOPPING, f"the supervisor of {self.host} is about to end")
        if key not in self.attempts.tracked:
            spec = await asyncio.to_thread(with_inputs, command.spec, command.inputs, self.home.runs)
            command = command.model_copy(update={"spec": spec})
        placed = await self.attempts.place(command)
        return Ack(note="" if placed else "already here")

    async def _on_stop(self, command: Stop) -> Ack:
        await self.attempts.stop(command)
        return Ack()

    async def _on_tell(self, command: Tell) -> Ack:
        self.attempts.tell(AttemptKey(command.run, command.attempt), command.line)
        return Ack()

    async def _on_pause_run(self, command: PauseRun) -> Ack:
        await self.attempts.pause(AttemptKey(command.run, command.attempt), paused=command.paused)
        return Ack()

    async def _on_forget(self, command: Forget) -> Ack:
        await self.attempts.forget(command)
        return Ack()

    async def _on_resend(self, command: Resend) -> Ack:
        stream = StreamId(run=command.run, attempt=command.attempt, kind=command.kind)
        if not self.bridge.resend(stream, Position(number=command.number, offset=command.offset)):
            said = f"{self.host} carries no {command.kind} of {command.run}"
            raise CommandRefusedError(RefusalCode.UNKNOWN_STREAM, said, RefusalDetails(run=command.run))
        self.attempts.streams_changed.set()
        return Ack()

    async def _on_describe(self, command: Describe) -> Description:
        return await asyncio.to_thread(self.builder.describe, command.worker, command.profile)

    def _end_without_runs(self) -> None:
        self.detached = True
        self.stop()

    async def _on_detach(self, _: Detach) -> Ack:
        self.detached = True
        return Ack(note="runs will be left going")

    async def _on_frame_streams(self, command: FrameStreams) -> FrameStreamsResult:
        live = self.frames.states(command.run)
        if live is not None:
            return FrameStreamsResult(streams=live)
        folder = AttemptFolder.last_of(self.home, command.run)
        if folder is None:
            said = f"{self.host} has no run {command.run}"
            raise CommandRefusedError(RefusalCode.UNKNOWN_RUN, said, RefusalDetails(value=command.run))
        return FrameStreamsResult(streams=folder.frames())

    async def _on_watch_frames(self, command: WatchFrames) -> WatchFramesResult:
        if self.frames.rings(command.run) is None:
            said = f"{self.host} has no run {command.run} with frames"
            raise CommandRefusedError(RefusalCode.UNKNOWN_RUN, said, RefusalDetails(value=command.run))
        lease = Lease(command.run, command.stream, command.max_dim, command.quality)
        return WatchFramesResult(topic=self.pictures.watch(lease, time.monotonic()), lease_s=pictures.LEASE_S)

    async def _on_install(self, command: Install) -> Ack:
        environment = await asyncio.to_thread(self.builder.get, command.worker, command.profile)
        if environment.status == "installed":
            return Ack(note=f"{command.worker} ({command.profile}) is installed")
        self.spawn(self._install(command.worker, command.profile), "install")
        return Ack(note=f"{command.worker} ({command.profile}) is being built")

    async def _install(self, worker: str, profile: str) -> None:
        try:
            await self.builder.ensure(worker, profile)
            await asyncio.to_thread(self.builder.scan)
        except (BuildFailedError, CommandRefusedError) as error:  # `build.<host>.` has told it
            _log.warning("not installed", worker=worker, profile=profile, reason=str(error))
        self.attempts.changed.set()

    async def _on_scripts(self, command: Scripts) -> ScriptsResult:
        return await asyncio.to_thread(list_scripts, self.home, command.folder)

    async def _on_files(self, command: Files) -> FilesResult:
        return await asyncio.to_thread(files.list_files, self.home, command)

    async def _on_read_file(self, command: ReadFile) -> FileChunk:
        return await asyncio.to_thread(files.read_file, self.home, command)

    async def _on_disk_use(self, command: DiskUse) -> DiskUseResult:
        return DiskUseResult(runs=await asyncio.to_thread(files.disk_use, self.home, command.runs))

    async def _on_remove_files(self, command: RemoveFiles) -> Ack:
        await asyncio.to_thread(files.remove, self.home, command.run)
        return Ack()

    # ── tasks ─────────────────────────────────────────────────────────────────────────────────

    def _publish(self, topic: str, body: Model, buffers: Iterable[bytes]) -> bool:
        return self.bus.publish(topic, body, buffers)

    def _tell_build(self, progress: BuildProgress) -> None:
        self.bus.publish(topics.build(self.host), progress)
        self.attempts.changed.set()

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
                _log.warning("bad body", source=message.header.src, topic=message.topic, reason=explain(error))
            return
        self.bridge.store_heard(time.monotonic(), storing=report.storing)
        for stream, at in zip(streams, report.positions, strict=True):
            self.bridge.set_stored(stream, at.stored, final=at.final)

    async def _pump(self) -> None:
        while True:
            await self.attempts.streams_changed.wait(self.bridge.pump(time.monotonic()))

    async def _announce_tails(self) -> None:
        while True:
            if self.bridge.streams:
                self.bus.publish(topics.streams(self.host), self.bridge.tails())
            await self.watcher.tails_changed.wait(1.0, at_least=0.2)

    async def _report(self) -> None:
        while True:
            self.bus.publish(topics.host_state(self.host), self._host_state())
            await self.attempts.changed.wait(1.0, at_least=0.01)

    async def _measure(self) -> None:
        while True:
            usages = await asyncio.to_thread(self.meter.measure, self.attempts.run_hosts(), time.monotonic())
            for key, usage in usages.items():
                if key in self.attempts.tracked:
                    self.attempts.tracked[key].usage = usage
            await asyncio.sleep(self._tuning.usage_every_s)

    async def _follow_frames(self) -> None:
        while True:
            self.frames.turn(time.monotonic())
            await asyncio.sleep(frames.LIST_S if self.frames.is_idle else 1 / self._tuning.frames_per_second)

    async def _encode_pictures(self) -> None:
        while True:
            await self.pictures.asked.wait()
            begun = time.monotonic()
            encoded = await asyncio.to_thread(self.pictures.encode, self.pictures.plan(begun))
            now = time.monotonic()
            for topic, handle, picture in self.pictures.take(encoded, now):
                self.bus.publish(topic, handle, (picture,))
            # Encoding may use at most half a core: the host is there for its runs.
            await asyncio.sleep(max(1 / self._tuning.pictures_per_second - (now - begun), now - begun))

    async def _scan(self) -> None:
        while True:
            await asyncio.sleep(_SCAN_S)
            await asyncio.to_thread(self.builder.scan)
            self.templates.tidy(self.builder.fingerprints(), time.monotonic())

    def _host_state(self) -> HostState:
        return HostState(
            host=self.host,
            instance=self.instance,
            draining=self.status == "stopping",
            total=self.inventory.total,
            gpus=list(self.inventory.gpus),
            tags=list(self.inventory.tags),
            environments=self.builder.statuses(),
            attempts=self.attempts.reports(),
            cpu_percent=psutil.cpu_percent(),
            memory_used_mb=round(psutil.virtual_memory().used / 2**20, 1),
        )
