"""The queue: runs that wait, by priority and then first come first served, grouped by what they demand.

Runs with equal demands fit or wait together, so a pass looks once at each demand, not once at each run. A run that
does not fit lets smaller ones pass (back-fill), but not for ever: once it has been overtaken for a while, a host is
kept free for it.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mosaic_services.scheduler.placement import Choice, Demand, Wait, choose, could_take

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from mosaic_services.scheduler.model import Host, Run

__all__ = ["Group", "Queue"]


@dataclass(slots=True)
class Group:
    """Waiting runs of one demand, and why they wait."""

    demand: Demand
    runs: dict[str, Run] = field(default_factory=dict)
    wait: Wait = field(default_factory=lambda: Wait("", "waits for its turn"))
    # Whether `runs` is sorted. Sorting is postponed, since thousands of runs may arrive or change before it matters.
    ordered: bool = True

    @property
    def head(self) -> Run:
        """The run that goes first."""
        if not self.ordered:
            self.runs = {each.id: each for each in sorted(self.runs.values(), key=lambda each: each.order)}
            self.ordered = True
        return next(iter(self.runs.values()))


class Queue:
    """All waiting runs: those that could start, and those that may not yet."""

    def __init__(self, keep_free_after_s: float) -> None:
        self._keep_free_after_s = keep_free_after_s
        self._groups: dict[Demand, Group] = {}
        # The group of each run that could start.
        self._group_of: dict[str, Group] = {}
        # Runs that a host refused and may still have; they stay here until that is settled.
        self.deferred: dict[str, Run] = {}
        # Runs that wait for other runs to succeed.
        self.blocked: dict[str, Run] = {}
        # Runs that wait for checkpoints of other runs.
        self.awaiting: dict[str, Run] = {}
        # Runs that failed and wait for their retry delay.
        self.resting: dict[str, Run] = {}
        # Host kept free -> the run it is kept for.
        self.kept: dict[str, Run] = {}

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __iter__(self) -> Iterator[Run]:
        for each in (self.deferred, self.blocked, self.awaiting, self.resting):
            yield from each.values()
        yield from self.ready()

    def ready(self) -> Iterator[Run]:
        """Runs that could start if there were room, in no order."""
        for group in self._groups.values():
            yield from group.runs.values()

    def add(self, run: Run) -> None:
        """Add a run to those that could start."""
        self.remove(run)
        demand = Demand.of(run.spec, run.inputs)
        group = self._groups.setdefault(demand, Group(demand))
        self._group_of[run.id] = group
        if group.runs and next(reversed(group.runs.values())).order > run.order:
            group.ordered = False
        group.runs[run.id] = run

    def remove(self, run: Run) -> None:
        """Remove a run from whatever it waits in."""
        for each in (self.deferred, self.blocked, self.awaiting, self.resting):
            each.pop(run.id, None)
        if group := self._group_of.pop(run.id, None):
            del group.runs[run.id]
            if not group.runs:
                del self._groups[group.demand]

    def reorder(self, run: Run) -> None:
        """Note that a run has another priority."""
        if group := self._group_of.get(run.id):
            group.ordered = False

    def group(self, run: Run) -> Group | None:
        """The group of a run, if it could start."""
        return self._group_of.get(run.id)

    def awake(self, now: float) -> list[Run]:
        """Runs whose retry delay is over."""
        return [run for run in self.resting.values() if now >= run.rests_until]

    def place(
        self, hosts: Collection[Host], now: float, paused: str, start: Callable[[Run, Choice], None]
    ) -> list[Group]:
        """Start every run that fits, in order; return the groups whose reason to wait changed.

        `start` must take the room on the host; the run has then left the queue.
        """
        if paused:
            return self._wait_all(Wait("paused", f"the queue is paused ({paused})"))
        changed: list[Group] = []
        waiting: list[Group] = []
        before, self.kept = self.kept, {}
        groups = list(self._groups.values())
        heads = [(*group.head.order, index) for index, group in enumerate(groups)]
        heapq.heapify(heads)
        while heads:
            *_, index = heapq.heappop(heads)
            group = groups[index]
            run = group.head
            match choose(group.demand, run, hosts, now, self.kept):
                case Choice() as choice:
                    self.remove(run)
                    run.overtaken_at = None
                    self._note_overtaking(waiting, choice.host, now)
                    start(run, choice)
                    if group.runs:
                        heapq.heappush(heads, (*group.head.order, index))
                case Wait() as wait:
                    if wait.kind != group.wait.kind:
                        changed.append(group)
                    group.wait = wait
                    if wait.for_room:
                        waiting.append(group)
                        self._keep_free(group, hosts, now, before)
        return changed

    def _wait_all(self, wait: Wait) -> list[Group]:
        changed = [group for group in self._groups.values() if group.wait.kind != wait.kind]
        for group in self._groups.values():
            group.wait = wait
        return changed

    @staticmethod
    def _note_overtaking(waiting: list[Group], host: Host, now: float) -> None:
        """Note which waiting runs could have used the host that a later run gets."""
        for group in waiting:
            if group.head.overtaken_at is None and could_take(group.demand, host):
                group.head.overtaken_at = now

    def _keep_free(self, group: Group, hosts: Collection[Host], now: float, before: dict[str, Run]) -> None:
        """Keep a host free for a run that has been overtaken for too long: the same host as before, or the emptiest."""
        run = group.head
        if run.overtaken_at is None or now - run.overtaken_at < self._keep_free_after_s:
            return
        able = [
            host
            for host in hosts
            if host.name not in self.kept and not host.silent and not host.drained and could_take(group.demand, host)
        ]
        if able:
            best = max(able, key=lambda host: (before.get(host.name) is run, host.free().cpus / host.total().cpus))
            self.kept[best.name] = run
