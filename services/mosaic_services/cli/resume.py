"""`mosaic resume`: train on from the last checkpoint of a run that has ended."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from mosaic_bus import topics
from mosaic_bus.commands import Describe, Show, Submit
from mosaic_services.cli.display.output import short
from mosaic_services.cli.display.submitted import finish
from mosaic_services.cli.errors import InputError
from mosaic_services.cli.lookup import find_run
from mosaic_services.cli.options import current
from mosaic_services.config_fields import put
from mosaic_services.specs import make_spec

if TYPE_CHECKING:
    from mosaic_bus import Bus
    from mosaic_bus.messages import RunState

__all__ = ["command"]


def command(
    run: Annotated[str, typer.Argument(metavar="RUN", help="Any unique part of the run's id, or its name.")],
    steps: Annotated[
        int | None, typer.Option("--steps", min=1, help="Train for this many more steps; default: as many as before.")
    ] = None,
    checkpoint: Annotated[
        str, typer.Option("--from", metavar="WHICH", help="Which checkpoint: last, best, or a step.")
    ] = "last",
    wait: Annotated[bool, typer.Option("--wait", help="Wait for the end; the exit code tells the outcome.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Train on from a checkpoint of a run that has ended, as a new run with the same configuration.

    mosaic resume ppo-cartpole --steps 50000
    """
    with current.connect() as bus:
        detail = bus.request("scheduler", Show(run=find_run(bus, run).run))
        state = detail.run
        if not state.state.final:
            raise InputError(f"run {short(state.run)} is {state.state}: only a run that has ended can be resumed")
        document = detail.spec.model_dump(mode="json", exclude={"group", "replaces"}, exclude_defaults=True)
        document["name"] = f"{state.name}-resumed"
        values = {"{checkpoint}": f"run:{state.run}@{checkpoint}", "{steps}": steps}
        for path, value in _template(bus, state).items():
            filled = values.get(value, value) if isinstance(value, str) else value
            if filled is not None:  # no --steps: what the run's own config says
                put(document, ["config", *path.split(".")], filled)
        resumed = bus.request("scheduler", Submit(spec=make_spec(document, [], "command line")))
        finish(bus, [resumed], wait=wait, as_json=as_json)


def _template(bus: Bus, state: RunState) -> dict[str, Any]:
    """The config fields with which the run's worker resumes a training, as it describes them itself."""
    if state.host is None:
        raise InputError(f"run {short(state.run)} has never been on a host: it has no checkpoint")
    described = bus.request(topics.supervisor(state.host), Describe(worker=state.worker, profile=state.profile))
    template: dict[str, Any] = described.capabilities.get("resume_config") or {}
    if not template:
        raise InputError(f"worker {state.worker}/{state.profile} cannot resume a run that has ended")
    return template
