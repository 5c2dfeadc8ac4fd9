"""MOSAIC from Python: submit runs, wait for them, and read their curves as pandas DataFrames.

    import mosaic

    run = mosaic.submit("configs/runs/ppo-cartpole.yaml", seed=3).wait()
    run.series("episode_return").plot(x="step", y="value")

Everything goes over the bus of the running stack: `$MOSAIC_HOME`, or `~/.mosaic`.
"""

from mosaic.runs import Run, compare, run, runs, submit
from mosaic_bus.errors import BusError, CommandRefusedError

__all__ = ["BusError", "CommandRefusedError", "Run", "compare", "run", "runs", "submit"]
