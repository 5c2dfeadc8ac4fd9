"""The queue: runs that wait, first come first served, grouped by what they demand.

Runs with equal demands fit or wait together, so a pass looks once at each demand, not once at each run.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mosaic_services.scheduler.placement import Choice, Demand, Wait, choose

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from mosaic_services.scheduler.model import Host, Run

__all__ = ["Group", "Queue"]


@dataclass(slots=True)
class Group:
    """Waiting runs of one demand, oldest first, and why they wait."""

    demand: Demand
    runs: dict[str, Run] = field(default_factory=dict)
    wait: Wait = field(default_factory=lambda: Wait("", "waits for its turn"))

    @property
    def head(self) -> Run:
        """The run that came first."""
        return next(iter(self.runs.values()))


class Queue:
    """All runs that wait."""

    def __init__(self) -> None:
        self._groups: dict[Demand, Group] = {}
        # Runs that wait to hear whether a host that refused them has them after all: they go nowhere meanwhile.
        self.deferred: dict[str, Run] = {}

    def __len__(self) -> int:
        return sum(len(group.runs) for group in self._groups.values()) + len(self.deferred)

    def __iter__(self) -> Iterator[Run]:
        yield from self.deferred.values()
        for group in self._groups.values():
            yield from group.runs.values()

    def add(self, run: Run) -> None:
        """Put a run in its place: runs that were submitted later stand behind it."""
        self.deferred.pop(run.id, None)
        demand = Demand.of(run.spec)
        group = self._groups.setdefault(demand, Group(demand))
        behind = bool(group.runs) and next(reversed(group.runs.values())).seq > run.seq
        group.runs[run.id] = run
        if behind:
            group.runs = {each.id: each for each in sorted(group.runs.values(), key=lambda each: each.seq)}

    def remove(self, run: Run) -> None:
        """Take a run out, wherever it stands."""
        self.deferred.pop(run.id, None)
        group = self.group(run)
        if group.runs.pop(run.id, None) is not None and not group.runs:
            del self._groups[group.demand]

    def group(self, run: Run) -> Group:
        """The group of a run."""
        demand = Demand.of(run.spec)
        return self._groups.get(demand) or Group(demand)

    def place(self, hosts: Collection[Host], now: float, start: Callable[[Run, Choice], None]) -> list[Group]:
        """Start all that fits, in order of arrival; return the groups that now wait for another reason.

        `start` must take the room on the host; the run has then left the queue.
        """
        changed = []
        order = [(group.head.seq, demand) for demand, group in self._groups.items()]
        heads = [(seq, index) for index, (seq, _) in enumerate(order)]
        heapq.heapify(heads)
        while heads:
            _, index = heapq.heappop(heads)
            group = self._groups[order[index][1]]
            match choose(group.demand, hosts, now):
                case Choice() as choice:
                    run = group.head
                    self.remove(run)
                    start(run, choice)
                    if group.runs:
                        heapq.heappush(heads, (group.head.seq, index))
                case Wait() as wait:
                    if wait.kind != group.wait.kind:
                        changed.append(group)
                    group.wait = wait
        return changed
