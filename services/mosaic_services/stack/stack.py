"""Runs the services of a stack: starts them in order, restarts what dies, stops everything."""

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

# Time that a supervisor gets beyond the longest grace period: it needs up to 15 s to end runs and to see their last
# lines stored.
_SUPERVISOR_EXTRA_S = 20.0
# Interval of checks whether run hosts have ended.
# Interval of checks whether run hosts have ended.
_LOOK_S = 0.1
# Sent by `mosaic down --keep-runs`: stop the services, leave the runs going.
KEEP_RUNS = signal.SIGUSR1
# Makes a supervisor end and leave its runs going. The kernel sends it, too, if `mosaic up` is killed.
DETACH = signal.SIGUSR2
_STOP_SIGNALS = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGHUP, KEEP_RUNS})


class Stack:
    """The services of one home. Call `start`, then `keep`, which returns on a signal, then `stop`."""

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
        # Runs are stopped only on request, never because of an error here.
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

    def start(self, progress: Callable[[str], None], prepare: Callable[[Bus], None] | None = None) -> None:
        """Start all services and wait until each answers; `progress` is called with the name of each.

        `prepare` is called before the services of hosts start, and so before anything of the queue is placed.
        """
        deadline = time.monotonic() + self._tuning.ready_timeout_s
        if prepare is None:
            self._start(self.children, deadline, progress)
            return
        self._start([child for child in self.children if not child.row.per_host], deadline, progress)
        with self._connect(deadline) as bus:
            prepare(bus)
        self._start([child for child in self.children if child.row.per_host], deadline, progress)

    def _start(self, children: list[Child], deadline: float, progress: Callable[[str], None]) -> None:
        for child in children:
            try:
                child.start()
            except (OSError, subprocess.SubprocessError) as error:
                raise StackError(f"{child.name} could not be started: {error}") from error
        with self._connect(deadline) as bus:
            for child in children:
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
            if child.process is not None and not child.running:
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
        """Restart services that die, until a signal asks to stop."""
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
            # Out of memory, disk or processes: temporary, and the runs continue.
            delay = child.schedule_restart(now)
            self._say(f"error: {child.name} could not be started: {error}; next try in {delay:g} s")
        else:
            self._say(f"{child.name} restarted, pid {child.pid}")

    def _bury(self, child: Child, now: float) -> None:
        delay = child.schedule_restart(now)
        if child.code == CANNOT_RUN:
            self._say(f"error: {child.name} cannot run: {child.reason()}; next try in {delay:g} s")
        else:
            self._say(f"{child.name} (pid {child.pid}) {how_it_ended(child.code)}; restarting it in {delay:g} s")

    # ── stopping ────────────────────────────────────────────────────────────────────────────────

    def stop(self) -> str:
        """Stop the runs and the services, in reverse order of their start. A second signal kills what is left.

        Returns the closing message.
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
            return f"stopped; {_count(len(left))} still running: {which}"
        if left:
            return f"stopped, but {_count(len(left))} could not be ended: {which}"
        if strays := leftovers.strays(self.home):
            return f"stopped, but processes of runs or builds are left: {', '.join(map(str, sorted(strays)))}"
        return "stopped; nothing is left running"

    def _end_runs(self, timeout: float, *, forced: bool) -> bool:
        """Stop runs that the supervisor left: it was killed, or was down when the stop was requested."""
        left = leftovers.alive(self.home)
        if left and not forced:
            self._say(f"the supervisor left {_count(len(left))} running; stopping… (Ctrl-C again kills)")
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
                why = f"did not end within {timeout:g} s" if late else "was asked to end at once"
                self._say(f"{child.name} {why}: killed")
                child.signal(signal.SIGKILL)
                deadline = float("inf")
                if child.process is not None:
                    child.process.wait()
        return forced

    def _announce_runs(self) -> float:
        """Announce how many runs will be stopped; return the supervisor's time limit in seconds."""
        active = leftovers.unended(self.home)
        longest = max((each.grace_s() for each in active), default=0.0)
        if active and self._keep_runs:
            self._say(f"leaving {_count(len(active))} running; the next mosaic up takes over")
        elif active:
            self._say(f"stopping {_count(len(active))}… (at most {longest:g} s; Ctrl-C again kills)")
        return self._tuning.stop_timeout_s if self._keep_runs else longest + _SUPERVISOR_EXTRA_S


def _count(runs: int) -> str:
    return "1 run" if runs == 1 else f"{runs} runs"
