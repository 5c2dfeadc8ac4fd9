"""Compare runs that played the same episodes: `compare.py RUN RUN…`, each by name or part of its id.

Only seeds that all runs have in common count. An interval is the middle 95 % of the means of 10,000 bootstrap resamples
of the episodes, drawn with a fixed seed.
"""

from __future__ import annotations

import argparse
import sys

import numpy as np
from rich.console import Console
from rich.table import Table

from mosaic_bus import Bus, BusError
from mosaic_bus.commands import Episodes, Runs
from mosaic_services.home import StackHome

RESAMPLES = 10_000


def returns_by_seed(bus: Bus, run: str) -> tuple[str, dict[int, float]]:
    """A run's name, and the return of each of its episodes by its seed."""
    (found,) = bus.request("scheduler", Runs(runs=[run])).runs
    rows = bus.request("telemetry", Episodes(run=found.run, limit=100_000)).rows
    return found.name, {row["seed"]: row["return"] for row in rows if row.get("seed") is not None}


def main() -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", metavar="RUN")
    try:
        with Bus(StackHome.find(None).address()) as bus:
            found = [returns_by_seed(bus, run) for run in parser.parse_args().runs]
    except BusError as error:
        sys.exit(f"error: {error}")
    seeds = sorted(set.intersection(*(set(returns) for _, returns in found)))
    if not seeds:
        sys.exit("error: these runs have no seed in common: give them the same seed and number of episodes")
    table = Table("run", "mean", "95 % interval", "median", "worst", "best", box=None, header_style="bright_black")
    for column in table.columns[1:]:
        column.justify = "right"
    draws = np.random.default_rng(0).integers(0, len(seeds), (RESAMPLES, len(seeds)))
    for name, returns in found:
        values = np.array([returns[seed] for seed in seeds])
        low, high = np.quantile(values[draws].mean(axis=1), [0.025, 0.975])
        figures = (values.mean(), f"[{low:.1f}, {high:.1f}]", np.median(values), values.min(), values.max())
        table.add_row(name, *(each if isinstance(each, str) else f"{each:.1f}" for each in figures))
    console = Console()
    console.print(f"{len(seeds)} episodes with the same seeds, {seeds[0]} to {seeds[-1]}")
    console.print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
