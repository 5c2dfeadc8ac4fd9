"""Notices what happens to the attempts of a host: first line, exit, death of a run host, all lines stored."""

from __future__ import annotations

import asyncio
import os
import time
from typing import TYPE_CHECKING

from mosaic_bus.commands import Stop
from mosaic_bus.logs import Logger
from mosaic_bus.messages import AttemptPhase
from mosaic_services.processes import is_alive
from mosaic_services.supervisor import machine, run_hosts
from mosaic_services.supervisor.wakeup import WakeUp

if TYPE_CHECKING:
    from mosaic_services.attempt_folder import AttemptKey
    from mosaic_services.supervisor.attempts import Attempts, Tracked
    from mosaic_services.supervisor.bridge import Bridge

__all__ = ["Watcher"]

_log = Logger()

# Least seconds between two looks at all attempts.
_WATCH_S = 0.02
# Seconds between two looks at an attempt whose run host's end wakes us by a pidfd.
_TOLD_S = 1.0
# Seconds between two checks whether a run host without a pidfd is alive, which cost more than other looks.
_ALIVE_S = 0.25


class Watcher:
    """Looks at every attempt when something has happened, and regularly; tells the machine what it saw."""

    def __init__(self, attempts: Attempts, bridge: Bridge) -> None:
        # Set when the end of a stream should be announced.
        self.tails_changed = WakeUp()
        self._attempts = attempts
        self._bridge = bridge
        self._troubled: set[AttemptKey] = set()

    async def run(self) -> None:
        """Watch until cancelled."""
        while True:
            self._attempts.reap()
            soon = await self._look_at_all(time.monotonic())
            await self._attempts.stirred.wait(0.0 if soon else _TOLD_S, at_least=_WATCH_S)

    async def _look_at_all(self, now: float) -> bool:
        soon = False
        for key, tracked in list(self._attempts.tracked.items()):
            if tracked.end is not None and now < tracked.look_at:
                continue
            try:
                soon |= await self._look_at(key, tracked)
            except Exception:
                soon = True
                # A file that cannot be read or written holds up this attempt and no other.
                if key not in self._troubled:
                    self._troubled.add(key)
                    _log.exception("cannot look after", attempt=str(key), folder=str(tracked.folder.path))
        return soon

    async def _look_at(self, key: AttemptKey, tracked: Tracked) -> bool:
        """Notice what happened to an attempt; return whether to look again soon because no event would wake us."""
        attempt = self._attempts.machine.attempts.get(key)
        # An attempt whose end is known: its checkpoint is looked for, or its leftovers are killed.
        if attempt is None or attempt.ending is not None or attempt.lost is not None:
            return False
        if tracked.popen is not None and tracked.popen.returncode is not None:
            tracked.popen = None
        if attempt.phase in (AttemptPhase.STARTING, AttemptPhase.RUNNING, AttemptPhase.STOPPING):
            await self._look_at_process(key, tracked, attempt)
            return tracked.end is None or attempt.phase is AttemptPhase.STARTING
        if attempt.phase is AttemptPhase.ENDED and not attempt.stored:
            return await self._look_at_streams(key, tracked)
        return False

    async def _look_at_process(self, key: AttemptKey, tracked: Tracked, attempt: machine.Attempt) -> None:
        folder, do = tracked.folder, self._attempts.do
        if tracked.host is None:
            tracked.host = folder.host()
            if tracked.host is not None and (reason := folder.stop_reason()) is not None:
                # The stop came before there was a run host to receive it.
                await do(Stop(run=key.run, attempt=key.attempt, reason=reason))
        if tracked.host is not None and tracked.end is None:
            self._listen_for_end(tracked, run_hosts.open_end(tracked.host))
        if attempt.phase is AttemptPhase.STARTING and folder.has_begun():
            await do(machine.JournalGrew(key))
        if tracked.has_limits and (warnings := folder.warnings()) != tracked.warnings:
            tracked.warnings = warnings
            self._attempts.changed.set()
        if attempt.phase is not AttemptPhase.STARTING:
            tracked.look_at = time.monotonic() + _TOLD_S
        # A run host writes the exit record last, over any file of that name. Before the run host is gone, the record
        # may be a file of the worker's own; after that, a missing record stays missing.
        if not self._is_gone(tracked):
            return
        report = folder.exit()
        if report is not None:
            await do(machine.Exited(key, report))
        else:
            await do(machine.RunHostGone(key, folder.why_run_host_died()))

    def _listen_for_end(self, tracked: Tracked, end: int | None) -> None:
        if end is None:
            return

        def ended() -> None:
            loop.remove_reader(end)
            os.close(end)
            tracked.end = None
            self._attempts.stirred.set()

        loop = asyncio.get_running_loop()
        loop.add_reader(end, ended)
        tracked.end = end

    @staticmethod
    def _is_gone(tracked: Tracked) -> bool:
        now = time.monotonic()
        if tracked.host is None:
            return tracked.popen is None and now >= tracked.start_deadline
        if tracked.end is not None or now - tracked.alive_at < _ALIVE_S:
            return False  # The pidfd would have told of its end.
        tracked.alive_at = now
        return not is_alive(tracked.host)

    async def _look_at_streams(self, key: AttemptKey, tracked: Tracked) -> bool:
        """Check whether every line of an attempt is stored; return False if there is no store to tell."""
        if self._attempts.streams_stored(key):
            await self._attempts.do(machine.StreamsStored(key))
            return True
        alive = self._bridge.store_is_alive(time.monotonic())
        if alive and any(stream.drained and not stream.confirmed for stream in tracked.streams):
            self.tails_changed.set()
        return alive
