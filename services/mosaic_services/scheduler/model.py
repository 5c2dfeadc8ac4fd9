"""What the scheduler knows: runs, their attempts, hosts. Plain data."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from mosaic_bus.messages import (
    AttemptPhase,
    Checkpoint,
    EnvironmentStatus,
    ExitReport,
    FailureCategory,
    HostState,
    Input,
    Resources,
    RunSpec,
    RunState,
    RunStateName,
)
from mosaic_services.config_fields import Field  # noqa: TC001 - the store reads these types at run time

__all__ = [
    "NOT_BEGUN",
    "NOT_STORED",
    "NOT_TAKEN",
    "REFUSED",
    "WHOLE_GPU",
    "Attempt",
    "Ending",
    "Host",
    "Key",
    "Reference",
    "Room",
    "Run",
    "hundredths",
]

# Outcomes of an attempt that its host refused for the moment. REFUSED: an earlier offer may still arrive there.
REFUSED = "refused"
# NOT_BEGUN: no offer can arrive any more, so the next placement reuses the number.
NOT_BEGUN = "not begun"
# NOT_TAKEN: the host was lost before that was certain. The next placement has a new number; this one does not count.
NOT_TAKEN = "not taken"
# Back-off after a host refused an attempt: first and longest delay in seconds. It doubles with each refusal.
_HELD_S = 5.0
_HELD_AT_MOST_S = 60.0
# Seconds of silence after which another supervisor of the same name takes a host over.
_TAKEN_OVER_AFTER_S = 3.0
# The same while both are known to be alive: a supervisor that is slow for a moment must not lose its runs.
_RIVAL_AFTER_S = 10.0
# Two supervisors share a name if both reported within this many seconds.
_CONFLICT_S = 5.0

# Shares of GPUs are counted in hundredths, since sums of floats are inexact.
WHOLE_GPU = 100

# Fields of runs and attempts that belong to one life of the scheduler. A run's attempts and decisions have tables.
NOT_STORED = {
    *("attempts", "decisions", "last_decision", "version", "rests_until", "overtaken_at", "found"),
    *("seen_at", "accepted_at", "offered_at", "missing_since", "missing_reports"),
    *("stop_acknowledged", "refused_as", "warned"),
}

# (run, attempt number)
Key = tuple[str, int]


def hundredths(share: float) -> int:
    """A share of a GPU as a whole number of hundredths."""
    return round(share * WHOLE_GPU)


@dataclass(frozen=True, slots=True)
class Ending:
    """The final state of a run that is being stopped."""

    state: RunStateName
    reason: str
    category: FailureCategory | None = None


@dataclass(frozen=True, slots=True)
class Reference:
    """A field of a config that names a checkpoint of another run."""

    field: Field
    # Id of the run, and `last`, `best` or a step.
    run: str
    wanted: str


@dataclass(slots=True)
class Attempt:
    """One placement of a run on a host."""

    run: str
    number: int
    host: str
    resources: Resources
    placed_at: float
    gpus: dict[str, float] = field(default_factory=dict)
    resume: Checkpoint | None = None
    acknowledged: bool = False
    phase: AttemptPhase | None = None
    started_at: float | None = None
    ended_at: float | None = None
    outcome: str = ""
    exit: ExitReport | None = None
    # Not stored: monotonic times and counts of this process.
    seen_at: float = 0.0
    accepted_at: float = 0.0
    offered_at: float = 0.0
    missing_since: float | None = None
    missing_reports: int = 0
    stop_acknowledged: bool = False
    refused_as: str = ""
    warned: frozenset[str] = frozenset()

    @property
    def begun(self) -> bool:
        """Whether it began, as far as the scheduler knows."""
        return self.outcome not in {REFUSED, NOT_BEGUN}

    @property
    def key(self) -> Key:
        """Which attempt of which run."""
        return (self.run, self.number)


@dataclass(slots=True)
class Run:
    """One run."""

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
    priority: int = 0
    # Ids of the runs that must have succeeded first.
    after: tuple[str, ...] = ()
    # References in its config, and the checkpoints that they name once these are known.
    references: tuple[Reference, ...] = ()
    inputs: tuple[Input, ...] = ()
    # Wall-clock time of the next attempt, for display and storage; `rests_until` decides.
    next_attempt_at: float | None = None
    # Fingerprint of the environment whose schema accepted the configuration.
    checked: str = ""
    attempts: list[Attempt] = field(default_factory=list)
    decisions: int = 0
    last_decision: tuple[str, str] = ("", "")
    # Not stored: grows whenever the run changes, see `RunState.version`.
    version: int = 0
    # Not stored: monotonic times of this process.
    rests_until: float = float("-inf")
    overtaken_at: float | None = None
    # Not stored: the references resolved so far, until all are.
    found: dict[Field, Input] = field(default_factory=dict)

    @property
    def order(self) -> tuple[int, int]:
        """Sort key among waiting runs; the smallest goes first."""
        return (-self.priority, self.seq)

    @property
    def checkpoint(self) -> Checkpoint | None:
        """The newest checkpoint of any attempt, from which a further attempt resumes."""
        saved = (attempt.exit.checkpoint for attempt in reversed(self.attempts) if attempt.exit)
        return next((each for each in saved if each), None)

    @property
    def final(self) -> bool:
        """Whether the run will never change again."""
        return self.state.final

    @property
    def current(self) -> Attempt | None:
        """The current attempt, if the run is placed."""
        return self.attempts[-1] if self.attempts and not self.final and self.state is not RunStateName.QUEUED else None

    @property
    def begun(self) -> int:
        """The number of the newest attempt that began; 0 if none did."""
        return sum(attempt.begun for attempt in self.attempts)

    @property
    def allowed(self) -> int:
        """The number of attempts that it may have."""
        return self.spec.retries.max + 1 + sum(attempt.outcome == NOT_TAKEN for attempt in self.attempts)

    @property
    def short(self) -> str:
        """The end of the id, as people see it."""
        return self.id[-6:]

    def render(self, reason: str | None = None) -> RunState:
        """Make the state message; `reason` replaces the stored one."""
        return RunState(
            run=self.id,
            name=self.name,
            worker=self.spec.worker,
            profile=self.spec.profile,
            state=self.state,
            reason=self.reason if reason is None else reason,
            category=self.category,
            attempt=self.begun,
            host=self.host,
            submitted_at=self.submitted_at,
            changed_at=self.changed_at,
            started_at=self.started_at,
            ended_at=self.ended_at,
            exit_code=self.exit_code,
            detail=self.detail,
            priority=self.priority,
            group=self.spec.group,
            attempts=self.allowed,
            next_attempt_at=self.next_attempt_at,
            replaces=self.spec.replaces,
            version=self.version,
        )


@dataclass(frozen=True, slots=True)
class Room:
    """Free CPUs and memory, and the free hundredths of each GPU."""

    cpus: float = 0.0
    memory_mb: int = 0
    gpus: dict[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class Host:
    """A host: its last report, and the attempts placed there that have not ended."""

    name: str
    heard_at: float
    state: HostState | None = None
    silent: bool = False
    placed: dict[Key, Attempt] = field(default_factory=dict)
    # Attempts that it refused for the moment and that may still arrive. Until they are settled it gets nothing new.
    unsettled: dict[Key, Attempt] = field(default_factory=dict)
    # Back-off after refusals: since when, until when, after how many in a row, and why.
    held_at: float = float("-inf")
    held_until: float = float("-inf")
    refusals: int = 0
    refusal: str = ""
    # The reason a user drained it; empty if it is not drained.
    drained: str = ""
    # Another supervisor that reports under this name: its instance, its last report, whether ours reported since.
    rival: str = ""
    rival_at: float = float("-inf")
    contested: bool = False
    listed: frozenset[Key] = frozenset()
    environments: dict[tuple[str, str], EnvironmentStatus] = field(default_factory=dict)
    # (command, run, attempt) -> monotonic time when it was last sent; paces repeats.
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

    def listens_to(self, state: HostState, now: float) -> bool:
        """Whether to accept a report: it is from the current supervisor, or from one that takes over."""
        current = self.state
        if current is None or not current.instance or not state.instance or state.instance == current.instance:
            self.contested = bool(self.rival) and now - self.rival_at <= _CONFLICT_S
            return True
        patience = _RIVAL_AFTER_S if self.contested else _TAKEN_OVER_AFTER_S
        if now - self.heard_at < patience and not current.draining:
            self.rival, self.rival_at = state.instance, now
            return False
        self.rival, self.contested = "", False
        # The new supervisor may be able to do what the old one refused.
        self.refusals, self.held_until = 0, float("-inf")
        return True

    def conflict(self, now: float) -> str:
        """Describe the conflict if two supervisors use this host's name; empty if not."""
        if not self.contested or now - self.rival_at > _CONFLICT_S:
            return ""
        ours = self.state.instance if self.state else ""
        return (
            f"two supervisors call themselves {self.name}: {ours} is listened to, {self.rival} is not; "
            "stop one of them or give it another name"
        )

    def hold(self, attempt: Attempt, why: str, now: float) -> None:
        """Start or lengthen the back-off after a refusal; refusals of offers made together count once."""
        self.refusal = why
        if attempt.offered_at > self.held_at:
            self.refusals += 1
            self.held_at = now
            self.held_until = now + min(_HELD_S * 2 ** (self.refusals - 1), _HELD_AT_MOST_S)

    def took(self, attempt: Attempt) -> None:
        """Note that it accepted an attempt; if that was offered after the last refusal, the back-off ends."""
        if attempt.offered_at > self.held_at:
            self.refusals, self.held_until = 0, float("-inf")

    def held(self, now: float) -> str:
        """The reason for the back-off; empty if there is none."""
        if now >= self.held_until and not self.unsettled:
            return ""
        seconds = math.ceil(self.held_until - now) if self.held_until > now else 0
        again = f"in {seconds} s" if seconds else "once it has reported again"
        return f"{self.name} could not take it: {self.refusal or 'it refused an attempt'}; tries again {again}"

    @property
    def tags(self) -> frozenset[str]:
        """Its tags."""
        return frozenset(self.state.tags) if self.state else frozenset()

    def total(self) -> Room:
        """Its resources in all."""
        if self.state is None:
            return Room()
        total = self.state.total
        return Room(total.cpus, total.memory_mb, {gpu.id: WHOLE_GPU for gpu in self.state.gpus})

    def free(self) -> Room:
        """Its free resources: reported attempts and placed ones not yet reported are subtracted, each once."""
        total = self.total()
        if self.state is None:
            return total
        cpus, memory, gpus = total.cpus, total.memory_mb, total.gpus
        # A GPU may have gone away while runs hold it.
        taken = [
            (each.resources, each.gpus or _gpus_of(self.placed.get((each.run, each.attempt))))
            for each in self.state.attempts
            if each.phase is not AttemptPhase.ENDED
        ]
        taken += [(each.resources, each.gpus) for key, each in self.placed.items() if key not in self.listed]
        for resources, shares in taken:
            cpus -= resources.cpus
            memory -= resources.memory_mb
            for gpu, share in shares.items():
                if gpu in gpus:
                    gpus[gpu] -= hundredths(share)
        return Room(cpus, memory, gpus)


def _gpus_of(attempt: Attempt | None) -> dict[str, float]:
    return attempt.gpus if attempt else {}
