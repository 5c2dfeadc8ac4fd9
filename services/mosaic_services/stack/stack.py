"""A stack as one thing: its services in order, made ready, kept alive, taken down without leaving anything."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import time
from typing import TYPE_CHECKING

from mosaic_bus import Bus, BusError
from mosaic_bus.commands import Ping
from mosaic_bus.wire.address import Address
from mosaic_services.stack import leftovers
from mosaic_services.stack.backoff import Backoff
from mosaic_services.stack.children import Child, Signals, how_it_ended
from mosaic_services.stack.errors import CANNOT_RUN, StackError, StackStoppedError
from mosaic_services.stack.services import in_start_order

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from mosaic_services.home import StackHome
    from mosaic_services.settings.model import StackSettings

__all__ = ["KEEP_RUNS", "Stack"]

# Beyond the longest grace period of a run, the supervisor takes up to 15 s: to end it, and to see its last lines
# stored. A busy machine gets a little more.
_SUPERVISOR_EXTRA_S = 20.0
_LOOK_S = 0.1
# What `mosaic down --keep-runs` sends us: end, the runs go on.
KEEP_RUNS = signal.SIGUSR1
# What makes a supervisor end and leave its runs going. It gets it, too, if we are killed.
DETACH = signal.SIGUSR2
_STOP_SIGNALS = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGHUP, KEEP_RUNS})


class Stack:
    """The services of one home. `start`, then `keep` until a signal comes, then `stop`."""

    def __init__(
        self,
        home: StackHome,
        address: str,
        host: str,
        host_config: Path,
        tuning: StackSettings,
        say: Callable[[str], None],
    ) -> None:
        self.home = home
        self.address = address
        self.host = host
        self._tuning = tuning
        self._say = say
        # Runs are stopped only if somebody asks for it, never because something here went wrong.
        self._keep_runs = True
        common = ["--home", str(home.path), "--bus", address]
        self.children = [
            Child(
                row,
                row.bus_name(host),
                [*common, *(word.format(host_config=host_config) for word in row.arguments)],
                home.logs / f"{row.name}.log",
                largest_log_bytes=tuning.log_mb * 2**20,
                backoff=Backoff(tuning.first_restart_s, tuning.longest_restart_s),
                orphaned_by=DETACH if row.holds_runs else signal.SIGTERM,
            )
            for row in in_start_order()
        ]
        self._signals = Signals(signal.SIGCHLD, *_STOP_SIGNALS)

    # ── starting ────────────────────────────────────────────────────────────────────────────────

    def start(self, progress: Callable[[str], None]) -> None:
        """Start all services and wait until each answers; `progress` hears of each that does."""
        for child in self.children:
            try:
                child.start()
            except (OSError, subprocess.SubprocessError) as error:
                raise StackError(f"{child.name} could not be started: {error}") from error
        deadline = time.monotonic() + self._tuning.ready_timeout_s
        with self._connect(deadline) as bus:
            for child in self.children:
                self._await(bus, child, deadline)
                progress(child.name)

    def _connect(self, deadline: float) -> Bus:
        while True:
            self._check_starting(deadline, self.children[0])
            with contextlib.suppress(BusError):
                return Bus(Address.parse(self.address), connect_timeout=0.5)

    def _await(self, bus: Bus, child: Child, deadline: float) -> None:
        while True:
            self._check_starting(deadline, child)
            with contextlib.suppress(BusError):
                bus.request(child.bus_name, Ping(), timeout=0.3)
                return

    def _check_starting(self, deadline: float, waiting_for: Child) -> None:
        if self._told_to_stop(self._signals.wait(0)):
            raise StackStoppedError
        for child in self.children:
            if not child.running:
                raise self._could_not_run(child)
        if time.monotonic() > deadline:
            words = "\n".join(waiting_for.last_words())
            message = f"{waiting_for.name} did not answer within {self._tuning.ready_timeout_s:g} s"
            raise StackError(message, f"end of {waiting_for.log}:\n{words}")

    @staticmethod
    def _could_not_run(child: Child) -> StackError:
        if child.code == CANNOT_RUN:
            return StackError(f"{child.name} cannot run: {child.reason()}", f"its log: {child.log}", code=CANNOT_RUN)
        words = "\n".join(child.last_words())
        return StackError(f"{child.name} {how_it_ended(child.code)} while starting", f"end of {child.log}:\n{words}")

    # ── keeping alive ───────────────────────────────────────────────────────────────────────────

    def keep(self) -> None:
        """Restart what dies, for whatever reason, until a signal asks us to end."""
        while True:
            now = time.monotonic()
            for child in self.children:
                if child.restart_at is not None and child.restart_at <= now:
                    self._start_again(child, now)
                elif child.restart_at is None and not child.running:
                    self._bury(child, now)
            pending = [child.restart_at for child in self.children if child.restart_at is not None]
            received = self._signals.wait(max(0.0, min(pending) - time.monotonic()) if pending else None)
            if self._told_to_stop(received):
                return

    def _told_to_stop(self, received: list[int]) -> bool:
        if not _STOP_SIGNALS & set(received):
            return False
        self._keep_runs = KEEP_RUNS in received
        return True

    def _start_again(self, child: Child, now: float) -> None:
        try:
            child.start()
        except (OSError, subprocess.SubprocessError) as error:
            # No memory, no room on the disk, too many processes: that passes, and the runs go on meanwhile.
            delay = child.schedule_restart(now)
            self._say(f"error: {child.name} could not be started: {error}; trying again in {delay:g} s")
        else:
            self._say(f"{child.name} started again, pid {child.pid}")

    def _bury(self, child: Child, now: float) -> None:
        delay = child.schedule_restart(now)
        if child.code == CANNOT_RUN:
            self._say(f"error: {child.name} cannot run: {child.reason()}; trying again in {delay:g} s")
        else:
            self._say(f"{child.name} (pid {child.pid}) {how_it_ended(child.code)}; starting it again in {delay:g} s")

    # ── stopping ────────────────────────────────────────────────────────────────────────────────

    def stop(self) -> str:
        """End the runs and the services, in reverse order of their start; a second signal kills what is left.

        Returns the last line for the user.
        """
        grace = self._announce_runs()
        forced = False
        for child in reversed(self.children):
            forced = self._end(child, grace if child.row.holds_runs else self._tuning.stop_timeout_s, forced=forced)
            if child.row.holds_runs and not self._keep_runs:
                forced = self._end_runs(grace, forced=forced)
        for socket in ("in.sock", "out.sock"):
            (self.home.sockets / socket).unlink(missing_ok=True)
        return self._last_word()

    def _last_word(self) -> str:
        left = leftovers.alive(self.home)
        which = ", ".join(f"{run} (pid {pid})" for run, pid in sorted(left.items()))
        if left and self._keep_runs:
            return f"stopped; {_count(len(left))} left going: {which}"
        if left:
            return f"stopped, but {_count(len(left))} could not be ended: {which}"
        if strays := leftovers.strays(self.home):
            return f"stopped, but processes of runs or builds are left: {', '.join(map(str, sorted(strays)))}"
        return "stopped; nothing runs any more"

    def _end_runs(self, timeout: float, *, forced: bool) -> bool:
        """End the runs that the supervisor did not: it was killed, or was dead when we were told to stop."""
        left = leftovers.alive(self.home)
        if left and not forced:
            self._say(f"the supervisor has left {_count(len(left))}; stopping… (Ctrl-C again kills)")
            leftovers.terminate(self.home)
            deadline = time.monotonic() + timeout
            while time.monotonic() < deadline and not forced and leftovers.alive(self.home):
                forced = bool(_STOP_SIGNALS & set(self._signals.wait(_LOOK_S)))
        hosts, others = leftovers.kill(self.home)
        if hosts or others:
            self._say(f"killed {_count(hosts)} and {others} more processes of runs or builds")
        return forced

    def _end(self, child: Child, timeout: float, *, forced: bool) -> bool:
        deadline = time.monotonic() + timeout
        polite = DETACH if self._keep_runs and child.row.holds_runs else signal.SIGTERM
        child.signal(signal.SIGKILL if forced else polite)
        while child.running:
            received = self._signals.wait(max(0.0, deadline - time.monotonic()))
            late = time.monotonic() >= deadline
            if late or _STOP_SIGNALS & set(received):
                forced = forced or not late
                why = f"did not end within {timeout:g} s" if late else "was told to end at once"
                self._say(f"{child.name} {why}: killed")
                child.signal(signal.SIGKILL)
                deadline = float("inf")
                if child.process is not None:
                    child.process.wait()
        return forced

    def _announce_runs(self) -> float:
        """Say how many runs will be stopped; return how long the supervisor may take for it."""
        active = leftovers.unended(self.home)
        longest = max((each.grace_s() for each in active), default=0.0)
        if active and self._keep_runs:
            self._say(f"leaving {_count(len(active))} going; the next mosaic up takes over")
        elif active:
            self._say(f"stopping {_count(len(active))}… (at most {longest:g} s; Ctrl-C again kills)")
        return self._tuning.stop_timeout_s if self._keep_runs else longest + _SUPERVISOR_EXTRA_S


def _count(runs: int) -> str:
    return "1 run" if runs == 1 else f"{runs} runs"
