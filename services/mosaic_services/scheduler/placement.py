"""Where a run can go, and if nowhere, why: pure functions over hosts and demands."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from mosaic_bus.messages import Resources, RunSpec
    from mosaic_services.scheduler.model import Host

__all__ = ["Choice", "Demand", "Wait", "amounts", "choose", "could_hold"]

# Sums of fractions of CPUs are compared with this tolerance.
_EPSILON = 1e-9
_HOSTS_NAMED = 4


@dataclass(frozen=True, slots=True)
class Demand:
    """What decides where a run can go; runs with equal demands are interchangeable for placement."""

    worker: str
    profile: str
    cpus: float
    memory_mb: int

    @classmethod
    def of(cls, spec: RunSpec) -> Demand:
        """Read the demand of a spec."""
        return cls(spec.worker, spec.profile, spec.resources.cpus, spec.resources.memory_mb)

    @property
    def environment(self) -> tuple[str, str]:
        """Which environment it needs."""
        return (self.worker, self.profile)


@dataclass(frozen=True, slots=True)
class Choice:
    """A host that can take the run now."""

    host: Host
    installed: bool
    reason: str


@dataclass(frozen=True, slots=True)
class Wait:
    """No host can take the run now. `kind` changes only when the reason does in more than its numbers."""

    kind: str
    reason: str


def choose(demand: Demand, hosts: Iterable[Host], now: float) -> Choice | Wait:
    """Take the first host with the environment installed that fits, else the first that can build it."""
    known = [host for host in hosts if host.state is not None]
    if not known:
        return Wait("no_host", "no host has reported yet")
    fitting: list[tuple[bool, Host]] = []
    full: list[Host] = []
    silent: list[Host] = []
    broken: list[Host] = []
    closed: list[_Closed] = []
    for host in known:
        environment = host.environments.get(demand.environment)
        if environment is None:
            continue
        if environment.status == "broken":
            broken.append(host)
        elif host.silent:
            silent.append(host)
        elif closing := _closed(host, now):
            closed.append(closing)
        elif _fits(demand, *host.free()):
            fitting.append((environment.status == "installed", host))
        else:
            full.append(host)
    if fitting:
        installed, host = next((each for each in fitting if each[0]), fitting[0])
        return Choice(host, installed, _why_here(demand, host, installed))
    return _why_not(demand, full, closed, silent, broken)


@dataclass(frozen=True, slots=True)
class _Closed:
    """A host that takes nothing at the moment."""

    kind: str
    reason: str


def _closed(host: Host, now: float) -> _Closed | None:
    if conflict := host.conflict(now):
        return _Closed(f"conflict:{host.name}", conflict)
    if host.state is not None and host.state.draining:
        return _Closed(f"draining:{host.name}", f"{host.name} is about to end")
    if held := host.held(now):
        return _Closed(f"held:{host.name}", held)
    return None


def could_hold(demand: Demand, host: Host) -> bool:
    """Whether the host, if it were empty, had room."""
    return host.state is not None and _fits(demand, host.state.total.cpus, host.state.total.memory_mb)


def amounts(resources: Resources | Demand) -> str:
    """Say what a run needs or a host has: `2 cpus and 1024 MB`."""
    return f"{_cpus(resources.cpus)} and {resources.memory_mb} MB"


def _fits(demand: Demand, cpus: float, memory_mb: int) -> bool:
    return demand.cpus <= cpus + _EPSILON and demand.memory_mb <= memory_mb


def _why_here(demand: Demand, host: Host, installed: bool) -> str:
    total = host.state.total if host.state else None
    cpus, memory = host.free()
    how = "has" if installed else "can build"
    room = f"{_number(cpus)} of {_number(total.cpus)} cpus and {memory} of {total.memory_mb} MB free" if total else ""
    return f"it {how} {demand.worker}/{demand.profile} and had {room}"


def _why_not(demand: Demand, full: list[Host], closed: list[_Closed], silent: list[Host], broken: list[Host]) -> Wait:
    what = f"worker {demand.worker}" + ("" if demand.profile == "default" else f", profile {demand.profile},")
    if full:
        lacking = _lacking(demand, full)
        amount = {"cpus": _cpus(demand.cpus), "memory": f"{demand.memory_mb} MB"}
        needs = " and ".join(amount[each] for each in lacking)
        states = _listed([_room(host, lacking) for host in full])
        names = ",".join(host.name for host in full)
        note = "".join(f"; {each.reason}" for each in closed[:_HOSTS_NAMED])
        note += f"; silent: {_listed([host.name for host in silent])}" if silent else ""
        others = ",".join([*(each.kind for each in closed), str(len(silent))])
        return Wait(f"room:{'+'.join(lacking)}:{names}:{others}", f"waits for {needs}: {states}{note}")
    if closed:
        note = f"; silent: {_listed([host.name for host in silent])}" if silent else ""
        reasons = "; ".join(each.reason for each in closed[:_HOSTS_NAMED])
        return Wait(",".join([*(each.kind for each in closed), str(len(silent))]), f"{reasons}{note}")
    if silent:
        names = _listed([host.name for host in silent])
        return Wait(f"silent:{names}", f"waits for a host with {what} to report again: {names} is silent")
    if broken:
        host = broken[0]
        detail = host.environments[demand.environment].detail or "no detail"
        return Wait(f"broken:{host.name}", f"{what} is broken on {host.name}: {detail}")
    return Wait("no_worker", f"no host has {what.rstrip(',')}")


def _lacking(demand: Demand, hosts: list[Host]) -> list[str]:
    """Which resources stand in the way on at least one of the hosts."""
    free = [host.free() for host in hosts]
    lacking = []
    if any(demand.cpus > cpus + _EPSILON for cpus, _ in free):
        lacking.append("cpus")
    if any(demand.memory_mb > memory for _, memory in free):
        lacking.append("memory")
    return lacking


def _room(host: Host, lacking: list[str]) -> str:
    cpus, memory = host.free()
    total = host.state.total if host.state else None
    parts = []
    if total is not None and "cpus" in lacking:
        unit = " cpus" if len(lacking) > 1 else ""
        parts.append(f"{_number(max(cpus, 0.0))} of {_number(total.cpus)}{unit}")
    if total is not None and "memory" in lacking:
        parts.append(f"{max(memory, 0)} of {total.memory_mb} MB")
    return f"{host.name} has {' and '.join(parts)} free"


def _listed(texts: list[str]) -> str:
    more = len(texts) - _HOSTS_NAMED
    return ", ".join(texts[:_HOSTS_NAMED]) + (f" and {more} more" if more > 0 else "")


def _cpus(value: float) -> str:
    return f"{_number(value)} cpu{'' if value == 1 else 's'}"


def _number(value: float) -> str:
    return f"{round(value, 2):g}"
