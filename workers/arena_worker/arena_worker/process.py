"""A policy as a child process: requests and answers over pipes, with a deadline for each."""

import os
import re
import select
import signal
import subprocess
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from pydantic_core import from_json

from mosaic_worker.encoding import encode
from mosaic_worker.errors import WorkerError

__all__ = ["Answer", "PolicyError", "PolicyProcess"]

_LEFT_OUT = ("MOSAIC_", "PYTHON", "VIRTUAL_ENV")
_SHARED = "MOSAIC_SHARED_DIR"
"""The one variable of ours that a policy is given, too: a folder that all workers of a host share."""
_EXACT = {"MKL_CBWR": "AVX2,STRICT", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
"""One thread and fixed code paths, so that a decision has the same bits wherever it is made."""
_UNASKED = frozenset({"init", "ready", "waiting_for_human"})
_GRACE_S = 2.0
_TICK_S = 0.5
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
"""An address in memory differs from process to process, and a record must not."""
_CHUNK = 1 << 16
_SHORT, _MAX_KNOWN = 64, 256


class PolicyError(WorkerError):
    """A policy did not decide; `kind` is raised, hung, died, illegal, refused, or what the policy itself calls it."""

    def __init__(self, kind: str, message: str) -> None:
        """Keep both."""
        self.kind = kind
        super().__init__(_ADDRESS.sub("", message))


@dataclass(slots=True)
class Answer:
    """A request that was sent: what it was for, and until when an answer is waited for.

    The reply to it may be shared with others like it, so nobody changes it.
    """

    purpose: Any
    deadline: float
    what: str


class PolicyProcess:
    """One policy: starts it in its own session, and ends it with all that it started."""

    def __init__(
        self,
        name: str,
        argv: list[str],
        environ: Mapping[str, str],
        folder: Path,
        document: Any,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        """Start it with a config; `folder` is its working folder, `check` is called while it is waited for."""
        self.name = name
        self._check = check
        folder.mkdir(parents=True, exist_ok=True)
        config = folder / "worker.json"
        config.write_bytes(encode(document))
        kept = {key: value for key, value in os.environ.items() if not key.startswith(_LEFT_OUT) or key == _SHARED}
        self._popen = subprocess.Popen(
            [*argv, "--config", str(config), "--interactive"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=folder,
            env={**kept, **environ, **_EXACT, "MOSAIC_RUN_DIR": str(folder)},
            start_new_session=True,
        )
        if self._popen.stdin is None or self._popen.stdout is None:
            raise RuntimeError("no pipes")
        self._to, self.fd = self._popen.stdin.fileno(), self._popen.stdout.fileno()
        os.set_blocking(self._to, False)
        self._is_closed = False
        self._buffer = b""
        self._awaited: deque[Answer] = deque()
        self._known: dict[bytes, dict[str, Any]] = {}
        self._by_id: dict[int, Answer] = {}
        """Requests to a policy that answers in any order, oldest first."""
        self.numbers = count(1)
        """The ids of such requests, whichever seat asks."""

    # Asking, with or without waiting.

    def post(self, line: bytes, purpose: Any, timeout_s: float, what: str, number: int | None = None) -> None:
        """Send a request whose answer `collect` will give.

        Answers come in the order of requests, but for a request whose `id` is `number`: its answer may come any time.
        """
        if self._is_closed:
            raise PolicyError("died", f"operator {self.name} is not running")
        deadline = time.monotonic() + timeout_s
        line += b"\n"
        try:
            while True:
                try:
                    line = line[os.write(self._to, line) :]
                except BlockingIOError:
                    self._wait_for_room(deadline, what)
                    continue
                if not line:
                    break
        except BrokenPipeError:
            pass  # it has ended, and may have said why: `collect` reads that first
        answer = Answer(purpose, deadline, what)
        if number is None:
            self._awaited.append(answer)
        else:
            self._by_id[number] = answer

    def ask(self, request: Mapping[str, Any], timeout_s: float) -> dict[str, Any]:
        """Send a request and wait for its answer; PolicyError if it is an error or does not come."""
        self.post(encode(request), None, timeout_s, str(request.get("cmd")))
        while True:
            for _, reply in self.wait():
                if reply.get("type") == "error":
                    raise PolicyError("raised", str(reply.get("message")))
                return reply

    @property
    def is_awaited(self) -> bool:
        """Whether an answer is still to come."""
        return bool(self._awaited or self._by_id)

    @property
    def awaited(self) -> Answer | None:
        """The request that is not answered yet and is overdue first."""
        first = self._awaited[0] if self._awaited else None
        if not self._by_id:  # the usual policy, asked thousands of times a second
            return first
        any_order = next(iter(self._by_id.values()))
        return any_order if first is None or any_order.deadline < first.deadline else first

    def patience(self) -> float:
        """Seconds until the oldest answer is overdue."""
        awaited = self.awaited
        return awaited.deadline - time.monotonic() if awaited is not None else 3600.0

    def wait(self) -> list[tuple[Answer, dict[str, Any]]]:
        """Wait a moment for answers; PolicyError if one is overdue or will never come."""
        self._check()
        return self.collect(min(max(self.patience(), 0.001), _TICK_S))

    def collect(self, timeout_s: float = 0.0) -> list[tuple[Answer, dict[str, Any]]]:
        """Return the answers that have come, and wait for one if told how long; PolicyError if it will never come."""
        if timeout_s > 0 and not select.select([self.fd], [], [], max(0.0, timeout_s))[0]:
            self.require_in_time()
            return []
        chunk = os.read(self.fd, _CHUNK)
        if not chunk:
            raise self._died()
        found = []
        *lines, self._buffer = (self._buffer + chunk).split(b"\n")
        for line in lines:
            reply = self._known.get(line) or self._read(line)
            answer = self._by_id.pop(reply["id"], None) if type(reply.get("id")) is int else None
            if answer is None:
                if reply.get("type") in _UNASKED or not self._awaited:
                    continue
                answer = self._awaited.popleft()
            found.append((answer, reply))
        return found

    def _read(self, line: bytes) -> dict[str, Any]:
        """Parse an answer. Short ones are remembered: a policy with a few actions has a few answers."""
        reply = _parse(line)
        if len(line) <= _SHORT:
            if len(self._known) >= _MAX_KNOWN:
                self._known.clear()
            self._known[line] = reply
        return reply

    def require_in_time(self) -> None:
        """Raise if the oldest answer is overdue."""
        awaited = self.awaited
        if awaited is not None and time.monotonic() >= awaited.deadline:
            raise PolicyError("hung", f"operator {self.name} did not answer {awaited.what} in time")

    # The end.

    def stop(self) -> None:
        """Ask it to stop; then end its session, whatever it does."""
        with suppress(OSError):
            os.write(self._to, b'{"cmd":"stop"}\n')
        with suppress(subprocess.TimeoutExpired):
            self._popen.wait(_GRACE_S)
        self.kill()

    def kill(self) -> None:
        """End it, and what it started, at once."""
        self._is_closed = True
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._popen.pid, signal.SIGKILL)
        self._popen.wait()
        for pipe in (self._popen.stdin, self._popen.stdout):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()

    def _wait_for_room(self, deadline: float, what: str) -> None:
        left = deadline - time.monotonic()
        if left <= 0 or not select.select([], [self._to], [], left)[1]:
            raise PolicyError("hung", f"operator {self.name} does not read: {what} could not be sent")

    def _died(self) -> PolicyError:
        with suppress(subprocess.TimeoutExpired):
            self._popen.wait(_GRACE_S)
        code = self._popen.poll()
        how = "closed its output" if code is None else f"ended with exit code {code}"
        if code is not None and code < 0:
            how = f"was killed by signal {-code} ({signal.Signals(-code).name})"
        return PolicyError("died", f"operator {self.name} {how}; its output is in the run's log")


def _parse(line: bytes) -> dict[str, Any]:
    try:
        reply = from_json(line)
    except ValueError:
        reply = None
    if not isinstance(reply, dict):
        return {"type": "error", "message": f"the answer is not a JSON object: {line[:80]!r}"}
    return reply
