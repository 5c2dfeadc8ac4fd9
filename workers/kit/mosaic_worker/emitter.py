"""The emitter writes a run's events: one event, one JSON line, one `write`.

A line written with one `write` is complete or absent, whenever the file is read or the process is killed.
`docs/protocol.md`, part 4, defines the events.
"""

import contextlib
import errno
import os
import threading
import time
from collections.abc import Callable, Mapping
from threading import get_ident
from typing import Any

from mosaic_worker.encoding import encode
from mosaic_worker.errors import AlreadyEndedError
from mosaic_worker.events import TERMINAL_EVENTS
from mosaic_worker.stdout import note

__all__ = ["Emitter"]

MAX_LINE = 1 << 20
"""Maximum length of a line. Readers replace a longer one by a `malformed` event, so the emitter drops big fields."""
_BIG_FIELD = 1 << 14
"""Fields over this size are dropped from a line that is too long."""
_WAIT_FOR = (errno.ENOSPC, errno.EDQUOT, errno.EAGAIN)
_OWN_FIELDS = ("event", "ts")
_PAUSE_S = 0.5
"""Seconds between two tries to write to a full disk."""


class Emitter:
    """Writes events as JSON lines to a descriptor; safe to use from several threads.

    Fields that are None are left out. On a full disk the emitter waits for room: the run pauses and loses no event.
    """

    def __init__(
        self, fd: int, *, clock: Callable[[], float] = time.time, pause: Callable[[float], None] = time.sleep
    ) -> None:
        """Write to `fd`, which the caller closes; `clock` returns seconds since 1970."""
        self.fd = fd
        self.last_step: int | None = None
        self.ended: str | None = None
        self.dropped = 0
        self._clock = clock
        self._pause = pause
        self._lock = threading.Lock()
        self._writing = 0  # the thread that is in the middle of a line
        self._interrupt: BaseException | None = None

    # The events of the dialect.

    def run_started(
        self,
        run_id: str,
        worker: str,
        *,
        config: Any = None,
        env_id: str | None = None,
        seed: int | None = None,
        total_steps: int | None = None,
        total_episodes: int | None = None,
        task: str | None = None,
        versions: Mapping[str, str] | None = None,
        **extra: Any,
    ) -> None:
        """Report the start of the run and what it will do."""
        self.emit(
            "run_started",
            run_id=run_id,
            worker=worker,
            config=config,
            env_id=env_id,
            seed=seed,
            total_steps=total_steps,
            total_episodes=total_episodes,
            task=task,
            versions=versions,
            **extra,
        )

    def run_completed(
        self,
        *,
        step: int | None = None,
        episodes: int | None = None,
        summary: Mapping[str, Any] | None = None,
        **extra: Any,
    ) -> None:
        """End the run: it completed."""
        self.emit("run_completed", step=step, episodes=episodes, summary=summary, **extra)

    def run_failed(
        self, category: str, error: str, *, traceback: str | None = None, step: int | None = None, **extra: Any
    ) -> None:
        """End the run: it failed. `category` is configuration, application or infrastructure."""
        self.emit("run_failed", category=category, error=error, traceback=traceback, step=step, **extra)

    def run_cancelled(self, *, reason: str | None = None, step: int | None = None, **extra: Any) -> None:
        """End the run: it was asked to stop."""
        self.emit("run_cancelled", reason=reason, step=step, **extra)

    def heartbeat(self, *, uptime_s: float | None = None, step: int | None = None, **extra: Any) -> None:
        """Report that the process is alive, and its last step."""
        self.emit("heartbeat", uptime_s=uptime_s, step=step, **extra)

    def checkpoint_saved(
        self,
        path: str | os.PathLike[str],
        *,
        step: int | None = None,
        best: bool | None = None,
        score: float | None = None,
        **extra: Any,
    ) -> None:
        """Report a checkpoint that is complete on disk; `best` marks the best of the run so far, by its `score`."""
        self.emit("checkpoint_saved", path=path, step=step, best=best, score=score, **extra)

    def checkpoint_loaded(self, path: str | os.PathLike[str], *, step: int | None = None, **extra: Any) -> None:
        """Report that the run resumes from a checkpoint."""
        self.emit("checkpoint_loaded", path=path, step=step, **extra)

    def step(
        self,
        step: int,
        *,
        episode: int | None = None,
        reward: Any = None,
        terminated: bool | None = None,
        truncated: bool | None = None,
        action: Any = None,
        agent: str | None = None,
        info: Mapping[str, Any] | None = None,
        **extra: Any,
    ) -> None:
        """Report one step of an environment. This is the hot path, so it does not go through `emit`."""
        fields: dict[str, Any] = {"event": "step", "step": step}
        if episode is not None:
            fields["episode"] = episode
        if reward is not None:
            fields["reward"] = reward
        if terminated is not None:
            fields["terminated"] = terminated
        if truncated is not None:
            fields["truncated"] = truncated
        if action is not None:
            fields["action"] = action
        if agent is not None:
            fields["agent"] = agent
        if info is not None:
            fields["info"] = info
        if extra:
            fields.update({key: value for key, value in extra.items() if value is not None and key not in _OWN_FIELDS})
        self.last_step = step
        self._send(fields)

    def episode(
        self,
        episode: int,
        return_: Any,
        *,
        length: int | None = None,
        step: int | None = None,
        seed: int | None = None,
        agent: str | None = None,
        returns: Mapping[str, Any] | None = None,
        success: bool | None = None,
        info: Mapping[str, Any] | None = None,
        **extra: Any,
    ) -> None:
        """Report a finished episode and its return (the sum of its rewards), and that of each agent."""
        fields = {"return": return_, "length": length, "step": step, "seed": seed, "agent": agent, "returns": returns}
        fields.update(extra)
        self.emit("episode", episode=episode, success=success, info=info, **fields)

    def scalars(self, step: int, values: Mapping[str, Any], *, agent: str | None = None, **extra: Any) -> None:
        """Report named numbers at a step, such as losses."""
        self.emit("scalars", step=step, values=values, agent=agent, **extra)

    def log(self, level: str, message: str, *, step: int | None = None, **extra: Any) -> None:
        """Report a message; level is debug, info, warning or error. It also goes to stderr, the log."""
        self.emit("log", level=level, message=message, step=step, **extra)
        with contextlib.suppress(OSError):  # it is in the journal already
            os.write(2, f"{level}: {message}\n".encode(errors="replace"))

    def artifact(
        self,
        kind: str,
        path: str | os.PathLike[str],
        *,
        step: int | None = None,
        info: Mapping[str, Any] | None = None,
        **extra: Any,
    ) -> None:
        """Report a file worth keeping that is complete on disk."""
        self.emit("artifact", kind=kind, path=path, step=step, info=info, **extra)

    def reply(self, reply: Mapping[str, Any]) -> None:
        """Answer a request that came to an interactive run; `id` is that of the request, if it has one."""
        self.emit("reply", id=reply.get("id"), reply={name: reply[name] for name in reply if name != "id"})

    def emit(self, event: str, /, **fields: Any) -> None:
        """Write any event, with a time stamp; fields that are None are left out."""
        plain = {name: value for name, value in fields.items() if value is not None and name not in _OWN_FIELDS}
        self._send({"event": event, **plain})
        step = fields.get("step")
        if step is not None and event != "heartbeat":
            self.last_step = step

    # How a line gets out.

    def _send(self, fields: dict[str, Any]) -> None:
        fields["ts"] = self._clock()
        line = encode(fields) + b"\n"
        if len(line) > MAX_LINE:
            line = encode(_without_big_fields(fields)) + b"\n"
        self._write(fields["event"], line)

    def _write(self, event: str, line: bytes) -> None:
        with self._lock:
            if self.ended is not None:
                self._refuse(event)
                return
            if event in TERMINAL_EVENTS:
                self.ended = event
            self._writing = get_ident()
            try:
                written = os.write(self.fd, line)
                if written != len(line):
                    self._write_rest(line[written:])
            except OSError as error:
                _raise_unless_full(error)
                self._write_rest(line)
            finally:
                self._writing = 0
            if self._interrupt is not None:
                interrupt, self._interrupt = self._interrupt, None
                raise interrupt

    def _refuse(self, event: str) -> None:
        """Refuse an event after the terminal one: raise for a second terminal event, drop any other."""
        ended = self.ended or ""
        if event in TERMINAL_EVENTS:
            raise AlreadyEndedError(ended, event)
        self.dropped += 1
        if self.dropped == 1 and event != "heartbeat":
            note(f"{event} came after {ended} and was dropped")

    def _write_rest(self, rest: bytes) -> None:
        """Finish a line that one write did not complete; wait for room rather than leave half a line."""
        warned = False
        while rest:
            try:
                rest = rest[os.write(self.fd, rest) :]
            except OSError as error:
                _raise_unless_full(error)
                if not warned:
                    warned = True
                    note(f"waiting to write an event: {error.strerror}")
                self._pause(_PAUSE_S)

    # For the signal handler.

    def interrupt(self, error: BaseException) -> None:
        """Raise `error` in this thread, now or, if it is writing a line, when the line is complete."""
        if self._writing == get_ident():
            self._interrupt = error
        else:
            raise error

    def last_words(self, event: str, /, **fields: Any) -> bool:
        """Write a terminal event from a signal handler if that needs no waiting; return whether it was written."""
        if self._writing == get_ident() or not self._lock.acquire(timeout=1.0):
            return False
        try:
            if self.ended is not None:
                return False
            self.ended = event
            line = encode({"event": event, **fields, "ts": self._clock()}) + b"\n"
            return os.write(self.fd, line) == len(line)
        except OSError:
            return False
        finally:
            self._lock.release()


def _raise_unless_full(error: OSError) -> None:
    """Raise an error that waiting cannot resolve."""
    if error.errno not in _WAIT_FOR:
        raise error


def _without_big_fields(fields: dict[str, Any]) -> dict[str, Any]:
    """Replace the big fields of an event by a note of their size."""
    sizes = {name: len(encode(value)) for name, value in fields.items()}
    return {
        name: value if sizes[name] <= _BIG_FIELD else f"<left out: {sizes[name]} bytes>"
        for name, value in fields.items()
    }
