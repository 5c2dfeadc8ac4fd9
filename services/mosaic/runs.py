"""Runs as Python objects."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import pandas as pd

from mosaic.connection import bus
from mosaic_bus.client.live import is_settled
from mosaic_bus.commands import Cancel, Checkpoints, Episodes, Logs, Metrics, Runs, Series, Show, Submit, Summaries
from mosaic_bus.errors import CommandRefusedError
from mosaic_bus.refusals import RefusalCode
from mosaic_services.specs import make_spec, read_file

if TYPE_CHECKING:
    from collections.abc import Iterable

    from mosaic_bus.messages import RunSpec, RunState, RunSummary

__all__ = ["Run", "compare", "run", "runs", "submit"]

_PAGE = 10_000


class Run:
    """One run. What it tells is asked for at that moment; nothing is cached but its id."""

    def __init__(self, run_id: str) -> None:
        self.id = run_id

    def __repr__(self) -> str:
        state = self.state
        return f"<mosaic run {state.name} {self.id[-6:]}: {state.state}>"

    @property
    def state(self) -> RunState:
        """Its state: `.state`, `.reason`, `.attempt`, `.host`, times."""
        return bus().request("scheduler", Runs(runs=[self.id])).runs[0]

    @property
    def name(self) -> str:
        """Its readable name."""
        return self.state.name

    @property
    def spec(self) -> RunSpec:
        """What was asked for; `.config` is the worker's own configuration."""
        return bus().request("scheduler", Show(run=self.id)).spec

    @property
    def summary(self) -> RunSummary | None:
        """Live aggregates: step, episodes, mean return of the last 100 episodes, newest scalars."""
        found = bus().request("telemetry", Summaries(runs=[self.id])).summaries
        return found[0] if found else None

    def wait(self, timeout: float | None = None) -> Self:
        """Wait until the run has ended and its telemetry is stored; raise `TimeoutError` after `timeout` seconds."""
        deadline = None if timeout is None else time.monotonic() + timeout
        with bus().follow(runs=[self.id], hosts=False) as view:
            while not is_settled(view.runs[self.id], view.summaries.get(self.id)):
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    raise TimeoutError(f"run {self.id} is {view.runs[self.id].state} after {timeout:g} s")
                view.wait(left)
        return self

    def cancel(self) -> None:
        """Stop it, or take it out of the queue."""
        bus().request("scheduler", Cancel(run=self.id))

    def metrics(self) -> dict[str, int]:
        """Names of its series, with the number of points of each."""
        return dict(bus().request("telemetry", Metrics(run=self.id)).metrics)

    def series(self, metric: str = "episode_return", *, agent: str | None = None, points: int = 1000) -> pd.DataFrame:
        """One of its curves: step, value, low, high, time; buckets if it has more than `points` points.

        `agent` selects the curve of one agent of several.
        """
        asked = Series(runs=[self.id], metrics=[metric], agent=agent, max_points=points)
        found = bus().request("telemetry", asked, timeout=60.0).only
        columns = {
            "step": found.steps,
            "value": found.values,  # noqa: PD011 - a field of ours
            "low": found.lows,
            "high": found.highs,
        }
        frame = pd.DataFrame({**columns, "time": pd.to_datetime(pd.Series(found.times, dtype=float), unit="s")})
        return frame.astype({"value": float, "low": float, "high": float})

    def episodes(self, *, agent: str | None = None) -> pd.DataFrame:
        """Every episode: step, time, episode, return, length, seed, agent."""
        rows: list[dict[str, Any]] = []
        start: int | None = 0
        while start is not None:
            try:
                page = bus().request(
                    "telemetry", Episodes(run=self.id, agent=agent, start=start, limit=_PAGE), timeout=60.0
                )
            except CommandRefusedError as error:
                if error.code != RefusalCode.UNKNOWN_RUN:
                    raise
                break  # it has not written anything yet
            rows += page.rows
            start = page.next
        frame = pd.DataFrame(rows, columns=["step", "ts", "episode", "return", "length", "seed", "agent"])
        return frame.assign(ts=pd.to_datetime(frame["ts"], unit="s")).rename(columns={"ts": "time"})

    def checkpoints(self) -> pd.DataFrame:
        """Its checkpoints: attempt, path, step, time, whether it is the best, score."""
        found = bus().request("telemetry", Checkpoints(run=self.id)).checkpoints
        return pd.DataFrame([each.model_dump() for each in found])

    def logs(self, tail: int = 100) -> str:
        """The last lines of its log."""
        found = bus().request("telemetry", Logs(run=self.id, tail=tail)).rows
        return "\n".join(str(row["line"]) for row in found)


def run(name: str) -> Run:
    """Find a run by its name, its id, or any unique part of that."""
    return Run(bus().request("scheduler", Runs(runs=[name])).runs[0].run)


def runs(*, group: str = "", limit: int = 100) -> list[Run]:
    """The newest runs, newest first, or those of a group."""
    return [Run(each.run) for each in bus().request("scheduler", Runs(group=group, limit=limit)).runs]


def submit(spec: str | os.PathLike[str] | dict[str, Any], /, **config: Any) -> Run:
    """Queue a run, from a file or a spec such as `{"worker": "baseline"}`; keywords replace fields of its config."""
    if isinstance(spec, dict):
        document, where = spec, "spec"
    else:
        document, where = read_file(Path(spec)), os.fspath(spec)
    document = {**document, "config": {**document.get("config", {}), **config}}
    return Run(bus().request("scheduler", Submit(spec=make_spec(document, [], where, {}))).run)


def compare(names: Iterable[str | Run], metric: str = "episode_return", by: list[str] | None = None) -> pd.DataFrame:
    """One row per setting with its seeds folded: seeds, mean, iqm, their 95 % intervals; best first."""
    from mosaic_services.comparison.collect import collect  # noqa: PLC0415 - takes a moment to import
    from mosaic_services.statistics.scores import score  # noqa: PLC0415 - as above

    wanted = [each.id if isinstance(each, Run) else each for each in names]
    found = collect(bus(), wanted, metric)
    rows = []
    for setting in found.fold(by):
        each = score([found.scores[run] for run in setting.runs])
        low, high = each.mean_interval or (None, None)
        iqm_low, iqm_high = each.iqm_interval or (None, None)
        figures = {"seeds": each.n, "mean": each.mean, "mean_low": low, "mean_high": high}
        more = {"iqm": each.iqm, "iqm_low": iqm_low, "iqm_high": iqm_high, "median": each.median}
        rows.append({"setting": setting.label, **figures, **more, "runs": setting.runs})
    columns = list(rows[0]) if rows else ["setting", "seeds", "mean", "iqm"]
    return pd.DataFrame(rows, columns=columns).sort_values("mean", ascending=False, ignore_index=True)
