"""`mosaic eval`: plays the experiments of a file to their end, and shows the result."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Annotated, Any

import typer
import yaml

from mosaic_bus.commands import PlanExperiment, ShowExperiment, StartExperiment
from mosaic_bus.errors import CommandRefusedError
from mosaic_bus.messages import ExperimentStateName
from mosaic_bus.refusals import RefusalCode
from mosaic_services.cli.display.output import console, print_json, say, table
from mosaic_services.cli.errors import FAILED, STOPPED, InputError
from mosaic_services.cli.eval.following import follow
from mosaic_services.cli.eval.result import print_result, result_document
from mosaic_services.cli.options import current
from mosaic_services.cli.wait.interruption import runs_go_on
from mosaic_services.experiments.reading import read_experiments
from mosaic_services.specs import load_yaml, split_words

if TYPE_CHECKING:
    from pathlib import Path

    from mosaic_bus import Bus
    from mosaic_bus.commands import ExperimentPlan
    from mosaic_bus.messages import ExperimentState
    from mosaic_services.experiments.model import Experiment

__all__ = ["command"]

_ANSWER_S = 60.0
_CODES = {ExperimentStateName.FINISHED: 0, ExperimentStateName.FAILED: FAILED, ExperimentStateName.STOPPED: STOPPED}


def command(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE [KEY=VALUE]...",
            help="An experiment file, YAML or Python, and values that override its own.",
            show_default=False,
        ),
    ],
    shards: Annotated[
        int | None, typer.Option("--shards", min=1, max=1000, help="Pieces that are played at the same time.")
    ] = None,
    hosts: Annotated[
        list[str] | None, typer.Option("--hosts", metavar="HOST", help="Only on these hosts (repeat, or a,b,c).")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be played.")] = False,
    restart: Annotated[bool, typer.Option("--restart", help="Drop the records so far, and play everything.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Evaluate: play an experiment to its end and print its table. Called again, it plays only what is missing or new.

    mosaic eval configs/experiments/cartpole.yaml episodes=200 --shards 4
    """
    path, overrides = _split(words)
    experiments, notes = read_experiments(path, overrides)
    chosen = [name for each in hosts or [] for name in each.split(",") if name]
    with current.connect() as bus:
        for note in notes:
            _note(note, quiet=as_json)
        if dry_run:
            plans = [_plan(bus, each, path, shards, chosen) for each in experiments]
            if as_json:
                print_json({"experiments": [each.model_dump(mode="json") for each in plans]})
            else:
                for plan in plans:
                    _print_plan(plan)
            return
        again = shlex.join(["mosaic", "eval", *words])
        for each in experiments:
            _start(bus, each, path, shards=shards, hosts=chosen, restart=restart, again=again, quiet=as_json)
        ended = []
        for each in experiments:
            with runs_go_on(f"experiments stop {each.name}", f"eval {path}"):
                ended.append(follow(bus, each.name, quiet=as_json))
            if not as_json:
                print_result(bus, ended[-1], again)
        if as_json:
            print_json({"experiments": [result_document(bus, state) for state in ended]})
    raise typer.Exit(max((_CODES[state.state] for state in ended), default=0))


def _split(words: list[str]) -> tuple[Path, list[tuple[list[str], Any]]]:
    files, given = split_words(words)
    if len(files) != 1:
        raise InputError(f"{len(files)} files are given", "an experiment is one file: mosaic eval FILE [KEY=VALUE]…")
    overrides = []
    for word in given:
        key, _, text = word.partition("=")
        try:
            overrides.append((key.split("."), load_yaml(text)))
        except yaml.YAMLError as error:
            raise InputError(f"{key}: {text!r} is not a YAML value", detail=str(error)) from error
    return files[0], overrides


def _plan(bus: Bus, experiment: Experiment, path: Path, shards: int | None, hosts: list[str]) -> ExperimentPlan:
    command = PlanExperiment(experiment=experiment.model_dump(mode="json"), shards=shards, hosts=hosts)
    try:
        return bus.request("operator", command, timeout=_ANSWER_S)
    except CommandRefusedError as error:
        raise error.about(f"{path}: ") from error


def _start(
    bus: Bus,
    experiment: Experiment,
    path: Path,
    *,
    shards: int | None,
    hosts: list[str],
    restart: bool,
    again: str,
    quiet: bool,
) -> ExperimentState:
    command = StartExperiment(
        experiment=experiment.model_dump(mode="json"), shards=shards, hosts=hosts, restart=restart, command=again
    )
    try:
        started = bus.request("operator", command, timeout=_ANSWER_S)
    except CommandRefusedError as error:
        if error.code == RefusalCode.ALREADY_RUNNING:
            _note(f"{experiment.name} is being played already; following it", quiet=quiet)
            if error.details.problems:
                changed = ", ".join(each.field for each in error.details.problems)
                _note(f"changed since it started: {changed}; this counts when you call it again", quiet=quiet)
            return bus.request("operator", ShowExperiment(experiment=experiment.name))
        if error.code == RefusalCode.EXPERIMENT_CHANGED:
            said = f"{path}: {error.message}"
            hint = "give it another name: name=…, or play everything again: --restart"
            raise InputError(said, hint) from error
        raise error.about(f"{path}: ") from error
    for note in started.notes:
        _note(note, quiet=quiet)
    return started


def _note(text: str, *, quiet: bool) -> None:
    if not quiet:
        say(("note: ", "yellow"), text)


def _print_plan(plan: ExperimentPlan) -> None:
    say((plan.experiment, "bold"), f"   {plan.missing:,} of {plan.wanted:,} episodes to play, {plan.done:,} are there")
    for note in plan.notes:
        _note(note, quiet=False)
    rows = table("shard", "episodes", "plays", right=("shard", "episodes"))
    for number, pieces in enumerate(plan.shards, start=1):
        played = ", ".join(f"{lineup} {first}…{last - 1}" for lineup, first, last in pieces)
        rows.add_row(str(number), f"{sum(last - first for _, first, last in pieces):,}", played)
    if plan.shards:
        console().print(rows)
