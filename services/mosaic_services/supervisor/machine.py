"""The supervisor's state machine: stimuli in, instructions out; no clock, no process, no file."""

from __future__ import annotations

from dataclasses import dataclass

from mosaic_bus.commands import Forget, Place, Stop
from mosaic_bus.messages import AttemptPhase, Checkpoint, ExitReport, FailureCategory
from mosaic_services.attempt_folder import AttemptKey

__all__ = [
    "Attempt",
    "CheckpointSought",
    "Exited",
    "FindCheckpoint",
    "Instruction",
    "JournalGrew",
    "Machine",
    "Prepare",
    "PrepareFailed",
    "Prepared",
    "RecordEnd",
    "Release",
    "RunHostGone",
    "SignalStop",
    "Start",
    "Stimulus",
    "StreamsStored",
    "Sweep",
    "Swept",
    "key_of",
]


# ── stimuli: commands of the scheduler, and what happened ──────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Prepared:
    """Its environments are built."""

    key: AttemptKey


@dataclass(frozen=True, slots=True)
class PrepareFailed:
    """An environment could not be built."""

    key: AttemptKey
    reason: str
    category: FailureCategory


@dataclass(frozen=True, slots=True)
class JournalGrew:
    """Its worker has written the first line."""

    key: AttemptKey


@dataclass(frozen=True, slots=True)
class Exited:
    """Its run host has recorded how it ended."""

    key: AttemptKey
    report: ExitReport


@dataclass(frozen=True, slots=True)
class RunHostGone:
    """Its run host died without an exit record, or could not be started."""

    key: AttemptKey
    reason: str


@dataclass(frozen=True, slots=True)
class Swept:
    """All processes that a dead run host left behind are gone."""

    key: AttemptKey


@dataclass(frozen=True, slots=True)
class CheckpointSought:
    """Its journal was searched for a checkpoint from which the next attempt can resume."""

    key: AttemptKey
    checkpoint: Checkpoint | None


@dataclass(frozen=True, slots=True)
class StreamsStored:
    """Every line of its journal and log is in the store."""

    key: AttemptKey


Stimulus = (
    Place
    | Stop
    | Forget
    | Prepared
    | PrepareFailed
    | JournalGrew
    | Exited
    | RunHostGone
    | Swept
    | CheckpointSought
    | StreamsStored
)


# ── instructions ─────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Prepare:
    """Build the environments that are missing, and write the attempt's files."""

    key: AttemptKey


@dataclass(frozen=True, slots=True)
class Start:
    """Start the run host."""

    key: AttemptKey


@dataclass(frozen=True, slots=True)
class SignalStop:
    """Tell the run host to stop the worker."""

    key: AttemptKey
    reason: str


@dataclass(frozen=True, slots=True)
class Sweep:
    """Kill all processes that a dead run host left behind."""

    key: AttemptKey


@dataclass(frozen=True, slots=True)
class FindCheckpoint:
    """Find the checkpoint from which the next attempt can resume."""

    key: AttemptKey


@dataclass(frozen=True, slots=True)
class RecordEnd:
    """Write the exit record that no run host has written."""

    key: AttemptKey
    report: ExitReport


@dataclass(frozen=True, slots=True)
class Release:
    """Stop tracking the attempt."""

    key: AttemptKey


Instruction = Prepare | Start | SignalStop | Sweep | FindCheckpoint | RecordEnd | Release


@dataclass(slots=True)
class Attempt:
    """One attempt."""

    phase: AttemptPhase = AttemptPhase.PREPARING
    exit: ExitReport | None = None
    # Why its run host is gone. Set until its processes are swept; only then has the attempt ended.
    lost: str | None = None
    # How it ended, while its last checkpoint is looked for; and whether the exit record is still to be written.
    ending: ExitReport | None = None
    unrecorded: bool = False
    forgotten: bool = False
    stored: bool = False


