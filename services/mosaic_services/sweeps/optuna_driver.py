"""Drives a sweep with Optuna: asks the study for parameters, submits runs, follows them over the bus, tells the study.

Everything that must survive is in the study's SQLite file: a trial's run id is stored *before* the run is submitted,
and submitting the same id twice is one run. So a driver that was killed goes on where it was, and no trial runs twice.
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

# A run whose telemetry has stalled is noticed by looking, since nothing is heard of it.
_STALLED_LOOK_S = 1.0
_ANSWER_S = 10.0
_WARM_UP = 2  # points of the way before a trial may be pruned

optuna.logging.set_verbosity(optuna.logging.ERROR)


class Watcher(Protocol):
    """Who is told what the driver does."""

    def started(self, trial: int, run: str, chosen: dict[str, Any], *, again: bool) -> None:
        """Tell that a trial's run was submitted, or is followed again."""

    def ended(self, trial: int, run: str, outcome: Outcome, best: optuna.trial.FrozenTrial | None) -> None:
        """Tell how a trial ended, and which is the best so far."""

    def trouble(self, said: str) -> None:
        """Tell that a service does not answer; it is asked again."""


def open_study(path: Path, name: str, driver: Driver, seed: int) -> optuna.Study:
    """Open the study in a file, or make it."""
    storage = optuna.storages.RDBStorage(f"sqlite:///{path}", engine_kwargs={"connect_args": {"timeout": 30}})
    pruner: optuna.pruners.BasePruner = optuna.pruners.NopPruner()
    if driver.prune:
        pruner = optuna.pruners.MedianPruner(n_warmup_steps=_WARM_UP)
    study = optuna.create_study(
        storage=storage, study_name=name, direction=driver.direction, pruner=pruner, load_if_exists=True
    )
    # A driver that goes on must not draw the same numbers again.
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
        """Follow what runs already, and start new trials as old ones end."""
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
                # Several may have been refused at once: all are looked at, and the first of them is told of.
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
        """Submit a run, or find that it was: the same id is one run, however often it is submitted."""
        try:
            spec = self._plan.spec(chosen, f"{self._plan.name}-{trial.number}", self._group)
            await self._request("scheduler", Submit(run=run, spec=spec))
        except (CommandRefusedError, SpecError) as error:
            self._study.tell(trial, state=optuna.trial.TrialState.FAIL)
            said = f"{self._plan.where}: trial {trial.number} ({_words(chosen)}) is refused: {error}"
            raise SpecError(said, getattr(error, "hint", "")) from error

    def _look(self, run: str, followed: Followed) -> None:
        """Take in how the run is; while a service is silent, nothing has stalled."""
        view, now = self._follower.view, time.monotonic()
        if state := view.runs.get(run):
            followed.take_state(state, now)
        if summary := view.summaries.get(run):
            followed.take_summary(summary, now)
        if self._follower.silent():
            followed.heard_nothing(now)

    @staticmethod
    def _report(trial: optuna.trial.Trial, followed: Followed) -> bool:
        """Report how far the trial is; whether there was anything new."""
        new = followed.reports()
        for rung, value in new:
            trial.report(value, rung)
        return bool(new)

    async def _prune(self, trial: optuna.trial.Trial, run: str, followed: Followed) -> None:
        """Stop a run that is behind the others; the study knows before the run is stopped."""
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
        """Ask until there is an answer: a service that is restarted is no reason to give up a sweep."""
        while True:
            try:
                return await self._bus.request(service, command, _ANSWER_S)
            except NoAnswerError as error:
                self._watcher.trouble(str(error))


def _suggest(trial: optuna.trial.Trial, path: str, distribution: Distribution) -> Any:
    """Ask for a parameter; of a trial that has it already, the same again."""
    if isinstance(distribution, Choice):
        # Optuna keeps plain values only: others are chosen by their text.
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
