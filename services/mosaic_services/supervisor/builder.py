"""The environments of a host: what is installed, and builds, each in a process of its own."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import time
from typing import TYPE_CHECKING, NamedTuple, cast

from mosaic_bus.commands import Description
from mosaic_bus.errors import CommandRefusedError
from mosaic_bus.logs import Logger
from mosaic_bus.messages import BuildProgress, EnvironmentStatus
from mosaic_bus.refusals import RefusalCode, RefusalDetails
from mosaic_services.environments import (
    BuildError,
    Environment,
    EnvironmentsError,
    UnknownProfileError,
    UpstreamError,
    find_recipes,
    recipe_for,
    status,
)
from mosaic_services.processes import MARK, build_mark
from mosaic_services.settings.model import SupervisorSettings

if TYPE_CHECKING:
    from collections.abc import Callable

    from mosaic_services.home import StackHome

__all__ = ["BuildFailedError", "Builder"]

_log = Logger()

Key = tuple[str, str]

_LONGEST_LINE = 4 * 1024 * 1024
# Builds in a row whose worker was edited meanwhile, before the attempt fails.
_TRIES = 5


class Broken(NamedTuple):
    """A failed build: its fingerprint, the error, and when it may be tried again."""

    fingerprint: str
    error: str
    delay: float
    until: float


class BuildFailedError(Exception):
    """An environment could not be built; `caused_by_worker` says whether the worker's own code is at fault."""

    def __init__(self, message: str, *, caused_by_worker: bool = False) -> None:
        super().__init__(message)
        self.caused_by_worker = caused_by_worker


