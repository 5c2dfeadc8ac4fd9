"""Runs the driver of a sweep in the foreground and reports its trials. Its state is kept in the home."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

from ulid import ULID

from mosaic_bus.client import BusClient
from mosaic_bus.errors import HomeInUseError
from mosaic_bus.home import hold_lock
from mosaic_services.cli.display.output import console, number, print_json, say, short
from mosaic_services.cli.errors import FAILED, INTERRUPTED, STOPPED, CliError, InputError
from mosaic_services.cli.options import current
from mosaic_services.specs import SpecError
from mosaic_services.sweeps.plan import read_plan

if TYPE_CHECKING:
    from pathlib import Path

    import optuna

    from mosaic_services.sweeps.plan import Plan
    from mosaic_services.sweeps.trials import Outcome

__all__ = ["Study", "drive", "find_study", "keep_study"]

_OWNER_ONLY = 0o700


class Study:
    """The folder of a driven sweep: its file, the study, and a note if it was cancelled."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.group = folder.name
        self.file = folder / "sweep.json"
        self.database = folder / "study.db"
        self._cancelled = folder / "cancelled"

    @property
    def cancelled(self) -> bool:
        """Whether the sweep was cancelled: then no more trials are started."""
        return self._cancelled.exists()

    def cancel(self) -> None:
        """Mark the sweep as cancelled, whether its driver runs or not."""
        self._cancelled.touch()

    def go_on(self) -> None:
        """Undo a cancel."""
        self._cancelled.unlink(missing_ok=True)

    def plan(self) -> Plan:
        """Read the sweep as it was submitted."""
        from pathlib import Path  # noqa: PLC0415 - start-up time

        document = json.loads(self.file.read_text())
        return read_plan(document["sweep"], [], Path(document["file"]))


def keep_study(group: str, document: dict[str, Any], file: Path) -> Study:
    """Make the folder of a new sweep."""
    from mosaic_services.sweeps import optuna_driver  # noqa: F401, PLC0415 - without it, nothing is to be left behind

    study = Study(current.home.sweeps / group)
    study.folder.mkdir(mode=_OWNER_ONLY, parents=True)
    try:
        study.file.write_text(json.dumps({"file": str(file), "sweep": document}))
    except TypeError as error:
        raise SpecError(f"{file}: {error}", "a value that JSON cannot hold, such as a date, must be quoted") from error
    return study


def find_study(group: str) -> Study | None:
    """Find the folder of a sweep by its group or a unique part of it."""
    folder = current.home.sweeps
    known = sorted(each.name for each in folder.iterdir() if (each / "sweep.json").exists()) if folder.is_dir() else []
    fitting = [each for each in known if each == group] or [each for each in known if group in each]
    if len(fitting) > 1:
        raise InputError(f"{group!r} fits {len(fitting)} sweeps: {', '.join(fitting[-8:])}", "give more of its name")
    return Study(folder / fitting[0]) if fitting else None


def drive(study: Study, *, as_json: bool) -> None:
    """Drive a sweep to its end. Ctrl-C leaves its runs running."""
    from mosaic_services.sweeps import optuna_driver  # noqa: PLC0415 - the package is optional, and slow to import

    plan = study.plan()
    settings = plan.driver
    if settings is None:
        raise InputError(f"sweep {study.group} has no driver", "its runs need none: see mosaic sweep show")
    address = current.require_stack()
    try:
        lock = hold_lock(study.folder / "driver.lock", "driver")
    except HomeInUseError as error:
        raise CliError(f"{study.group} already has a driver: {error}".split(";")[0], "one driver is enough") from error
    watcher = _Teller(quiet=as_json)
    with lock:
        opened = optuna_driver.open_study(study.database, study.group, settings, plan.seed)

        async def run() -> None:
            async with BusClient(address) as bus:
                driver = optuna_driver.OptunaDriver(
                    plan,
                    settings,
                    study.group,
                    opened,
                    bus=bus,
                    cancelled=lambda: study.cancelled,
                    new_id=lambda: str(ULID()),
                    watcher=watcher,
                )
                await driver.drive()

        try:
            asyncio.run(run())
        except KeyboardInterrupt:
            hint = f"continue with: mosaic sweep resume {study.group}\nstop with: mosaic sweep cancel {study.group}"
            raise CliError("interrupted; the runs of its trials go on", hint, code=INTERRUPTED) from None
        except SpecError as error:
            hint = f"{error.hint}\ntrials that run go on; stop them with: mosaic sweep cancel {study.group}"
            raise SpecError(error.message, hint.strip(), detail=error.detail) from error
    trials = opened.get_trials(deepcopy=False)
    _finish(study, trials, settings.metric, as_json=as_json, lowest=settings.direction == "minimize")


