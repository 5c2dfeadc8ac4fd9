"""`mosaic open-tensorboard`: writes the stored curves of runs as event files and starts TensorBoard on them."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mosaic_bus.commands import Metrics, Series
from mosaic_services.cli.display.output import say, short
from mosaic_services.cli.errors import InputError
from mosaic_services.cli.options import current
from mosaic_services.comparison.collect import resolve

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mosaic_bus import Bus
    from mosaic_bus.messages import RunState

__all__ = ["command"]

_WRITER = Path(__file__).with_name("event_files.py")
# More points than TensorBoard shows of one curve by default.
_MOST_POINTS = 10_000


def command(
    names: Annotated[list[str], typer.Argument(metavar="RUN|GROUP…", help="Runs by id or name, and groups.")],
    out: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="Only write the event files, to this new folder.")
    ] = None,
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="Port on loopback; 0 for any free one.")] = 6006,
) -> None:
    """Show runs in TensorBoard, under their names: all curves as they are stored now.

    TensorBoard itself comes from this virtualenv or from that of an installed worker that has it, such as cleanrl.
    """
    python = _python_with_tensorboard()
    if out is not None and out.exists():
        raise InputError(f"{out} exists already", "choose another folder")
    with current.reader() as bus:
        runs = {state.run: state for name in names for state in resolve(bus, name)}
        if out is not None:
            _write(python, bus, list(runs.values()), out)
            say("wrote ", (str(out), "bold"))
            return
        with tempfile.TemporaryDirectory(prefix="mosaic-tensorboard-") as folder:
            _write(python, bus, list(runs.values()), Path(folder))
            say(f"{len(runs)} runs as they are stored now; Ctrl-C stops TensorBoard")
            serve = ["-m", "tensorboard.main", "--logdir", folder, "--host", "127.0.0.1", "--port", str(port)]
            code = subprocess.run([str(python), *serve], check=False).returncode
    raise typer.Exit(code)


def _python_with_tensorboard() -> Path:
    """An interpreter that has TensorBoard: ours, or that of an installed worker."""
    from mosaic_services.environments import EnvironmentsError, find_recipes, status  # noqa: PLC0415 - start-up time

    candidates = [Path(sys.executable)]
    for recipe in find_recipes(current.home):
        for profile in recipe.profiles:
            try:
                environment = status(recipe, profile)
            except EnvironmentsError:
                continue
            if environment.has_packages:
                candidates.append(environment.python)
    for python in candidates:
        if python.with_name("tensorboard").exists():
            return python
    raise InputError("TensorBoard is not installed here", "pip install tensorboard, or: mosaic workers install cleanrl")


def _write(python: Path, bus: Bus, runs: list[RunState], folder: Path) -> None:
    with subprocess.Popen([str(python), str(_WRITER), str(folder)], stdin=subprocess.PIPE, text=True) as writer:
        if writer.stdin is None:
            raise RuntimeError("the writer has no stdin")
        for run in runs:
            for line in _curves(bus, run):
                writer.stdin.write(json.dumps(line) + "\n")
        writer.stdin.close()
    if writer.returncode:
        raise InputError(f"{python} could not write event files (exit {writer.returncode})")


def _curves(bus: Bus, run: RunState) -> Iterator[dict[str, Any]]:
    name = f"{run.name}-{short(run.run)}"
    for metric in bus.request("telemetry", Metrics(run=run.run)).metrics:
        asked = Series(runs=[run.run], metrics=[metric], max_points=_MOST_POINTS)
        series = bus.request("telemetry", asked, timeout=60.0).only
        points = [
            (step, value, at)
            for step, value, at in zip(series.steps, series.values, series.times, strict=True)
            if value is not None
        ]
        yield {"run": name, "tag": metric, "points": points}
