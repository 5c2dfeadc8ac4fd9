"""What the scheduler knows: runs, their attempts, hosts. Plain data."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mosaic_bus.messages import AttemptPhase, FailureCategory, RunState, RunStateName

if TYPE_CHECKING:
    from mosaic_bus.messages import EnvironmentStatus, ExitReport, HostState, Resources, RunSpec

__all__ = ["Attempt", "Ending", "Host", "Key", "Run"]

# (run, attempt number)
Key = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Ending:
    """What a run that is being stopped becomes once it has stopped."""

    state: RunStateName
    reason: str
    category: FailureCategory | None = None


@dataclass(slots=True)
class Attempt:
    """One placement of a run on a host."""

    run: str
    number: int
    host: str
    resources: Resources
    placed_at: float
    acknowledged: bool = False
    phase: AttemptPhase | None = None
    started_at: float | None = None
    ended_at: float | None = None
    outcome: str = ""
    exit: ExitReport | None = None
    # Below: monotonic moments and counts of this life of the scheduler, not stored.
    seen_at: float = 0.0
    accepted_at: float = 0.0
    offered_at: float = 0.0
    missing_since: float | None = None
    missing_reports: int = 0
    stop_acknowledged: bool = False

    @property
    def key(self) -> Key:
        """Which attempt of which run."""
        return (self.run, self.number)


@dataclass(slots=True)
class Run:
    """One run, from its submission to its end and after."""

    id: str
    seq: int
    spec: RunSpec
    name: str
    submitted_at: float
    changed_at: float
    warnings: tuple[str, ...] = ()
    state: RunStateName = RunStateName.QUEUED
    reason: str = ""
    category: FailureCategory | None = None
    host: str | None = None
    started_at: float | None = None
    ended_at: float | None = None
    exit_code: int | None = None
    detail: str = ""
    ending: Ending | None = None
    # Fingerprint of the environment whose schema accepted the configuration.
    checked: str = ""
    attempts: list[Attempt] = field(default_factory=list)
    decisions: int = 0
    last_decision: tuple[str, str] = ("", "")

    @property
    def final(self) -> bool:
        """Whether the run will never change again."""
        return self.state.final

    @property
    def current(self) -> Attempt | None:
        """The attempt that is under way, if the run is placed."""
        return self.attempts[-1] if self.attempts and not self.final and self.state is not RunStateName.QUEUED else None

    @property
    def short(self) -> str:
        """How people see the id."""
        return self.id[-6:]

    def render(self, reason: str | None = None) -> RunState:
        """Make the message that says how the run is; `reason` replaces the one it keeps."""
        return RunState(
            run=self.id,
            name=self.name,
            worker=self.spec.worker,
            profile=self.spec.profile,
            state=self.state,
            reason=self.reason if reason is None else reason,
            category=self.category,
            attempt=self.attempts[-1].number if self.attempts else 0,
            host=self.host,
            submitted_at=self.submitted_at,
            changed_at=self.changed_at,
            started_at=self.started_at,
            ended_at=self.ended_at,
            exit_code=self.exit_code,
            detail=self.detail,
        )


@dataclass(slots=True)
class Host:
    """A host: its last report, and what we placed there that has not ended."""

    name: str
    heard_at: float
    state: HostState | None = None
    silent: bool = False
    placed: dict[Key, Attempt] = field(default_factory=dict)
    listed: frozenset[Key] = frozenset()
    environments: dict[tuple[str, str], EnvironmentStatus] = field(default_factory=dict)
    # When each command was last sent, so that repeats are paced: (command, run, attempt) -> monotonic moment.
    sent: dict[tuple[str, str, int], float] = field(default_factory=dict)

    def report(self, state: HostState, now: float) -> None:
        """Take a report."""
        self.state = state
        self.heard_at = now
        self.listed = frozenset((each.run, each.attempt) for each in state.attempts)
        self.environments = {(each.worker, each.profile): each for each in state.environments}
        self.sent = {
            key: at for key, at in self.sent.items() if key[1:] in self.listed or key[1:] in self.placed or not key[2]
        }

    def free(self) -> tuple[float, int]:
        """CPUs and memory that nothing takes: reported attempts and placed ones not yet reported, each once."""
        if self.state is None:
            return (0.0, 0)
        cpus, memory = self.state.total.cpus, self.state.total.memory_mb
        for report in self.state.attempts:
            if report.phase is not AttemptPhase.ENDED:
                cpus -= report.resources.cpus
                memory -= report.resources.memory_mb
        for key, attempt in self.placed.items():
            if key not in self.listed:
                cpus -= attempt.resources.cpus
                memory -= attempt.resources.memory_mb
        return (cpus, memory)
