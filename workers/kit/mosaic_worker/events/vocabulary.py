"""The names of events and of their fields, and the names that older MOSAIC workers gave them."""

from enum import StrEnum

__all__ = ["FORMER_KEYS", "FORMER_LENGTH", "FORMER_NAMES", "FORMER_NANOSECONDS", "NESTS", "TERMINAL_EVENTS", "Kind"]


class Kind(StrEnum):
    """What a line reports, by its field `event`. A worker may write events of its own besides these."""

    RUN_STARTED = "run_started"
    RUN_COMPLETED = "run_completed"
    RUN_FAILED = "run_failed"
    RUN_CANCELLED = "run_cancelled"
    HEARTBEAT = "heartbeat"
    CHECKPOINT_SAVED = "checkpoint_saved"
    CHECKPOINT_LOADED = "checkpoint_loaded"
    STEP = "step"
    EPISODE = "episode"
    SCALARS = "scalars"
    LOG = "log"
    ARTIFACT = "artifact"
    REPLY = "reply"
    MALFORMED = "malformed"  # stands for a line that is no event; never written by a worker


TERMINAL_EVENTS = frozenset({Kind.RUN_COMPLETED, Kind.RUN_FAILED, Kind.RUN_CANCELLED})
"""Exactly one of these comes last in a journal."""

# The older dialect. A former name counts where the present one is missing or null.
FORMER_NAMES = {
    "event": ("type",),
    "step": ("step_index",),
    "return": ("total_reward",),
    "episode": ("episode_index",),
    "ts": ("timestamp", "time"),
    "agent": ("agent_id",),
    "seed": ("episode_seed",),
}
FORMER_LENGTH = "steps"
"""The former name of `length`, in an `episode` only: elsewhere it may mean anything."""
FORMER_NANOSECONDS = "ts_unix_ns"
"""A former name of `ts`, in nanoseconds."""
NESTS = ("payload", "data")
"""Objects whose fields count as if they stood at the top."""
FORMER_KEYS = frozenset(
    {*NESTS, FORMER_LENGTH, FORMER_NANOSECONDS, *(former for names in FORMER_NAMES.values() for former in names)}
)
