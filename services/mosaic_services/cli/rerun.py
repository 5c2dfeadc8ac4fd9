"""`mosaic rerun`: submit a run again, as it was or with other values."""

from __future__ import annotations

from typing import Annotated

import typer

from mosaic_bus.commands import Rerun, Show, Submit
from mosaic_services.cli.display.submitted import finish
from mosaic_services.cli.lookup import find_run
from mosaic_services.cli.options import current
from mosaic_services.specs import make_spec

__all__ = ["command"]


def command(
    run: Annotated[str, typer.Argument(metavar="RUN", help="Any unique part of the run's id, or its name.")],
    words: Annotated[
        list[str] | None, typer.Argument(metavar="KEY=VALUE…", help="Values to change. `seed=3` means `config.seed=3`.")
    ] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Wait for its end; the exit code is its outcome.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Submit a run again, as a new run with the same configuration, or with some values changed.

    An unchanged run must have ended: the new one takes its place, in its group too. A changed one is a run of its own.

    mosaic rerun ppo-cartpole seed=2 learning_rate=0.001

    `mosaic sweep rerun GROUP` does this for all runs of a sweep that failed or were lost.
    """
    with current.connect() as bus:
        found = find_run(bus, run).run
        if words:
            spec = bus.request("scheduler", Show(run=found)).spec
            document = spec.model_dump(mode="json", exclude={"name", "group", "replaces"}, exclude_defaults=True)
            again = bus.request("scheduler", Submit(spec=make_spec(document, words, "command line")))
        else:
            (again,) = bus.request("scheduler", Rerun(run=found)).runs
        finish(bus, [again], wait=wait, as_json=as_json)
