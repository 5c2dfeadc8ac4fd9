"""Prepares attempts: environments, GPUs, environment variables, and the files for worker and run host."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mosaic_bus.errors import CommandRefusedError
from mosaic_bus.refusals import RefusalCode
from mosaic_services.attempt_folder import layout
from mosaic_services.processes import MARK

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from mosaic_bus.commands import Place
    from mosaic_bus.messages import RunSpec
    from mosaic_services.attempt_folder import AttemptFolder
    from mosaic_services.environments import Environment
    from mosaic_services.supervisor.builder import Builder

__all__ = ["Preparation"]


class Preparation:
    """Prepares attempts on a host with these environments and GPUs."""

    def __init__(self, builder: Builder, gpus: frozenset[str], shared: Path) -> None:
        self._builder = builder
        self._shared = shared
        self._gpus = gpus

    def require_environments(self, spec: RunSpec) -> None:
        """Refuse a run of a worker, or one that uses a worker, that is not on this host."""
        for worker, profile in _environments_of(spec):
            self._builder.get(worker, profile)

    def require_gpus(self, gpus: Iterable[str]) -> None:
        """Refuse GPUs that this host does not have; the scheduler may still use an older inventory."""
        missing = [each for each in gpus if each not in self._gpus]
        if missing:
            there = ", ".join(sorted(self._gpus)) or "none"
            why = f"GPU {', '.join(missing)} is not on this host, which has {there}"
            raise CommandRefusedError(RefusalCode.HOST_UNAVAILABLE, why)

    def progress(self, spec: RunSpec) -> str:
        """Describe the progress of the build that a run waits for; empty if there is none."""
        builds = (self._builder.progress(*each) for each in _environments_of(spec))
        return next((f"{each.step} {each.percent:.0f} %" for each in builds if each is not None), "")

    async def prepare(self, folder: AttemptFolder, placed: Place) -> tuple[Environment, dict[str, str]]:
        """Build what is missing and write what worker and run host are given; return environment and variables."""
        spec = placed.spec
        self.require_gpus(placed.gpus)  # The supervisor may have been restarted with fewer GPUs.
        environment, *used = [await self._builder.ensure(*each) for each in _environments_of(spec)]
        threads = max(1, int(spec.resources.cpus))
        environ = {
            **environment.environ(threads, spec.pythonpath),
            "MOSAIC_RUN_ID": folder.key.run,
            "MOSAIC_ATTEMPT": str(folder.key.attempt),
            "MOSAIC_RUN_DIR": str(folder.path),
            "MOSAIC_SHARED_DIR": str(self._shared),
            "MOSAIC_CPUS": f"{spec.resources.cpus:g}",
            MARK: folder.process_mark,
            **self._gpu_environ(placed.gpus),
        }
        folder.order(
            placed,
            environment.command("--config", str(folder.path / layout.WORKER)),
            [_how_to_start(each, threads, spec.pythonpath) for each in used],
            can_resume=bool((environment.description or {}).get("capabilities", {}).get("supports_resume")),
        )
        return environment, environ

    def _gpu_environ(self, gpus: Iterable[str]) -> dict[str, str]:
        """Let a run see the GPUs that it was given, and no other."""
        if not self._gpus:
            return {}
        return {"CUDA_VISIBLE_DEVICES": ",".join(gpus), "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


def _environments_of(spec: RunSpec) -> list[tuple[str, str]]:
    """Worker and profile of each environment that a run needs: its own, then those that it uses."""
    return [(spec.worker, spec.profile), *((use.worker, use.profile) for use in spec.uses)]


def _how_to_start(environment: Environment, threads: int, pythonpath: tuple[str, ...]) -> dict[str, Any]:
    """What a worker needs to know to start a process of another worker, in that worker's environment."""
    return {
        "worker": environment.recipe.worker,
        "profile": environment.profile,
        "interpreter": str(environment.python),
        "argv": environment.command(),
        "environ": environment.variables(threads, pythonpath),
    }
