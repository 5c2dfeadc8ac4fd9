"""`mosaic experiments`: lists, shows, stops and deletes experiments."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer
from pydantic import ValidationError

from mosaic_bus.commands import DeleteExperiment, Experiments, ShowExperiment, StopExperiment
from mosaic_bus.messages import ExperimentState
from mosaic_bus.wording import did_you_mean
from mosaic_services.cli.delete import ANSWER_S
from mosaic_services.cli.display.deleted import print_deleted, require_none_kept
from mosaic_services.cli.display.output import (
    ago,
    console,
    duration,
    number,
    plain,
    print_json,
    say,
    short,
    size,
    state_text,
    table,
)
from mosaic_services.cli.errors import InputError, NoStackError
from mosaic_services.cli.options import current, with_settings
from mosaic_services.experiments.errors import FolderError
from mosaic_services.experiments.folder import ExperimentFolder

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["app"]

app = typer.Typer(invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]})

_NAME = Annotated[str, typer.Argument(metavar="EXPERIMENT", help="Name of an experiment.")]
_JSON = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def _command(name: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    def add(function: Callable[..., None]) -> Callable[..., None]:
        app.command(name)(with_settings(function))
        return function

    return add


@app.callback(invoke_without_command=True)
def _alone(ctx: typer.Context) -> None:
    if ctx.invoked_subcommand is None:
        list_(as_json=False)


@_command("list")
def list_(as_json: _JSON = False) -> None:
    """List experiments, newest first."""
    found = known()
    if as_json:
        print_json({"experiments": [each.model_dump(mode="json") for each in found]})
        return
    if not found:
        say("no experiments yet; play one with: mosaic eval FILE")
        return
    rows = table("experiment", "state", "episodes", "lineups", "started", "took", right=("episodes", "lineups"))
    for each in found:
        took = duration((each.ended_at or each.started_at) - each.started_at) if each.ended_at else ""
        rows.add_row(
            each.experiment,
            state_text(each.state.value),
            f"{each.done:,}/{each.wanted:,}",
            str(len(each.lineups)),
            ago(each.started_at),
            took,
        )
    console().print(rows)


@_command("show")
def show(name: _NAME, as_json: _JSON = False) -> None:
    """Show one experiment: progress, shards, what could not be played."""
    state = find(name)
    if as_json:
        print_json(state.model_dump(mode="json"))
        return
    say(
        (state.experiment, "bold"),
        "  ",
        state_text(state.state.value),
        f"  {state.done:,} of {state.wanted:,} episodes",
    )
    if state.reason:
        say(f"  {state.reason}")
    rows = table("lineup", "done", "wanted", "mean return", "failures", "", right=("done", "wanted", "failures"))
    for each in state.lineups:
        rows.add_row(
            plain(each.lineup),
            f"{each.done:,}",
            f"{each.wanted:,}",
            number(each.mean_return),
            str(each.failures),
            plain(each.given_up),
        )
    console().print(rows)
    shards = table("shard", "run", "state", "host", "done", "", right=("shard", "done"))
    for shard in state.shards:
        done = f"{shard.done:,}/{shard.total:,}"
        shards.add_row(
            str(shard.number), short(shard.run), state_text(shard.state), shard.host or "", done, plain(shard.reason)
        )
    if state.shards:
        console().print(shards)
    say((state.folder, "bright_black"))


@_command("stop")
def stop(name: _NAME) -> None:
    """Stop an experiment; its records stay, and `mosaic eval` plays the rest."""
    with current.connect() as bus:
        say(bus.request("operator", StopExperiment(experiment=name)).note)


@_command("delete")
def delete(
    name: _NAME,
    keep_runs: Annotated[bool, typer.Option("--keep-runs", help="Leave the runs of its shards.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be deleted.")] = False,
    as_json: _JSON = False,
) -> None:
    """Delete an experiment with its records, report, videos and the runs of its shards. It cannot be undone.

    An experiment that is being played is refused; one of which a run has to be kept is kept.
    """
    with current.connect() as bus:
        asked = DeleteExperiment(experiment=name, keep_runs=keep_runs, dry_run=dry_run)
        answer = bus.request("operator", asked, timeout=ANSWER_S)
    if as_json:
        print_json(answer.model_dump(mode="json"))
        require_none_kept(answer.runs)
        return
    done = "keeps" if answer.runs.kept else "would delete" if dry_run else "deleted"
    say(f"{done} {name}, {answer.episodes:,} episodes, {size(answer.bytes / 2**20)}")
    if not keep_runs:
        print_deleted(answer.runs, dry_run=dry_run, as_json=False)


def known() -> list[ExperimentState]:
    """All experiments, newest first: from the running stack, or from the folders of a stopped one."""
    try:
        with current.connect() as bus:
            return bus.request("operator", Experiments()).experiments
    except NoStackError:
        if not current.home.experiments.is_dir():
            raise
    stored = (_stored(path) for path in current.home.experiments.iterdir() if path.is_dir())
    return sorted((each for each in stored if each is not None), key=lambda each: each.started_at, reverse=True)


def find(name: str) -> ExperimentState:
    """One experiment, of a running or a stopped stack."""
    try:
        with current.connect() as bus:
            return bus.request("operator", ShowExperiment(experiment=name))
    except NoStackError:
        if not current.home.experiments.is_dir():
            raise
    folder = current.home.experiments / name
    state = _stored(folder) if folder.is_dir() else None
    if state is None:
        names = [path.name for path in current.home.experiments.iterdir()]
        raise InputError(f"no experiment is called {name!r}", did_you_mean(name, names) or "see: mosaic experiments")
    return state


def _stored(path: Any) -> ExperimentState | None:
    try:
        stored = ExperimentFolder(path).read_state()
        return ExperimentState.model_validate(stored["summary"]) if stored else None
    except (FolderError, ValidationError, KeyError):
        return None