class Builder:
    """Knows the environments of this host and builds missing ones, each once at a time."""

    def __init__(
        self,
        home: StackHome,
        host: str,
        tell: Callable[[BuildProgress], None],
        tuning: SupervisorSettings | None = None,
    ) -> None:
        self._home = home
        self._tuning = tuning or SupervisorSettings()
        self._host = host
        self._tell = tell
        self._environments: dict[Key, Environment] = {}
        self._unusable: dict[Key, str] = {}
        self._builds: dict[Key, asyncio.Task[None]] = {}
        self._progress: dict[Key, BuildProgress] = {}
        self._broken: dict[Key, Broken] = {}

    def scan(self) -> None:
        """Read recipes and environments from disk again."""
        found, unusable = {}, {}
        for recipe in find_recipes(self._home):
            for profile in recipe.profiles:
                try:
                    found[recipe.worker, profile] = status(recipe, profile)
                except (EnvironmentsError, OSError) as error:
                    unusable[recipe.worker, profile] = str(error)
                except Exception as error:  # One broken worker must not hide the others.
                    unusable[recipe.worker, profile] = repr(error)
                    if (recipe.worker, profile) not in self._unusable:
                        _log.exception("cannot read a worker", worker=recipe.worker, profile=profile)
        self._environments, self._unusable = found, unusable

    def statuses(self) -> list[EnvironmentStatus]:
        """Return the status of every profile of every worker."""
        usable = [self._status(key, environment) for key, environment in self._environments.items()]
        return usable + [
            EnvironmentStatus(worker=worker, profile=profile, status="broken", detail=why)
            for (worker, profile), why in self._unusable.items()
        ]

    def fingerprints(self) -> dict[Key, str]:
        """Return the current fingerprint of each environment, built or not."""
        return {key: environment.fingerprint for key, environment in self._environments.items()}

    def _status(self, key: Key, environment: Environment) -> EnvironmentStatus:
        worker, profile = key
        state = environment.status
        if state == "installed":
            return EnvironmentStatus(worker=worker, profile=profile, status=state, fingerprint=environment.fingerprint)
        if key in self._builds:
            detail = self._progress[key].step if key in self._progress else "starting to build"
            return EnvironmentStatus(worker=worker, profile=profile, status="building", detail=detail)
        broken = self._broken.get(key)
        if broken and broken.fingerprint == environment.fingerprint and time.monotonic() < broken.until:
            return EnvironmentStatus(worker=worker, profile=profile, status="broken", detail=broken.error)
        return EnvironmentStatus(worker=worker, profile=profile, status="available")

    def progress(self, worker: str, profile: str) -> BuildProgress | None:
        """Return the progress of a build; None if none runs."""
        return self._progress.get((worker, profile)) if (worker, profile) in self._builds else None

    def get(self, worker: str, profile: str) -> Environment:
        """Return an environment as it is on disk; refuse an unknown worker or profile."""
        try:
            return status(recipe_for(worker, self._home), profile)
        except UnknownProfileError as error:
            raise CommandRefusedError(RefusalCode.UNKNOWN_PROFILE, str(error), RefusalDetails(value=profile)) from None
        except (BuildError, UpstreamError) as error:
            raise CommandRefusedError(RefusalCode.UNUSABLE_ENVIRONMENT, str(error)) from None
        except EnvironmentsError as error:
            raise CommandRefusedError(RefusalCode.UNKNOWN_WORKER, str(error), RefusalDetails(value=worker)) from None

    def describe(self, worker: str, profile: str) -> Description:
        """Return the description that an installed worker gives of itself."""
        environment = self.get(worker, profile)
        found = environment.description
        if environment.status != "installed" or found is None:
            raise CommandRefusedError(
                RefusalCode.NOT_INSTALLED,
                f"{worker} ({profile}) is not installed on {self._host}: mosaic workers install {worker}",
            )
        return Description(
            worker=worker,
            profile=profile,
            status=environment.status,
            metadata=found["metadata"],
            capabilities=found["capabilities"],
            config_schema=found["config_schema"],
            example_config=found["example_config"],
            algorithms=found.get("algorithms", []),
            environments=found.get("environments", []),
        )

    async def ensure(self, worker: str, profile: str) -> Environment:
        """Return an environment, built first if it is missing; raise `BuildFailedError`."""
        key = (worker, profile)
        for _ in range(_TRIES):
            environment = await asyncio.to_thread(self.get, worker, profile)
            if environment.status == "installed":
                return environment
            if key not in self._builds:
                self._builds[key] = asyncio.create_task(self._build(key, environment.fingerprint))
                self._builds[key].add_done_callback(lambda _: self._builds.pop(key, None))
            await asyncio.shield(self._builds[key])
        raise BuildFailedError(f"environment {worker} ({profile}) was changed each time it had been built")

    async def _build(self, key: Key, fingerprint: str) -> None:
        worker, profile = key
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "mosaic_services.environments",
            worker,
            profile,
            "--home",
            str(self._home.path),
            stdout=asyncio.subprocess.PIPE,
            start_new_session=True,
            limit=_LONGEST_LINE,
            env={**os.environ, MARK: build_mark(self._home)},
        )
        output = cast("asyncio.StreamReader", process.stdout)
        error = "the build process ended without saying why"
        percent, caused_by_worker = 0.0, False
        try:
            while line := await output.readline():
                try:
                    said = json.loads(line)
                except (ValueError, RecursionError):
                    said = None
                if not isinstance(said, dict):
                    continue  # Printed by something that the build runs.
                percent = max(percent, said.get("percent", 0.0))
                error = str(said.get("error", "" if said.get("done") else error))
                caused_by_worker = bool(said.get("caused_by_worker"))
                self._progress[key] = progress = BuildProgress(
                    host=self._host,
                    worker=worker,
                    profile=profile,
                    step=str(said.get("step", error)),
                    percent=percent,
                    done=bool(said.get("done")),
                    error=said.get("error", ""),
                )
                self._tell(progress)
            await process.wait()
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGTERM)
                await process.wait()
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # Processes that a killed build left.
            self._progress.pop(key, None)
        if error:
            earlier = self._broken.get(key)
            delay = (
                min(2 * earlier.delay, self._tuning.longest_build_retry_s) if earlier else self._tuning.build_retry_s
            )
            self._broken[key] = Broken(fingerprint, error, delay, time.monotonic() + delay)
            reason = f"environment {worker} ({profile}) could not be built: {error}"
            raise BuildFailedError(reason, caused_by_worker=caused_by_worker)

    async def close(self) -> None:
        """Cancel all builds."""
        builds = list(self._builds.values())
        for build in builds:
            build.cancel()
        await asyncio.gather(*builds, return_exceptions=True)
