"""Experiment files as text, and reports: what pages ask for that cannot do it themselves."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING, Any

import yaml

from mosaic_bus.commands import Ack, ExperimentCheck
from mosaic_bus.errors import CommandRefusedError
from mosaic_bus.refusals import Problem, RefusalCode
from mosaic_services.specs import load_yaml

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from mosaic_bus.commands import ExperimentPlan
    from mosaic_bus.wire.address import Address

__all__ = ["ReportDesk", "check_text", "read_text"]

# A request at the gateway ends after 30 seconds; a report of many episodes, or on a busy machine, takes longer.
_ANSWER_S = 20.0
_LONGEST_S = 600.0


def read_text(text: str) -> dict[str, Any]:
    """Read the fields of an experiment file; refused if it is none."""
    try:
        document = load_yaml(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"line {mark.line + 1}: " if mark else ""
        said = f"{where}not YAML: {getattr(error, 'problem', None) or error}"
        raise CommandRefusedError(RefusalCode.INVALID_EXPERIMENT, said) from error
    if not isinstance(document, dict):
        raise CommandRefusedError(RefusalCode.INVALID_EXPERIMENT, "an experiment is a map of fields, such as name: …")
    return {str(key): value for key, value in document.items()}


async def check_text(text: str, plan: Callable[[dict[str, Any]], Awaitable[ExperimentPlan]]) -> ExperimentCheck:
    """Say what starting an experiment file would do, or what is wrong with it."""
    fields: dict[str, Any] = {}
    try:
        fields = read_text(text)
        return ExperimentCheck(ok=True, experiment=fields, plan=await plan(fields))
    except CommandRefusedError as error:
        problems = error.details.problems or [Problem(field=error.details.field, message=error.message)]
        return ExperimentCheck(ok=False, experiment=fields, problems=problems)


class ReportDesk:
    """Writes reports, one at a time for each experiment."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._writing: dict[Path, asyncio.Task[str]] = {}

    async def write(self, folder: Path) -> Ack:
        """Write a report; answered when it is there, or after a while with a note that it will be."""
        task = self._writing.get(folder)
        if task is None or task.done():
            task = self._writing[folder] = asyncio.create_task(_write(folder, self._address))
        done, _ = await asyncio.wait({task}, timeout=_ANSWER_S)
        return Ack(note=task.result() if done else "it is being written, and takes longer than usual")


async def _write(folder: Path, address: Address) -> str:
    """Write a report in a process of its own: figures need libraries that a service should not load."""
    command = [sys.executable, "-m", "mosaic_services.report", str(folder), str(address)]
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, stdin=asyncio.subprocess.DEVNULL, stdout=pipe, stderr=pipe)
    try:
        async with asyncio.timeout(_LONGEST_S):
            out, err = await process.communicate()
    except BaseException:
        process.kill()
        await process.wait()
        raise
    if process.returncode:
        said = err.decode(errors="replace").strip().splitlines()
        raise CommandRefusedError(RefusalCode.NOT_FINAL, f"no report: {said[-1] if said else process.returncode}")
    return out.decode(errors="replace").strip()