def _finish(study: Study, trials: list[optuna.trial.FrozenTrial], metric: str, *, as_json: bool, lowest: bool) -> None:
    """Print the result and exit with the code for it."""
    complete = [each for each in trials if each.state.name == "COMPLETE" and each.value is not None]
    ranked = sorted(complete, key=lambda each: (each.value or 0.0) * (1 if lowest else -1))
    best = ranked[0] if ranked else None
    if as_json:
        documents = [_document(each) for each in trials]
        print_json({"group": study.group, "best": _document(best) if best else None, "trials": documents})
    elif best is not None:
        counts = [(sum(each.state.name == name for each in trials), word) for name, word in _WORDS.items()]
        say(", ".join(f"{count} {word}" for count, word in counts if count))
        say("best: ", (f"{metric} {number(best.value)}", "bold"), f"  {words(best.params)}")
        run = short(str(best.user_attrs.get("run", "")))
        say((f"run {run}, trial {best.number}   mosaic show {run}   mosaic sweep show {study.group}", "bright_black"))
    if study.cancelled:
        raise CliError(
            f"sweep {study.group} was cancelled", f"continue with: mosaic sweep resume {study.group}", code=STOPPED
        )
    if best is None:
        reasons = [str(each.user_attrs["reason"]) for each in trials if "reason" in each.user_attrs]
        raise CliError("no trial has a value", reasons[-1] if reasons else "", code=FAILED)


_WORDS = {"COMPLETE": "complete", "PRUNED": "pruned", "FAIL": "failed", "RUNNING": "left running"}


def _document(trial: optuna.trial.FrozenTrial) -> dict[str, Any]:
    return {
        "trial": trial.number,
        "run": trial.user_attrs.get("run"),
        "state": _WORDS.get(trial.state.name, trial.state.name),
        "value": trial.value,
        "parameters": trial.params,
        "reason": trial.user_attrs.get("reason", ""),
    }


def words(chosen: dict[str, Any]) -> str:
    """Format parameters as KEY=VALUE words: `lr=0.001 agent=random`."""
    return " ".join(
        f"{path.removeprefix('config.')}={f'{value:.6g}' if isinstance(value, float) else value}"
        for path, value in chosen.items()
    )


class _Teller:
    """Prints a line when a trial starts and when it ends."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet

    def started(self, trial: int, run: str, chosen: dict[str, Any], *, again: bool) -> None:
        """Report that the run of a trial was submitted, or is followed again."""
        self._say(f"trial {trial}  {short(run)}  {'followed again' if again else 'submitted'}  {words(chosen)}")

    def ended(self, trial: int, run: str, outcome: Outcome, best: optuna.trial.FrozenTrial | None) -> None:
        """Report the outcome of a trial, and the best trial so far."""
        line = f"trial {trial}  {short(run)}  {outcome.state}"
        if outcome.value is not None:
            line += f" {number(outcome.value)}"
        if outcome.state == "failed":
            line += f"  {outcome.reason}"
        if best is not None:
            line += "   best so far" if best.number == trial else f"   best {number(best.value)} (trial {best.number})"
        self._say(line)

    def trouble(self, said: str) -> None:
        """Report that a service does not answer."""
        self._say(f"{said}; asking again")

    def _say(self, line: str) -> None:
        if not self._quiet:
            say(line)
            console().file.flush()
