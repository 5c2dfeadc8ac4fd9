"""`mosaic replay`: plays an episode of an experiment again, and checks that it is the same, action for action."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import orjson
import typer

from mosaic_bus.commands import Events, Submit
from mosaic_bus.messages import RunStateName
from mosaic_services.cli.display.output import number, print_json, say, short
from mosaic_services.cli.errors import FAILED, CliError, InputError
from mosaic_services.cli.experiments import find
from mosaic_services.cli.options import current
from mosaic_services.cli.wait.runs import Watched, outcome_lines, wait_until_done
from mosaic_services.experiments.folder import ExperimentFolder
from mosaic_services.experiments.records import read_event
from mosaic_services.experiments.shards import Slice, replay_spec, shard_spec
from mosaic_services.experiments.steps import Steps

if TYPE_CHECKING:
    from pathlib import Path

    from mosaic_bus import Bus

__all__ = ["command"]

# What follows from actions alone; failures and numerics are those of policies.
_OF_ACTIONS = ("action_hash", "ended", "env_seed", "length", "returns")


def command(
    experiment: Annotated[str, typer.Argument(metavar="EXPERIMENT", help="Name of an experiment.")],
    episode: Annotated[int, typer.Option("--episode", metavar="N", min=0, help="Number of the episode.")],
    lineup: Annotated[
        str | None, typer.Option("--lineup", metavar="LINEUP", help="Which lineup; not needed if there is one.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Play a recorded episode again, filmed, and compare it with its record.

    Recorded actions are played if the experiment has them (steps: true); else the policies are asked again.

    mosaic replay cartpole-vs-random --episode 3 --lineup ppo
    """
    folder = ExperimentFolder(current.home.experiments / find(experiment).experiment)
    plan = folder.read_plan()
    if plan is None:
        raise CliError(f"{folder.plan_file} is missing")
    names = [each["name"] for each in plan["lineups"]]
    chosen = _choose(lineup, names)
    recorded = _record(folder.episodes, chosen, episode)
    name = f"replay-{experiment}-{episode}"
    steps = Steps(folder.path)
    offset = steps.find(chosen, episode)
    if offset is not None:
        spec = replay_spec(plan, recorded, name, steps.path, offset)
    else:
        filmed = {**plan, "steps": True, "videos": [episode], "group": ""}
        spec = shard_spec(filmed, [Slice(chosen, episode, episode + 1)], name)
    source = "policies" if offset is None else "actions"
    with current.connect() as bus:
        run = bus.request("scheduler", Submit(spec=spec)).run
        played = _play(bus, run)
    folder_of_run = current.home.runs / run
    compared = recorded if offset is None else _OF_ACTIONS
    differing = sorted(key for key in compared if recorded[key] != played.get(key))
    if as_json:
        print_json(
            {
                "run": run,
                "from": source,
                "same": not differing,
                "differing": differing,
                "recorded": recorded,
                "played": played,
            }
        )
    elif not differing:
        returns = ", ".join(f"{agent} {number(value)}" for agent, value in played["returns"].items())
        say(
            ("the same", "green"), f", action for action: {played['length']} steps, {played['ended']}, return {returns}"
        )
    else:
        say(("not the same: ", "red"), ", ".join(differing))
        for key in differing:
            say(f"  {key}: was {recorded[key]}, now {played.get(key)}")
        if "numerics" in differing:
            say("  the numerics differ: another machine, library or version computes other numbers")
    if not as_json:
        what = "the policies were asked again" if offset is None else "the recorded actions were played"
        say((f"{what}; run {short(run)}, with its video, is in {folder_of_run}", "bright_black"))
    raise typer.Exit(FAILED if differing else 0)


def _choose(lineup: str | None, names: list[str]) -> str:
    if lineup is None and len(names) == 1:
        return names[0]
    if lineup not in names:
        said = "which lineup?" if lineup is None else f"no lineup is called {lineup!r}"
        raise InputError(said, f"the lineups are: {', '.join(names)}   (--lineup NAME)")
    return lineup


def _record(path: Path, lineup: str, episode: int) -> dict[str, Any]:
    for line in path.read_bytes().splitlines() if path.exists() else ():
        record: dict[str, Any] = orjson.loads(line)
        if record["episode"] == episode and record["lineup"] == lineup:
            return record
    raise InputError(f"episode {episode} of {lineup} is not recorded", f"see: {path}")


def _play(bus: Bus, run: str) -> dict[str, Any]:
    """Wait for the run, and return the record that it wrote."""
    with bus.follow(runs=[run], hosts=False) as view:
        watched = [Watched(run)]
        wait_until_done(view, watched, lambda: None)
    state = watched[0].state
    found = []
    if state is not None and state.attempt:
        rows = bus.request("telemetry", Events(run=run, attempt=state.attempt, kinds=["episode"])).rows
        found = [record for row in rows if (record := read_event(row["line"])) is not None]
    # The run of an episode that came out differently has failed, and has a record.
    if state is None or (state.state is not RunStateName.SUCCEEDED and not found):
        lines = outcome_lines(bus, state) if state else [f"run {run} is gone"]
        raise CliError(f"the episode could not be played: {lines[0]}", "\n".join(lines[1:]))
    if len(found) != 1:
        raise CliError(f"run {short(run)} wrote {len(found)} records instead of one")
    return found[0]