class Machine:
    """All attempts of one host."""

    def __init__(self) -> None:
        self.attempts: dict[AttemptKey, Attempt] = {}

    def handle(self, stimulus: Stimulus, now: float) -> list[Instruction]:
        """Take in a stimulus and return what to do; `now` is the wall-clock time."""
        key = key_of(stimulus)
        if isinstance(stimulus, Place):
            if key in self.attempts:
                return []
            self.attempts[key] = Attempt()
            return [Prepare(key)]
        attempt = self.attempts.get(key)
        if attempt is None:
            return []
        if isinstance(stimulus, StreamsStored | Forget):
            return self._let_go(key, attempt, stimulus)
        if attempt.phase is AttemptPhase.ENDED:
            return []  # Late stimuli do not change an end.
        return self._advance(key, attempt, stimulus, now)

    def _advance(self, key: AttemptKey, attempt: Attempt, stimulus: Stimulus, now: float) -> list[Instruction]:
        preparing = attempt.phase is AttemptPhase.PREPARING
        if attempt.ending is not None:
            if isinstance(stimulus, CheckpointSought):
                report = attempt.ending.model_copy(update={"checkpoint": stimulus.checkpoint})
                return self._end(key, attempt, report, record=attempt.unrecorded)
            return []
        match stimulus:
            case Prepared() if preparing:
                attempt.phase = AttemptPhase.STARTING
                return [Start(key)]
            case PrepareFailed(reason=reason, category=category) if preparing:
                return self._end(key, attempt, ExitReport(code=None, category=category, reason=reason, ended_at=now))
            case JournalGrew() if attempt.phase is AttemptPhase.STARTING:
                attempt.phase = AttemptPhase.RUNNING
            case Stop(reason=reason) if preparing:
                return self._end(key, attempt, ExitReport(code=None, stopped=True, reason=reason, ended_at=now))
            case Stop(reason=reason):
                attempt.phase = AttemptPhase.STOPPING
                return [SignalStop(key, reason)]
            case Exited(report=report):
                return self._conclude(key, attempt, report)
            case RunHostGone(reason=reason) if not preparing and attempt.lost is None:
                attempt.lost = reason
                return [Sweep(key)]
            case Swept() if attempt.lost is not None:
                stopped = attempt.phase is AttemptPhase.STOPPING
                report = ExitReport(
                    code=None,
                    stopped=stopped,
                    category=None if stopped else FailureCategory.INFRASTRUCTURE,
                    reason=attempt.lost,
                    ended_at=now,
                )
                return self._conclude(key, attempt, report, record=True)
        return []

    def _conclude(
        self, key: AttemptKey, attempt: Attempt, report: ExitReport, *, record: bool = False
    ) -> list[Instruction]:
        """All its processes are gone. A success ends at once; otherwise look for a checkpoint for the next attempt."""
        if report.code == 0 and report.category is None and not report.stopped:
            return self._end(key, attempt, report, record=record)
        attempt.ending, attempt.unrecorded = _in_phase(report, attempt.phase), record
        return [FindCheckpoint(key)]

    def _end(self, key: AttemptKey, attempt: Attempt, report: ExitReport, *, record: bool = True) -> list[Instruction]:
        report = _in_phase(report, attempt.phase)
        attempt.phase, attempt.exit, attempt.ending = AttemptPhase.ENDED, report, None
        return [*([RecordEnd(key, report)] if record else []), *self._released(key, attempt)]

    def _let_go(self, key: AttemptKey, attempt: Attempt, stimulus: StreamsStored | Forget) -> list[Instruction]:
        # An adopted attempt may be marked as forgotten while its checkpoint is still looked for.
        if attempt.phase is not AttemptPhase.ENDED and attempt.ending is None:
            return []
        if isinstance(stimulus, Forget):
            attempt.forgotten = True
        else:
            attempt.stored = True
        return self._released(key, attempt)

    def _released(self, key: AttemptKey, attempt: Attempt) -> list[Instruction]:
        if attempt.phase is AttemptPhase.ENDED and attempt.forgotten and attempt.stored:
            del self.attempts[key]
            return [Release(key)]
        return []


def key_of(stimulus: Stimulus) -> AttemptKey:
    """Return the attempt that a stimulus is about."""
    if isinstance(stimulus, Place | Stop | Forget):
        return AttemptKey(stimulus.run, stimulus.attempt)
    return stimulus.key


def _in_phase(report: ExitReport, phase: AttemptPhase) -> ExitReport:
    """Add the phase in which it ended, unless an earlier supervisor has recorded it."""
    return report if report.phase is not None else report.model_copy(update={"phase": phase})
