"""The live view: runs, hosts and summaries as they are now, made of snapshots and messages. Pure: no bus, no clock.

Snapshots and messages arrive in any order. Each run state has a version that grows with every change, and each summary
an attempt and a count of events; whatever is older than what is known is ignored.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from mosaic_bus.commands import SnapshotResult
    from mosaic_bus.messages import HostState, RunState, RunSummary

__all__ = ["Changes", "LiveView", "Selection", "is_settled"]

# Entries about runs and hosts that are gone, kept for readers that have not looked for long.
_GONE_REMEMBERED = 1000


@dataclass(frozen=True)
class Selection:
    """Which runs to follow: some by id, those of a group, or (if both are empty) all."""

    runs: frozenset[str] = frozenset()
    group: str = ""
    # Ended runs to keep if all runs are followed; the oldest are forgotten.
    final_limit: int = 50

    @property
    def is_all(self) -> bool:
        """Whether all runs are followed."""
        return not self.runs and not self.group

    def has(self, state: RunState) -> bool:
        """Whether a run is followed."""
        if self.runs:
            return state.run in self.runs
        return not self.group or state.group == self.group


@dataclass(frozen=True)
class Changes:
    """What changed since a reader last looked; an id that the view no longer has is gone."""

    revision: int
    runs: frozenset[str] = frozenset()
    hosts: frozenset[str] = frozenset()

    def __bool__(self) -> bool:
        """Whether anything changed."""
        return bool(self.runs or self.hosts)


class LiveView:
    """Everything that is known at this moment. Many readers can share it: each keeps a revision of its own."""

    def __init__(self, selection: Selection) -> None:
        self.selection = selection
        self.runs: dict[str, RunState] = {}
        self.summaries: dict[str, RunSummary] = {}
        self.hosts: dict[str, HostState] = {}
        # The version of the last snapshot, and how many changes there have been.
        self.version = 0
        self.revision = 0
        # The newest version of any run.
        self._newest = 0
        self._counts: Counter[str] = Counter()
        self._ended: dict[str, None] = {}
        # (kind, name) -> the revision of its last change, oldest first.
        self._changed: dict[tuple[Literal["run", "host"], str], int] = {}
        # A reader of an older revision cannot be told which runs and hosts are gone.
        self.forgotten = 0

    # ── reading ─────────────────────────────────────────────────────────────────────────────────

    @property
    def counts(self) -> dict[str, int]:
        """State -> how many runs. In a group or a list, a run that was repeated counts by its repetition."""
        if self.selection.is_all:
            return {state: count for state, count in self._counts.items() if count > 0}
        repeated = {each.replaces for each in self.runs.values()}
        return dict(Counter(each.state.value for run, each in self.runs.items() if run not in repeated))

    def changes_since(self, revision: int) -> Changes:
        """Tell which runs (their states or summaries) and hosts have changed since a revision."""
        if revision < self.forgotten:
            return Changes(self.revision, frozenset((*self.runs, *self.summaries)), frozenset(self.hosts))
        names: dict[str, set[str]] = {"run": set(), "host": set()}
        for (kind, name), at in reversed(self._changed.items()):
            if at <= revision:
                break
            names[kind].add(name)
        return Changes(self.revision, frozenset(names["run"]), frozenset(names["host"]))

    # ── taking in ───────────────────────────────────────────────────────────────────────────────

    def is_old(self, run: str, version: int) -> bool:
        """Whether something newer is known than a state of that version."""
        known = self.runs.get(run)
        if known is not None:
            return version < known.version
        # A run that the snapshot left out had ended long before.
        return self.selection.is_all and version <= self.version

    def take_state(self, state: RunState) -> bool:
        """Take in a published state; return whether it was news."""
        if self.is_old(state.run, state.version) or not self.selection.has(state):
            return False
        if state.deleted:
            known = self.runs.get(state.run)
            if known is not None:
                self._counts[known.state] -= 1
                self.drop(state.run)
            elif self.version and state.version > self._newest:  # it ended long ago, and is only counted
                self._counts[state.state] -= 1
                self._touch("run", state.run)
            self._newest = max(self._newest, state.version)
            return False
        return self._store(state)

    def take_snapshot(self, result: SnapshotResult, *, whole: bool) -> list[str]:
        """Take in a snapshot; return unfinished runs that a whole snapshot lacks: their end was missed."""
        if result.version < self.version:  # another scheduler, which has never heard of these runs
            for run in list(self.runs):
                self.drop(run)
            self._newest = 0
        for state in reversed(result.runs):
            known = self.runs.get(state.run)
            if known is None or known.version <= state.version:
                self._store(state)
        self.version = result.version
        # Otherwise a message that is newer than the snapshot was faster, and the counts already include it.
        if self._newest <= result.version:
            self._counts = Counter(result.counts)
        if not whole:
            return []
        told = {state.run for state in result.runs}
        return [
            run
            for run, known in self.runs.items()
            if run not in told and not known.state.final and known.version <= result.version
        ]

    def take_summary(self, summary: RunSummary) -> bool:
        """Take in a summary, published or asked for; return whether it was news."""
        if self.selection.is_all or self.selection.group:
            wanted = summary.run in self.runs
        else:
            wanted = summary.run in self.selection.runs
        known = self.summaries.get(summary.run)
        if not wanted or (known is not None and (_order(summary) < _order(known) or summary == known)):
            return False
        self.summaries[summary.run] = summary
        self._touch("run", summary.run)
        return True

    def take_host(self, state: HostState) -> None:
        """Take in a host's report."""
        if self.hosts.get(state.host) != state:
            self.hosts[state.host] = state
            self._touch("host", state.host)

    def drop(self, run: str) -> None:
        """Forget a run."""
        if self.runs.pop(run, None) is not None:
            self.summaries.pop(run, None)
            self._ended.pop(run, None)
            self._touch("run", run)

    def _store(self, state: RunState) -> bool:
        known = self.runs.get(state.run)
        if state == known:
            return False
        if known is not None:
            self._counts[known.state] -= 1
        self._counts[state.state] += 1
        self._newest = max(self._newest, state.version)
        self.runs[state.run] = state
        self._touch("run", state.run)
        if state.state.final and self.selection.is_all:
            self._ended[state.run] = None
            while len(self._ended) > self.selection.final_limit:
                self.drop(min(self._ended, key=lambda run: self.runs[run].ended_at or 0.0))
        return True

    def _touch(self, kind: Literal["run", "host"], name: str) -> None:
        self.revision += 1
        self._changed.pop((kind, name), None)
        self._changed[kind, name] = self.revision
        if len(self._changed) > len(self.runs) + len(self.hosts) + _GONE_REMEMBERED:
            oldest = next(iter(self._changed))
            self.forgotten = self._changed.pop(oldest)


def _order(summary: RunSummary) -> tuple[int, int, bool]:
    """Later attempts are newer; then more events; then complete before incomplete."""
    return (summary.attempt, summary.events, summary.complete)


def is_settled(state: RunState, summary: RunSummary | None) -> bool:
    """Whether nothing more will change: the run has ended and all its telemetry is stored."""
    if not state.state.final or state.attempt == 0:
        return state.state.final
    return summary is not None and summary.complete and summary.attempt == state.attempt
