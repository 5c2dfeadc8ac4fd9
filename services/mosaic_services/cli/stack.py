"""A stack as one thing: its services in order, made ready, kept alive, taken down without leaving anything."""

from __future__ import annotations

import contextlib
import signal
import time
from typing import TYPE_CHECKING

from mosaic_bus import Bus, BusError, Home
from mosaic_bus.commands import Hosts, Ping, Show
from mosaic_bus.home import Address
from mosaic_bus.messages import AttemptPhase
from mosaic_bus.topics import supervisor
from mosaic_services.cli.children import Child, Signals, how_it_ended
from mosaic_services.cli.errors import FAILED, USAGE, CliError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["KEEP_RUNS", "Stack", "StackStoppedError"]

_READY_TIMEOUT_S = 30.0
_STOP_TIMEOUT_S = 10.0
# Beyond the longest grace period of a run: to end it, and to see its last lines stored.
_SUPERVISOR_EXTRA_S = 25.0
_CANNOT_RUN = 2
# What `mosaic down --keep-runs` sends, once the supervisor knows: end, the runs go on.
KEEP_RUNS = signal.SIGUSR1
_STOP_SIGNALS = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGHUP, KEEP_RUNS})


class StackStoppedError(Exception):
    """Somebody asked for the stack to end while it was starting."""


class Stack:
    """The services of one home. `start`, then `keep` until a signal comes, then `stop`."""

    def __init__(self, home: Home, address: str, host: str, limits: list[str], say: Callable[[str], None]) -> None:
        self.home = home
        self.address = address
        self.host = host
        self._say = say
        self._keep_runs = False
        common = ["--home", str(home.path), "--bus", address]
        services = [
            ("broker", "broker", common),
            ("scheduler", "scheduler", common),
            ("telemetry", "telemetry", common),
            ("supervisor", supervisor(host), [*common, "--host", host, *limits]),
        ]
        self.children = [Child(name, service, args, home.logs / f"{name}.log") for name, service, args in services]
        self._signals = Signals(signal.SIGCHLD, *_STOP_SIGNALS)

    # ── starting ────────────────────────────────────────────────────────────────────────────────

    def start(self, progress: Callable[[str], None]) -> None:
        """Start all services and wait until each answers; `progress` hears of each that does."""
        for child in self.children:
            child.start()
        deadline = time.monotonic() + _READY_TIMEOUT_S
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
                bus.request(child.service, Ping(), timeout=0.3)
                return

    def _check_starting(self, deadline: float, waiting_for: Child) -> None:
        if _STOP_SIGNALS & set(self._signals.wait(0)):
            raise StackStoppedError
        for child in self.children:
            if not child.running:
                raise self._could_not_run(child)
        if time.monotonic() > deadline:
            words = "\n".join(waiting_for.last_words())
            message = f"{waiting_for.name} did not answer within {_READY_TIMEOUT_S:g} s"
            raise CliError(message, f"end of {waiting_for.log}:\n{words}")

    @staticmethod
    def _could_not_run(child: Child) -> CliError:
        if child.code == _CANNOT_RUN:
            return CliError(f"{child.name} cannot run: {child.reason()}", f"its log: {child.log}", code=USAGE)
        words = "\n".join(child.last_words())
        return CliError(
            f"{child.name} {how_it_ended(child.code)} while starting", f"end of {child.log}:\n{words}", code=FAILED
        )

    # ── keeping alive ───────────────────────────────────────────────────────────────────────────

    def keep(self) -> None:
        """Restart what dies, until a signal asks us to end; raise if a service says that it cannot run."""
        while True:
            now = time.monotonic()
            for child in self.children:
                if child.restart_at is not None and child.restart_at <= now:
                    child.start()
                    self._say(f"{child.name} started again, pid {child.pid}")
                elif child.restart_at is None and not child.running:
                    self._bury(child, now)
            pending = [child.restart_at for child in self.children if child.restart_at is not None]
            received = self._signals.wait(max(0.0, min(pending) - time.monotonic()) if pending else None)
            if _STOP_SIGNALS & set(received):
                self._keep_runs = KEEP_RUNS in received
                return

    def _bury(self, child: Child, now: float) -> None:
        if child.code == _CANNOT_RUN:
            raise self._could_not_run(child)
        delay = child.schedule_restart(now)
        self._say(f"{child.name} (pid {child.pid}) {how_it_ended(child.code)}; starting it again in {delay:g} s")

    # ── stopping ────────────────────────────────────────────────────────────────────────────────

    def stop(self) -> None:
        """End the services, supervisor first and broker last; a second signal kills what is left."""
        grace = self._announce_runs()
        forced = False
        for child in reversed(self.children[1:]):
            forced = self._end(child, grace if child.name == "supervisor" else _STOP_TIMEOUT_S, forced=forced)
        self._end(self.children[0], _STOP_TIMEOUT_S, forced=forced)
        for socket in ("in.sock", "out.sock"):
            (self.home.sockets / socket).unlink(missing_ok=True)

    def _end(self, child: Child, timeout: float, *, forced: bool) -> bool:
        deadline = time.monotonic() + timeout
        child.signal(signal.SIGKILL if forced else signal.SIGTERM)
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
        if not all(child.running for child in self.children):
            return _STOP_TIMEOUT_S
        with contextlib.suppress(BusError), Bus(Address.parse(self.address), connect_timeout=0.5) as bus:
            hosts = bus.request("scheduler", Hosts(), timeout=1.0).hosts
            active = [
                each.run
                for host in hosts
                if host.host == self.host
                for each in host.attempts
                if each.phase is not AttemptPhase.ENDED
            ]
            if not active:
                return _STOP_TIMEOUT_S
            what = "1 run" if len(active) == 1 else f"{len(active)} runs"
            if self._keep_runs:
                self._say(f"leaving {what} going; the next mosaic up takes over")
                return _STOP_TIMEOUT_S
            graces = [bus.request("scheduler", Show(run=run), timeout=1.0).spec.grace_s for run in active[:50]]
            self._say(f"stopping {what}… (at most {max(graces):g} s; Ctrl-C again kills)")
            return max(graces) + _SUPERVISOR_EXTRA_S
        return _STOP_TIMEOUT_S
