"""Runs a shell script of the user, with its Python processes hooked, and follows its phases.

Comments in the script say what it is (each is optional, anywhere in the file):

    # @description Pretrain on the easy maze, then go on with the hard one
    # @phases pretrain, finetune          (names, or how many there are: `# @phases 2`)
    # @total_timesteps 40000              (over all phases; the config's total_timesteps counts more)

A phase begins where the script says so, by printing a line `@phase NAME` (`echo "@phase finetune"`). A script that
never does so begins the next phase with each program that starts to train. Steps and episodes continue from one phase
to the next. Each phase is an event `phase` and a value of the scalar `progress/phase`.

The script runs with bash in the run's folder. `python` is this environment's, `$MOSAIC_SEED` the run's seed. A command
that fails ends it, also one in a pipe (`set +e` undoes that); an exit code other than 0 fails the run.
"""

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from mosaic_worker.context import RunContext
from mosaic_worker.errors import ConfigError
from mosaic_worker.hooks.counters import Counters
from mosaic_worker.hooks.process import Ending, judge

__all__ = ["ShellScript", "read_script", "run_script"]

_FIELD = re.compile(r"^\s*#\s*@(description|phases|total_timesteps)\b[ \t:]*(.*?)\s*$", re.MULTILINE)
_PHASE = re.compile(r"^@phase\s+(\S.*?)\s*$")


@dataclass(frozen=True)
class ShellScript:
    """A script and its comments."""

    path: Path
    description: str
    phases: tuple[str, ...]
    total_timesteps: int | None


class RunProgram(Protocol):
    """Runs a command as `run_hooked` does, with whatever the worker adds to it."""

    def __call__(
        self, command: list[str], *, on_line: Callable[[str], None], look: Callable[[Counters], None]
    ) -> Ending:
        """Run it to its end."""


def read_script(script: str, field: str, total_timesteps: int = 0) -> ShellScript:
    """Read a script's comments; ConfigError blames `field`. A `total_timesteps` of the config overrides the comment."""
    where, path = f"{field}: {script!r}", Path(script).absolute()
    if path.suffix != ".sh":
        raise ConfigError(f"{where} is not allowed: give the path of a shell script, *.sh")
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{where} cannot be read: {error}") from error
    fields = dict(_FIELD.findall(text))
    total = fields.get("total_timesteps", "").replace("_", "")
    if total and not (total.isdecimal() and int(total) > 0):
        raise ConfigError(f"{where}: @total_timesteps {total!r} is not allowed: give a number of steps, such as 40000")
    return ShellScript(
        path=path,
        description=fields.get("description", ""),
        phases=_phases(fields.get("phases", "")),
        total_timesteps=total_timesteps or (int(total) if total else None),
    )


def _phases(text: str) -> tuple[str, ...]:
    if text.isdecimal():
        return tuple(f"phase {number + 1}" for number in range(int(text)))
    return tuple(name.strip() for name in text.split(",") if name.strip())


def run_script(
    context: RunContext[Any], script: ShellScript, arguments: Sequence[str], run: RunProgram
) -> dict[str, Any]:
    """Run the script to its end, and report its phases; return a summary."""
    phases = _Phases(context, script.phases)
    # -e: a later phase must not hide the failure of an earlier one.
    command = ["bash", "-e", "-o", "pipefail", str(script.path), *arguments]
    ending = run(command, on_line=phases.read, look=phases.look)
    judge(context, script.path.name + phases.last if ending.code else script.path.name, ending)
    return {**ending.summary(), "phases": phases.end(ending.steps)}


class _Phases:
    """Follows the phases of a script, by its output or by the programs that it starts."""

    def __init__(self, context: RunContext[Any], names: tuple[str, ...]) -> None:
        self._context = context
        self._names = names
        self._said: list[str] = []
        self._begun: list[dict[str, Any]] = []
        self._is_told = False

    def read(self, line: str) -> None:
        """Look for `@phase NAME` in a line of output; called by the thread that copies it."""
        if found := _PHASE.match(line):
            self._is_told = True
            self._said.append(found[1])

    def look(self, counters: Counters) -> None:
        """Report phases that have begun since the last call."""
        names = self._said if self._is_told else self._names[: counters.programs]
        for name in names[len(self._begun) :]:
            self._begin(name, counters.step)

    @property
    def last(self) -> str:
        """The current phase, as a suffix for the name of the script."""
        return f", phase {self._begun[-1]['name']}," if self._begun else ""

    def _begin(self, name: str, step: int) -> None:
        emitter = self._context.emitter
        number = len(self._begun) + 1
        self._close(step)
        self._begun.append({"name": name, "first_step": step, "at": time.monotonic()})
        total = max(number, len(self._names))
        emitter.emit("phase", name=name, number=number, total=total, step=step)
        emitter.scalars(step, {"progress/phase": number})
        emitter.log("info", f"phase {number} of {total}: {name}", step=step)
        if self._names and name not in self._names:
            emitter.log("warning", f"phase {name!r} is not among those of @phases: {', '.join(self._names)}")

    def _close(self, step: int) -> None:
        if self._begun and "at" in (last := self._begun[-1]):
            last["steps"] = step - last.pop("first_step")
            last["seconds"] = round(time.monotonic() - last.pop("at"), 3)

    def end(self, step: int) -> list[dict[str, Any]]:
        """Return each phase with its steps and seconds; warn if there were fewer than announced."""
        self._close(step)
        if len(self._begun) < len(self._names):
            missing = f"{len(self._begun)} of {len(self._names)} phases began: {', '.join(self._names)} were expected"
            self._context.emitter.log("warning", missing, step=step)
        return self._begun
