"""Drives a sweep with Optuna: asks the study for parameters, submits runs, follows them, reports their values.

All state is in the study's SQLite file. The id of a trial's run is stored *before* the run is submitted, and submitting
an id twice makes one run. So a driver that was killed can continue, and no trial runs twice.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from mosaic_bus.client import Follower
from mosaic_bus.commands import Cancel, Command, Submit
from mosaic_bus.errors import CommandRefusedError, NoAnswerError
from mosaic_bus.messages import Model
from mosaic_services.specs import SpecError
from mosaic_services.sweeps.distributions import Choice
from mosaic_services.sweeps.trials import Followed, Outcome, metric_value

try:
    import optuna
except ModuleNotFoundError as missing:
    raise SpecError(
        "driver: optuna needs the package optuna, which is not installed",
        f"install it with: {sys.executable} -m pip install optuna",
    ) from missing

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from mosaic_bus import BusClient
    from mosaic_services.sweeps.distributions import Distribution
    from mosaic_services.sweeps.plan import Driver, Plan

__all__ = ["OptunaDriver", "Watcher", "open_study"]

Result = TypeVar("Result", bound=Model)

# Interval of checks for runs whose telemetry has stalled: no message announces that.
_STALLED_LOOK_S = 1.0
_ANSWER_S = 10.0
_WARM_UP = 2  # rungs before a trial may be pruned

optuna.logging.set_verbosity(optuna.logging.ERROR)


class Watcher(Protocol):
    """Receives reports of the driver."""

    def started(self, trial: int, run: str, chosen: dict[str, Any], *, again: bool) -> None:
        """Report that the run of a trial was submitted, or is followed again."""

    def ended(self, trial: int, run: str, outcome: Outcome, best: optuna.trial.FrozenTrial | None) -> None:
        """Report the outcome of a trial, and the best trial so far."""

    def trouble(self, said: str) -> None:
        """Report that a service does not answer and will be asked again."""


def open_study(path: Path, name: str, driver: Driver, seed: int) -> optuna.Study:
    """Open or create the study in a file."""
    storage = optuna.storages.RDBStorage(f"sqlite:///{path}", engine_kwargs={"connect_args": {"timeout": 30}})
    pruner: optuna.pruners.BasePruner = optuna.pruners.NopPruner()
    if driver.prune:
        pruner = optuna.pruners.MedianPruner(n_warmup_steps=_WARM_UP)
    study = optuna.create_study(
        storage=storage, study_name=name, direction=driver.direction, pruner=pruner, load_if_exists=True
    )
    # A continued study must not draw the same random numbers again.
    study.sampler = optuna.samplers.TPESampler(seed=seed + len(study.get_trials(deepcopy=False)))
    return study


class OptunaDriver:
    """Runs the trials of one sweep until all have ended, or the sweep is cancelled."""

    def __init__(
        self,
        plan: Plan,
        settings: Driver,
        group: str,
        study: optuna.Study,
        *,
        bus: BusClient,
        cancelled: Callable[[], bool],
        new_id: Callable[[], str],
        watcher: Watcher,
    ) -> None:
        self._plan = plan
        self._settings = settings
        self._group = group
        self._study = study
        self._bus = bus
        self._cancelled = cancelled
        self._new_id = new_id
        self._watcher = watcher
        self._follower = Follower(bus, group=group, hosts=False)

    async def drive(self) -> None:
        """Follow running trials, and start new ones as they end."""
        going = self._study.get_trials(deepcopy=False, states=(optuna.trial.TrialState.RUNNING,))
        waiting = [optuna.trial.Trial(self._study, each._trial_id) for each in going]  # noqa: SLF001 - the only way back to it
        tasks: dict[asyncio.Task[None], int] = {}
        await self._start_following()
        try:
            while True:
                while len(tasks) < self._settings.concurrent or waiting:
                    trial = waiting.pop(0) if waiting else self._next()
                    if trial is None:
                        break
                    tasks[asyncio.create_task(self._follow(trial))] = trial.number
                if not tasks:
                    return
                done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                # Several may have been refused at once: all are examined, the first is reported.
                failures = {tasks.pop(each): each.exception() for each in done}
                for _, failure in sorted(failures.items()):
                    if failure is not None:
                        raise failure
        finally:
            for each in tasks:
                each.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._follower.close()

    async def _start_following(self) -> None:
        await self._follower.start()
        while True:
            try:
                return await self._follower.ready(_ANSWER_S)
            except NoAnswerError as error:
                self._watcher.trouble(str(error))

    def _next(self) -> optuna.trial.Trial | None:
        if self._cancelled() or len(self._study.get_trials(deepcopy=False)) >= self._settings.trials:
            return None
        return self._study.ask()

    async def _follow(self, trial: optuna.trial.Trial) -> None:
        chosen = {path: _suggest(trial, path, each) for path, each in self._plan.random.items()}
        known = trial.user_attrs.get("run")
        run = known or self._new_id()
        if known is None:
            trial.set_user_attr("run", run)
        await self._submit(trial, run, chosen)
        self._watcher.started(trial.number, run, chosen, again=known is not None)
        if self._cancelled():
            await self._cancel(run, "the sweep was cancelled")
        followed = Followed(
            self._settings.metric,
            reported=self._study.get_trials(deepcopy=False)[trial.number].last_step or 0,
            pruned_at=trial.user_attrs.get("pruned_at"),
        )
        revision = 0
        while True:
            changes = await self._follower.wait(revision, _STALLED_LOOK_S)
            revision = changes.revision
            self._look(run, followed)
            reported = self._report(trial, followed)
            if (outcome := followed.outcome(time.monotonic())) is not None:
                break
            if self._settings.prune and reported and followed.prunable and trial.should_prune():
                await self._prune(trial, run, followed)
        self._tell(trial, run, outcome)

    async def _submit(self, trial: optuna.trial.Trial, run: str, chosen: dict[str, Any]) -> None:
        """Submit a run. Submitting the same id again has no effect."""
        try:
            spec = self._plan.spec(chosen, f"{self._plan.name}-{trial.number}", self._group)
            await self._request("scheduler", Submit(run=run, spec=spec))
        except (CommandRefusedError, SpecError) as error:
            self._study.tell(trial, state=optuna.trial.TrialState.FAIL)
            said = f"{self._plan.where}: trial {trial.number} ({_words(chosen)}) is refused: {error}"
            raise SpecError(said, getattr(error, "hint", "")) from error

    def _look(self, run: str, followed: Followed) -> None:
        """Update the run; silence of a service does not count as a stall."""
        view, now = self._follower.view, time.monotonic()
        if state := view.runs.get(run):
            followed.take_state(state, now)
        if summary := view.summaries.get(run):
            followed.take_summary(summary, now)
        if self._follower.silent():
            followed.heard_nothing(now)

    @staticmethod
    def _report(trial: optuna.trial.Trial, followed: Followed) -> bool:
        """Report new values to the study; return whether there were any."""
        new = followed.reports()
        for rung, value in new:
            trial.report(value, rung)
        return bool(new)

    async def _prune(self, trial: optuna.trial.Trial, run: str, followed: Followed) -> None:
        """Prune a trial: record it in the study, then stop its run."""
        metric = self._settings.metric
        followed.pruned_at = followed.summary.step if followed.summary else 0
        trial.set_user_attr("pruned_at", followed.pruned_at)
        value = metric_value(followed.summary, metric)
        said = f"{metric} {value:.6g} is behind the median of the other trials"
        await self._cancel(run, f"pruned at step {followed.pruned_at}: {said}")

    async def _cancel(self, run: str, reason: str) -> None:
        try:
            await self._request("scheduler", Cancel(run=run, reason=reason))
        except CommandRefusedError as error:
            if error.code != "already_final":
                raise

    def _tell(self, trial: optuna.trial.Trial, run: str, outcome: Outcome) -> None:
        if outcome.reason:
            trial.set_user_attr("reason", outcome.reason)
        states = optuna.trial.TrialState
        if outcome.state == "complete":
            self._study.tell(trial, outcome.value)
        else:
            self._study.tell(trial, state=states.PRUNED if outcome.state == "pruned" else states.FAIL)
        complete = self._study.get_trials(deepcopy=False, states=(states.COMPLETE,))
        self._watcher.ended(trial.number, run, outcome, self._study.best_trial if complete else None)

    async def _request(self, service: str, command: Command[Result]) -> Result:
        """Repeat a request until it is answered: a service may be restarting."""
        while True:
            try:
                return await self._bus.request(service, command, _ANSWER_S)
            except NoAnswerError as error:
                self._watcher.trouble(str(error))


def _suggest(trial: optuna.trial.Trial, path: str, distribution: Distribution) -> Any:
    """Ask for a parameter; a trial that already has it returns the same value."""
    if isinstance(distribution, Choice):
        # Optuna stores only plain values; others are represented by their text.
        options = {_option(value): value for value in distribution.values}
        return options[trial.suggest_categorical(path, list(options))]
    if distribution.kind == "int":
        return trial.suggest_int(path, int(distribution.low), int(distribution.high))
    return trial.suggest_float(path, distribution.low, distribution.high, log=distribution.kind == "loguniform")


def _option(value: Any) -> Any:
    plain = value is None or isinstance(value, bool | int | float | str)
    return value if plain else json.dumps(value, default=str)


def _words(chosen: dict[str, Any]) -> str:
    return ", ".join(f"{path.removeprefix('config.')}={value}" for path, value in chosen.items())
