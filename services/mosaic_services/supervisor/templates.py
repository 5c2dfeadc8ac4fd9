"""Templates of a host: processes that have imported a worker's libraries, from which run hosts are forked.

The first run of an environment is spawned, and a template is started beside it; later runs are forked from the
template. If a template does not work, runs are spawned as before. Should an attempt be both forked and spawned, the
second run host finds the lock of the first and exits (see `run_host.main`).
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from mosaic_bus.logs import Logger
from mosaic_services.processes import MARK
from mosaic_services.supervisor import run_host

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping
    from pathlib import Path

    from mosaic_services.attempt_folder import AttemptFolder
    from mosaic_services.environments import Environment

__all__ = ["Template", "TemplateError", "Templates"]

_log = Logger()

Key = tuple[str, str]

# Seconds that imports may take; a large library on a cold disk is slow.
_IMPORT_S = 300.0
# Seconds to wait for a fork, which takes milliseconds; then the run is spawned.
_ANSWER_S = 2.0
# Seconds before another try after a template that served no run: each try costs what it was to save.
_PAUSE_S = 600.0
# Bytes reserved in the template's command line and mark, for its forks to overwrite (`mosaic_worker.process_title`).
_ROOM = 1024
# Variables that differ between attempts. Libraries read them when they are first used, not when they are imported.
_READ_LATE = ("MOSAIC_", "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER")


class TemplateError(Exception):
    """A template could not start a run; the message says why."""


class Template:
    """One template process and the socket to it."""

    def __init__(self, environment: Environment, environ: Mapping[str, str], runs: Path, now: float) -> None:
        """Start a template for runs with the same variables as `environ`."""
        self.fingerprint = environment.fingerprint
        self.ready = False
        self.served = 0
        self.used_at = now
        own = {name: value for name, value in environ.items() if not name.startswith(_READ_LATE)}
        self._environ = {**environment.environ(), **own}
        self._wanted = {
            "parent": os.getpid(),
            "run_host": run_host.__file__,
            "worker": f"{environment.recipe.package}.cli",
            "modules": environment.warm,
        }
        self._turn = asyncio.Lock()
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._socket, theirs = socket.socketpair()
        room = f"{runs}{'/' * _ROOM}"
        with theirs:
            # From the main thread: PDEATHSIG fires when the thread that started a process ends.
            self.process = subprocess.Popen(
                [str(environment.python), "-m", "mosaic_worker.template", str(theirs.fileno()), room],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
                cwd=environment.site,
                env={**self._environ, MARK: room},
            )

    async def preload(self) -> None:
        """Wait until everything is imported; raise `TemplateError` if that fails."""
        answer = await self._ask(self._wanted, _IMPORT_S)
        if "ready" not in answer:
            raise TemplateError(str(answer.get("error", answer)))
        self.ready = True

    def serves(self, environ: Mapping[str, str]) -> bool:
        """Whether a run with these variables can be forked: libraries have read theirs when they were imported."""
        names = {name for name in {*environ, *self._environ} if not name.startswith(_READ_LATE)}
        return all(environ.get(name) == self._environ.get(name) for name in names)

    async def fork(self, folder: AttemptFolder, environ: Mapping[str, str]) -> None:
        """Fork the run host of an attempt; raise `TemplateError` if that fails."""
        async with self._turn:
            answer = await self._ask({"folder": str(folder.path), "environ": environ}, _ANSWER_S)
        if "pid" not in answer:
            raise TemplateError(str(answer.get("error", answer)))
        self.served += 1

    async def _ask(self, question: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        try:
            async with asyncio.timeout(seconds):
                if self._streams is None:
                    self._streams = await asyncio.open_unix_connection(sock=self._socket)
                reader, writer = self._streams
                writer.write(json.dumps(question).encode() + b"\n")
                await writer.drain()
                line = await reader.readline()
            answer: dict[str, Any] = json.loads(line) if line else {"error": "it ended without an answer"}
        except TimeoutError:
            raise TemplateError(f"it did not answer within {seconds:.0f} s") from None
        except (OSError, ValueError) as error:
            raise TemplateError(f"it cannot be asked: {error}") from None
        return answer

    def kill(self) -> None:
        """Kill the template; runs that were forked from it go on."""
        self.process.kill()
        if self._streams is None:
            self._socket.close()
        else:
            self._streams[1].close()


class Pause(NamedTuple):
    """A template that served no run: its fingerprint, and when the next may be started."""

    fingerprint: str
    until: float


class Templates:
    """The templates of this host."""

    def __init__(self, runs: Path, spawn: Callable[[Coroutine[Any, Any, None], str], None], idle_s: float) -> None:
        """End a template, which holds hundreds of megabytes, after `idle_s` seconds without a run."""
        self._runs = runs
        self._idle_s = idle_s
        self._spawn = spawn
        self._templates: dict[Key, Template] = {}
        self._pauses: dict[Key, Pause] = {}
        self._ending: list[subprocess.Popen[bytes]] = []
        self._closed = False

    def __len__(self) -> int:
        return len(self._templates)

    async def start(self, folder: AttemptFolder, environment: Environment, environ: Mapping[str, str]) -> bool:
        """Fork the run host of an attempt; return False if it has to be spawned."""
        if environment.warm is None:
            return False
        key = (environment.recipe.worker, environment.profile)
        template = self._templates.get(key)
        if template is not None and template.fingerprint != environment.fingerprint:
            self._end(key, template)
            template = None
        if template is None:
            self._begin(key, environment, environ)
            return False
        if not template.ready or not template.serves(environ):
            return False
        template.used_at = time.monotonic()
        try:
            await template.fork(folder, environ)
        except TemplateError as error:
            if self._templates.get(key) is template:
                self._give_up(key, template, str(error))
                self._begin(key, environment, environ)
            return False
        return True

    def tidy(self, fingerprints: Mapping[Key, str], now: float) -> None:
        """End templates that are unused or whose environment has changed."""
        self._ending = [process for process in self._ending if process.poll() is None]
        for key, template in list(self._templates.items()):
            if template.process.poll() is not None and template.ready:
                self._give_up(key, template, f"it ended with {template.process.returncode}")
            elif template.fingerprint != fingerprints.get(key) or now - template.used_at > self._idle_s:
                self._end(key, template)

    async def close(self) -> None:
        """End all templates."""
        self._closed = True
        for key, template in list(self._templates.items()):
            self._end(key, template)
        for process in self._ending:
            await asyncio.to_thread(process.wait)

    def _begin(self, key: Key, environment: Environment, environ: Mapping[str, str]) -> None:
        now = time.monotonic()
        pause = self._pauses.get(key)
        if self._closed or (pause and pause.fingerprint == environment.fingerprint and now < pause.until):
            return
        try:
            template = Template(environment, environ, self._runs, now)
        except OSError as error:
            _log.warning("cannot start a template", worker=key[0], profile=key[1], reason=str(error))
            return
        self._templates[key] = template
        self._spawn(self._preload(key, template), "preload")

    async def _preload(self, key: Key, template: Template) -> None:
        try:
            await template.preload()
        except TemplateError as error:
            if self._templates.get(key) is template:
                self._give_up(key, template, str(error))
        else:
            _log.info("template ready", worker=key[0], profile=key[1], pid=template.process.pid)

    def _give_up(self, key: Key, template: Template, reason: str) -> None:
        _log.warning("template given up, runs are spawned", worker=key[0], profile=key[1], reason=reason)
        if not template.served:
            self._pauses[key] = Pause(template.fingerprint, time.monotonic() + _PAUSE_S)
        self._end(key, template)

    def _end(self, key: Key, template: Template) -> None:
        del self._templates[key]
        template.kill()
        self._ending.append(template.process)
