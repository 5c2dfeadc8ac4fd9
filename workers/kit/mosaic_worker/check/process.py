"""A worker as a real process, with stdout to a file, as on the platform."""

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from mosaic_worker.check.report import CheckFailedError

__all__ = ["Client", "Finished", "Subject", "WorkerProcess"]

_POLL_S = 0.002
_STDERR_SHOWN = 2000


@dataclass(frozen=True)
class Subject:
    """The worker under test, a working folder, and the time-out of every step."""

    name: str
    module: str
    folder: Path
    timeout_s: float

    def write_config(self, name: str, document: object) -> Path:
        """Write a config file."""
        path = self.folder / f"{name}.json"
        path.write_text(json.dumps(document), encoding="utf-8")
        return path

    def start(self, label: str, *arguments: str | Path, **environ: str) -> "WorkerProcess":
        """Start the worker with arguments; files are named after the label."""
        return WorkerProcess(self, label, [str(argument) for argument in arguments], environ)

    def run(self, label: str, *arguments: str | Path, **environ: str) -> "Finished":
        """Start the worker and wait for its end."""
        with self.start(label, *arguments, **environ) as process:
            return process.wait()


@dataclass(frozen=True)
class Finished:
    """Exit code and output of a process."""

    code: int
    stdout: bytes
    stderr: str

    def expect(self, code: int, what: str) -> None:
        """Fail the check unless the exit code is the one expected."""
        if self.code != code:
            raise CheckFailedError(f"{what}: exit code {self.code}, expected {code}{self.tail()}")

    def tail(self) -> str:
        """Quote the end of stderr."""
        text = self.stderr.strip()[-_STDERR_SHOWN:]
        return f"; stderr ends with:\n{text}" if text else ""

    def lines(self) -> list[bytes]:
        """Split stdout into lines; fail the check if the last one is cut off."""
        if self.stdout and not self.stdout.endswith(b"\n"):
            raise CheckFailedError(f"stdout does not end with a newline: …{self.stdout[-120:]!r}")
        return self.stdout.splitlines()

    def only_object(self, what: str) -> dict[str, Any]:
        """Parse stdout as one JSON object."""
        try:
            document = json.loads(self.stdout)
        except ValueError as error:
            raise CheckFailedError(f"{what}: stdout is not one JSON object: {error}: {self.stdout[:120]!r}") from error
        if not isinstance(document, dict):
            raise CheckFailedError(f"{what}: stdout is not a JSON object: {self.stdout[:120]!r}")
        return document


class WorkerProcess:
    """A running worker in its own session; leaving the context kills it."""

    def __init__(self, subject: Subject, label: str, arguments: list[str], environ: dict[str, str]) -> None:
        """Start it."""
        run_dir = subject.folder / label
        run_dir.mkdir(exist_ok=True)
        self.stdout = subject.folder / f"{label}.stdout"
        self._stderr = subject.folder / f"{label}.stderr"
        self._timeout_s = subject.timeout_s
        command = [sys.executable, "-m", f"{subject.module}.cli", *arguments]
        env = {**os.environ, "MOSAIC_RUN_ID": f"check-{label}", "MOSAIC_RUN_DIR": str(run_dir), **environ}
        with self.stdout.open("ab") as stdout, self._stderr.open("wb") as stderr:
            self.popen = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr, env=env, start_new_session=True
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _type: type[BaseException] | None, _e: BaseException | None, _t: TracebackType | None) -> None:
        _kill(self.popen)

    def wait_for(self, condition: Callable[[], bool]) -> bool:
        """Wait for a condition; return False if the process ended first. Fail the check on time-out."""
        deadline = time.monotonic() + self._timeout_s
        while not condition():
            if self.popen.poll() is not None:
                return condition()
            if time.monotonic() > deadline:
                raise CheckFailedError(f"nothing happened for {self._timeout_s:g} s")
            time.sleep(_POLL_S)
        return True

    def terminate(self) -> None:
        """Send SIGTERM to the process group, as the platform does."""
        with suppress(ProcessLookupError):
            os.killpg(self.popen.pid, signal.SIGTERM)

    def wait(self) -> Finished:
        """Wait for the end. Fail the check on time-out."""
        try:
            code = self.popen.wait(self._timeout_s)
        except subprocess.TimeoutExpired:
            _kill(self.popen)
            raise CheckFailedError(f"still running after {self._timeout_s:g} s") from None
        return Finished(code, self.stdout.read_bytes(), self._stderr.read_text(errors="replace"))


class Client:
    """Talks to a worker in interactive mode."""

    def __init__(self, subject: Subject, config: Path) -> None:
        """Start it; the worker's stderr goes to a file."""
        self._timeout_s = subject.timeout_s
        self._stderr = subject.folder / "interactive.stderr"
        self._buffer = b""
        command = [sys.executable, "-m", f"{subject.module}.cli", "--config", str(config), "--interactive"]
        env = {**os.environ, "MOSAIC_RUN_ID": "check-interactive", "MOSAIC_RUN_DIR": str(subject.folder)}
        with self._stderr.open("wb") as stderr:
            self._popen = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr, env=env, start_new_session=True
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _type: type[BaseException] | None, _e: BaseException | None, _t: TracebackType | None) -> None:
        _kill(self._popen)
        for pipe in (self._popen.stdin, self._popen.stdout):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()

    def ask(self, request: bytes | dict[str, Any], expected: str | None) -> dict[str, Any]:
        """Send a request and return its answer, which must be of the expected type (any, if None)."""
        line = request if isinstance(request, bytes) else json.dumps(request).encode()
        if self._popen.stdin is None:
            raise CheckFailedError("the worker has no stdin")
        try:
            self._popen.stdin.write(line + b"\n")
            self._popen.stdin.flush()
        except OSError as error:
            raise CheckFailedError(f"the worker ended before {line!r}: {self._said()}") from error
        text = self._read_line(line)
        try:
            answer = json.loads(text)
        except ValueError as error:
            raise CheckFailedError(f"{line!r} was answered with {text[:120]!r}, which is not JSON") from error
        if not isinstance(answer, dict) or (expected is not None and answer.get("type") != expected):
            raise CheckFailedError(f"{line!r} was answered with {text[:300]!r}, expected type {expected!r}")
        return answer

    def finish(self) -> int:
        """Wait for the end and return the exit code."""
        try:
            return self._popen.wait(self._timeout_s)
        except subprocess.TimeoutExpired:
            raise CheckFailedError(f"still running {self._timeout_s:g} s after it was told to stop") from None

    def _read_line(self, request: bytes) -> bytes:
        deadline = time.monotonic() + self._timeout_s
        stdout = self._popen.stdout
        while b"\n" not in self._buffer and stdout is not None:
            ready, _, _ = select.select([stdout], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                raise CheckFailedError(f"no answer to {request!r} within {self._timeout_s:g} s")
            chunk = os.read(stdout.fileno(), 1 << 16)
            if not chunk:
                raise CheckFailedError(f"the worker ended instead of answering {request!r}: {self._said()}")
            self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line

    def _said(self) -> str:
        return self._stderr.read_text(errors="replace").strip()[-_STDERR_SHOWN:]


def _kill(popen: subprocess.Popen[bytes]) -> None:
    """End a process and whatever it started in its session."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(popen.pid, signal.SIGKILL)
    popen.wait()
