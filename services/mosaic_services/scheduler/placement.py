"""Chooses a host for a run, or says why none will do: pure functions over hosts and demands."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mosaic_services.scheduler.model import WHOLE_GPU, hundredths
from mosaic_services.scheduler.wording import cpus_text, gpus_text, listed, number

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from mosaic_bus.messages import Input, RunSpec
    from mosaic_services.scheduler.model import Host, Room, Run

__all__ = ["Choice", "Demand", "Wait", "choose", "could_hold", "could_take", "pick_gpus", "suits"]

# Tolerance for comparing sums of fractional CPUs.
_EPSILON = 1e-9
_HOSTS_NAMED = 4


@dataclass(frozen=True, slots=True)
class Demand:
    """What placement depends on; runs with equal demands are interchangeable."""

    # (worker, profile) of each environment that must be on the host, the run's own first.
    environments: tuple[tuple[str, str], ...]
    cpus: float
    memory_mb: int
    gpus: float = 0.0
    requires: frozenset[str] = frozenset()
    # Hosts that have the checkpoints it reads; empty if any host will do.
    hosts: frozenset[str] = frozenset()

    @classmethod
    def of(cls, spec: RunSpec, inputs: Collection[Input] = ()) -> Demand:
        """The demand of a spec and of the checkpoints that it reads."""
        asked = spec.resources
        return cls(
            ((spec.worker, spec.profile), *((use.worker, use.profile) for use in spec.uses)),
            asked.cpus,
            asked.memory_mb,
            asked.gpus,
            frozenset(spec.requires),
            frozenset(each.host for each in inputs),
        )

    @property
    def what(self) -> str:
        """What a host must have, in words."""
        workers = " and ".join(_name(each) for each in self.environments)
        tags = f" and the tags {', '.join(sorted(self.requires))}" if self.requires else ""
        where = f", and is {' and '.join(sorted(self.hosts))}, where its checkpoint is" if self.hosts else ""
        return f"{workers}{tags}{where}"

    def missing(self, host: Host) -> list[str]:
        """Name the environments that a host neither has nor can build."""
        return [_name(each) for each in self.environments if each not in host.environments]


def _name(environment: tuple[str, str]) -> str:
    worker, profile = environment
    return f"worker {worker}" if profile == "default" else f"worker {worker}/{profile}"


@dataclass(frozen=True, slots=True)
class Choice:
    """A host that can take the run now, and which of its GPUs the run gets."""

    host: Host
    installed: bool
    reason: str
    gpus: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Wait:
    """No host can take the run now. `kind` stays the same if only the numbers in the reason change."""

    kind: str
    reason: str

    @property
    def for_room(self) -> bool:
        """Whether it would fit if other runs ended."""
        return self.kind.startswith("room:")


def choose(demand: Demand, run: Run, hosts: Collection[Host], now: float, kept: Mapping[str, Run]) -> Choice | Wait:
    """Choose the best host that can take the run now; `kept` are hosts kept free, and for which run."""
    known = [host for host in hosts if host.state is not None]
    if not known:
        return Wait("no_host", "no host has reported yet")
    found = _Found()
    for host in known:
        if not suits(demand, host):
            continue
        if missing := demand.missing(host):
            found.lacking.append(f"{host.name} lacks {' and '.join(missing)}")
            continue
        statuses = {host.environments[each].status for each in demand.environments}
        if "broken" in statuses:
            found.broken.append(host)
        elif host.silent:
            found.silent.append(host)
        elif closing := _closed(host, run, now, kept):
            found.closed.append(closing)
        elif _fits(demand, host.free()):
            found.fitting.append((statuses == {"installed"}, host))
        else:
            found.full.append(host)
    if not found.fitting:
        return _why_not(demand, found)
    installed, host = min(found.fitting, key=lambda each: _badness(demand, run, *each))
    gpus = pick_gpus(demand.gpus, host.free().gpus) or {}
    return Choice(host, installed, _why_here(demand, run, host), gpus)


@dataclass(slots=True)
class _Found:
    """Hosts that have the tags, by what prevents placement."""

    fitting: list[tuple[bool, Host]] = field(default_factory=list)
    full: list[Host] = field(default_factory=list)
    closed: list[_Closed] = field(default_factory=list)
    silent: list[Host] = field(default_factory=list)
    broken: list[Host] = field(default_factory=list)
    # `HOST lacks ENVIRONMENT` for each host that lacks one.
    lacking: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Closed:
    """A host that takes no runs, or not this one, at the moment."""

    kind: str
    reason: str


def _badness(demand: Demand, run: Run, installed: bool, host: Host) -> tuple[bool, bool, bool, bool]:
    """Reasons against a host, the most important first; a tie goes to the first by name."""
    last = run.attempts[-1] if run.attempts else None
    resumes_elsewhere = run.checkpoint is not None and last is not None and last.host != host.name
    failed_here = run.checkpoint is None and last is not None and last.host == host.name
    wastes_gpus = demand.gpus == 0 and bool(host.total().gpus)
    return (not installed, resumes_elsewhere, failed_here, wastes_gpus)


def _closed(host: Host, run: Run, now: float, kept: Mapping[str, Run]) -> _Closed | None:
    if conflict := host.conflict(now):
        return _Closed(f"conflict:{host.name}", conflict)
    if host.state is not None and host.state.draining:
        return _Closed(f"draining:{host.name}", f"{host.name} is about to end")
    if host.drained:
        return _Closed(f"drained:{host.name}", f"{host.name} is drained ({host.drained})")
    if held := host.held(now):
        return _Closed(f"held:{host.name}", held)
    if (waiting := kept.get(host.name)) and waiting is not run:
        said = f"{host.name} is kept free for {waiting.name} ({waiting.short}), which has waited longer"
        return _Closed(f"kept:{host.name}:{waiting.id}", said)
    return None


def suits(demand: Demand, host: Host) -> bool:
    """Whether a host has the required tags, no unwanted tag, and the checkpoints that the run reads."""
    if demand.hosts and host.name not in demand.hosts:
        return False
    return all(tag[1:] not in host.tags if tag.startswith("!") else tag in host.tags for tag in demand.requires)


def could_hold(demand: Demand, host: Host) -> bool:
    """Whether the host, if it were empty, would have room."""
    return _fits(demand, host.total())


def could_take(demand: Demand, host: Host) -> bool:
    """Whether the host, if it were empty, could take the run."""
    return not demand.missing(host) and suits(demand, host) and could_hold(demand, host)


def pick_gpus(asked: float, free: Mapping[str, int]) -> dict[str, float] | None:
    """Choose whole GPUs, or a share of the fullest one that has room; None if there are not enough."""
    if asked == 0:
        return {}
    if asked < 1:
        share = hundredths(asked)
        fitting = [(left, gpu) for gpu, left in free.items() if left >= share]
        return {min(fitting)[1]: asked} if fitting else None
    whole = [gpu for gpu, left in free.items() if left >= WHOLE_GPU][: int(asked)]
    return dict.fromkeys(whole, 1.0) if len(whole) == asked else None


def _fits(demand: Demand, room: Room) -> bool:
    return not _lacking(demand, room)


def _lacking(demand: Demand, room: Room) -> list[str]:
    """The resources that do not suffice."""
    lacking = []
    if demand.cpus > room.cpus + _EPSILON:
        lacking.append("cpus")
    if demand.memory_mb > room.memory_mb:
        lacking.append("memory")
    if pick_gpus(demand.gpus, room.gpus) is None:
        lacking.append("gpus")
    return lacking


def _why_here(demand: Demand, run: Run, host: Host) -> str:
    total, free = host.total(), host.free()
    ready = [each for each in demand.environments if host.environments[each].status == "installed"]
    verbs = {"has": ready, "can build": [each for each in demand.environments if each not in ready]}
    how = [f"{verb} {' and '.join('/'.join(each) for each in them)}" for verb, them in verbs.items() if them]
    room = f"{number(free.cpus)} of {number(total.cpus)} cpus and {free.memory_mb} of {total.memory_mb} MB free"
    gpus = f", and {_gpus_free(free)} of {len(total.gpus)} GPUs" if demand.gpus else ""
    resumes = ""
    if run.checkpoint is not None and run.attempts and run.attempts[-1].host == host.name:
        resumes = "; its checkpoint is there"
    if demand.hosts:
        resumes += "; the checkpoint that it reads is there"
    return f"it {', '.join(how)} and had {room}{gpus}{resumes}"


def _why_not(demand: Demand, found: _Found) -> Wait:
    silent = f"; silent: {listed([host.name for host in found.silent])}" if found.silent else ""
    others = ",".join([*(each.kind for each in found.closed), str(len(found.silent))])
    if found.full:
        lacking = sorted({each for host in found.full for each in _lacking(demand, host.free())})
        amount = {"cpus": cpus_text(demand.cpus), "memory": f"{demand.memory_mb} MB", "gpus": gpus_text(demand.gpus)}
        needs = " and ".join(amount[each] for each in lacking)
        states = listed([_room(host, lacking) for host in found.full])
        names = ",".join(host.name for host in found.full)
        note = "".join(f"; {each.reason}" for each in found.closed[:_HOSTS_NAMED])
        return Wait(f"room:{'+'.join(lacking)}:{names}:{others}", f"waits for {needs}: {states}{note}{silent}")
    if found.closed:
        reasons = "; ".join(each.reason for each in found.closed[:_HOSTS_NAMED])
        return Wait(others, f"{reasons}{silent}")
    if found.silent:
        names = listed([host.name for host in found.silent])
        return Wait(f"silent:{names}", f"waits for a host with {demand.what} to report again: {names} is silent")
    if found.broken:
        host = found.broken[0]
        broken = next(each for each in demand.environments if host.environments[each].status == "broken")
        detail = host.environments[broken].detail or "no detail"
        return Wait(f"broken:{host.name}", f"{_name(broken)} is broken on {host.name}: {detail}")
    each = f": {listed(found.lacking)}" if len(demand.environments) > 1 and found.lacking else ""
    return Wait(f"no_worker{each}", f"no host has {demand.what}{each}")


def _gpus_free(room: Room) -> str:
    return number(sum(max(left, 0) for left in room.gpus.values()) / WHOLE_GPU)


def _room(host: Host, lacking: list[str]) -> str:
    free, total = host.free(), host.total()
    parts = {
        "cpus": f"{number(max(free.cpus, 0.0))} of {number(total.cpus)}{' cpus' if len(lacking) > 1 else ''}",
        "memory": f"{max(free.memory_mb, 0)} of {total.memory_mb} MB",
        "gpus": f"{_gpus_free(free)} of {len(total.gpus)}{' GPUs' if len(lacking) > 1 else ''}",
    }
    return f"{host.name} has {' and '.join(parts[each] for each in lacking)} free"
