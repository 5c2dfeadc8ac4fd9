"""The table of an experiment that is over."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from mosaic_bus.messages import ExperimentStateName
from mosaic_services.cli.display.output import console, duration, number, plain, say, state_text, table
from mosaic_services.experiments.folder import ExperimentFolder
from mosaic_services.statistics.scores import Score, score

if TYPE_CHECKING:
    from mosaic_bus.messages import ExperimentState

__all__ = ["print_result", "result_document"]


def print_result(state: ExperimentState, again: str) -> None:
    """Print the table, what went wrong, and how to run it again."""
    took = duration((state.ended_at or state.started_at) - state.started_at)
    hosts = len({each.host for each in state.shards if each.host})
    parts = [f"{state.done:,} of {state.wanted:,} episodes", f"{len(state.shards)} shards on {hosts} hosts", took]
    say(("experiment ", ""), (state.experiment, "bold"), "   ", state_text(state.state.value), "   ", "   ".join(parts))
    rows = table("lineup", "episodes", "mean", "95 % interval", "IQM", "median", "failures", right=("episodes", "mean"))
    failures = {each.lineup: each.failures for each in state.lineups}
    for lineup, each in _scores(Path(state.folder)).items():
        rows.add_row(
            plain(lineup),
            f"{each.n:,}",
            number(each.mean),
            f"[{number(each.mean_interval[0])}, {number(each.mean_interval[1])}]" if each.mean_interval else "",
            number(each.iqm),
            number(each.median),
            str(failures.get(lineup, 0)),
        )
    console().print(rows)
    for left in state.lineups:
        if left.given_up:
            count = f"{left.wanted - left.done:,} episodes not played: "
            say((f"{left.lineup}: ", "bold"), (count, "red"), left.given_up)
    if state.lost:
        say((f"{state.lost} shards were lost; their episodes were played again", "yellow"))
    if state.conflicts:
        say((f"{state.conflicts} episodes gave another result when they were played again", "red"))
    if state.look:
        say(state.look)
    if state.state is not ExperimentStateName.FINISHED:
        say((f"{state.state}: ", "red"), state.reason)
    say((f"rerun: {again}   records: {state.folder}/episodes.jsonl", "bright_black"))


def result_document(state: ExperimentState) -> dict[str, Any]:
    """The result for programs."""
    scores = {
        lineup: {name: getattr(each, name) for name in each.__dataclass_fields__}
        for lineup, each in _scores(Path(state.folder)).items()
    }
    return {**state.model_dump(mode="json"), "scores": scores}


def _scores(folder: Path) -> dict[str, Score]:
    """The score of each lineup, over episodes."""
    found: dict[str, list[float]] = {}
    path = ExperimentFolder(folder).episodes
    for line in path.read_bytes().splitlines() if path.exists() else ():
        record = orjson.loads(line)
        total = sum(value for value in record["returns"].values() if value is not None)
        found.setdefault(record["lineup"], []).append(float(total))
    return {lineup: score(values) for lineup, values in found.items()}
