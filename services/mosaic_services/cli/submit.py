"""`mosaic submit`: queue runs from files or from the command line."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from mosaic_bus.commands import NewRun, SubmitMany, Submitted
from mosaic_bus.errors import CommandRefusedError
from mosaic_services.cli.display.submitted import finish, print_queued
from mosaic_services.cli.errors import InputError
from mosaic_services.cli.options import current
from mosaic_services.cli.sweep.submission import MOST_RUNS
from mosaic_services.specs import make_spec, read_file, split_words

if TYPE_CHECKING:
    from mosaic_bus import Bus
    from mosaic_bus.messages import RunSpec

__all__ = ["command"]


def command(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="FILE|KEY=VALUE",
            help="Run files, and values that override theirs. `seed=3` means `config.seed=3`.",
            show_default=False,
        ),
    ] = None,
    worker: Annotated[
        str | None, typer.Option("--worker", metavar="WORKER", help="Run this worker without a file.")
    ] = None,
    profile: Annotated[str | None, typer.Option("--profile", help="Which of the worker's environments.")] = None,
    name: Annotated[str | None, typer.Option("--name", help="Readable name of the run.")] = None,
    after: Annotated[
        list[str] | None,
        typer.Option("--after", metavar="RUN", help="Start when this run has succeeded (repeat for several)."),
    ] = None,
    priority: Annotated[
        int | None, typer.Option("--priority", min=-1000, max=1000, help="Higher starts first; default 0.")
    ] = None,
    wait: Annotated[
        bool, typer.Option("--wait", help="Wait until they end; the exit code tells their outcome.")
    ] = False,
    watch: Annotated[
        bool, typer.Option("--watch", help="Open `mosaic watch`; without a terminal, same as --wait.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Queue a run, from a file or from the command line.

    mosaic submit configs/runs/random-cartpole.yaml config.seed=3 --wait

    mosaic submit --worker baseline env_id=CartPole-v1 episodes=100 resources.cpus=0.5
    """
    files, overrides = split_words(words or [])
    if len(files) > MOST_RUNS:
        raise InputError(f"{len(files):,} files; at most {MOST_RUNS:,} can be submitted at once")
    options = {"profile": profile, "name": name, "priority": priority, "after": after or None}
    given = {key: value for key, value in options.items() if value is not None}
    if worker is None and not files:
        raise InputError("nothing to submit", "give a file, or a worker: mosaic submit --worker baseline")
    if worker is not None and files:
        raise InputError(
            f"both --worker {worker} and a file ({files[0]})", "a file names its worker; override it with worker=…"
        )
    if worker is not None:
        specs = [("command line", make_spec({"worker": worker}, overrides, "command line", given))]
    else:
        specs = [(str(path), make_spec(read_file(path), overrides, str(path), given)) for path in files]
    with current.connect() as bus:
        submitted = _submit(bus, specs)
        # Without a terminal, --watch means --wait.
        if watch and sys.stdout.isatty():
            from mosaic_services.cli.watch.command import watch_runs  # noqa: PLC0415 - start-up time

            print_queued(submitted)
            watch_runs(bus, submitted[0].run if len(submitted) == 1 else None, until_done=False)
        else:
            finish(bus, submitted, wait=wait or watch, as_json=as_json)


def _submit(bus: Bus, specs: list[tuple[str, RunSpec]]) -> list[Submitted]:
    """Queue all runs or none, so that the same command can be repeated after a refusal."""
    try:
        return bus.request("scheduler", SubmitMany(runs=[NewRun(spec=spec) for _, spec in specs])).runs
    except CommandRefusedError as error:
        if len(specs) == 1:
            raise error.about(f"{specs[0][0]}: ") from error
        if error.details.index is None:
            raise
        named = error.about(f"{specs[error.details.index][0]}: ")
        message = f"{named.message}\nnone of the {len(specs)} runs is queued"
        raise CommandRefusedError(named.code, message, named.details) from error
