"""`mosaic export`: a run's data as Parquet files, complete or not at all."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import orjson
import pyarrow.parquet as pq
import typer
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from mosaic_bus.commands import (
    Episodes,
    Events,
    Logs,
    Metrics,
    RunDetail,
    Runs,
    Scalars,
    Show,
    StreamCounters,
    Streams,
    Summaries,
)
from mosaic_bus.errors import CommandRefusedError
from mosaic_bus.refusals import RefusalCode
from mosaic_services.cli.display.output import console, print_json, say, short
from mosaic_services.cli.errors import FAILED, CliError, InputError
from mosaic_services.cli.export.columns import EPISODES, EVENTS, LOGS, SCALARS, runs_table, table_of
from mosaic_services.cli.lookup import find_run
from mosaic_services.cli.options import current

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import pyarrow as pa

    from mosaic_bus import Bus

__all__ = ["command"]

_PAGE = 10_000
_DATA = ("events", "episodes", "scalars", "logs")
_ABOUT = "run.json"
_FILES = {_ABOUT, *(f"{name}.parquet" for name in _DATA)}
_NAMED = 3
_MOST_RUNS = 10_000
_LONGEST_NAME = 80


def command(
    run: Annotated[
        str | None, typer.Argument(metavar="RUN", help="Any unique part of the run's id, or its name.")
    ] = None,
    group: Annotated[str | None, typer.Option("--group", metavar="GROUP", help="All runs of a group.")] = None,
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder to write; must not exist yet.")] = ...,  # type: ignore[assignment]
    force: Annotated[bool, typer.Option("--force", help="Replace an earlier export of a run.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the number of rows as JSON.")] = False,
) -> None:
    """Write a run's events, episodes, scalars and logs to Parquet files, and its spec, state and counters to run.json.

    With --group, a folder for each run, and runs.parquet with their parameters and results.
    """
    if (run is None) == (group is None):
        raise InputError(
            "nothing to export" if run is None else "both a run and --group", "give a RUN, or --group GROUP"
        )
    if out.exists() and (not force or group):
        raise InputError(f"{out} exists already", "choose another folder" + ("" if group else ", or use --force"))
    # A symbolic link is kept; its target is replaced.
    folder = out.resolve()
    with current.reader() as bus:
        try:
            if group is not None:
                _export_group(bus, group, folder, as_json=as_json)
            else:
                _require_replaceable(folder)
                _export_run(bus, find_run(bus, run or "").run, folder, as_json=as_json)
        except OSError as error:
            raise InputError(f"cannot write {folder}: {error.strerror or error}") from error


def _export_run(bus: Bus, run: str, folder: Path, *, as_json: bool) -> None:
    detail, streams = _about(bus, run)
    counts = _export(bus, detail, streams, folder, quiet=as_json)
    partial = any(not each.final or each.missing for each in streams)
    _report(detail, folder, counts, partial, as_json=as_json)


def _export_group(bus: Bus, group: str, folder: Path, *, as_json: bool) -> None:
    """Write all runs beside the folder, then put them in its place."""
    states = bus.request("scheduler", Runs(group=group, limit=_MOST_RUNS)).runs
    folder.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        specs = {}
        for place, state in enumerate(states, 1):
            detail, streams = _about(bus, state.run)
            specs[state.run] = detail.spec
            _export(bus, detail, streams, scratch / f"{_file_name(state.name)}-{short(state.run)}", quiet=True)
            if not as_json and console().is_terminal:
                say(f"\r{place} of {len(states)} runs", end="")
        summaries = {each.run: each for each in bus.request("telemetry", Summaries(runs=list(specs))).summaries}
        pq.write_table(runs_table(states, specs, summaries), scratch / "runs.parquet", compression="zstd")
        scratch.chmod(0o755)
        scratch.rename(folder)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    if as_json:
        print_json({"group": group, "folder": str(folder), "runs": list(specs)})
    else:
        say(f"\rexported {len(states)} runs of {group} to ", (str(folder), "bold"))


def _file_name(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name)[:_LONGEST_NAME]


def _about(bus: Bus, run: str) -> tuple[RunDetail, list[StreamCounters]]:
    detail = bus.request("scheduler", Show(run=run))
    try:
        return detail, bus.request("telemetry", Streams(run=run)).streams
    except CommandRefusedError as error:
        if error.code != RefusalCode.UNKNOWN_RUN:
            raise
        return detail, []


def _report(detail: RunDetail, out: Path, counts: dict[str, int], partial: bool, *, as_json: bool) -> None:
    if as_json:
        print_json({"run": detail.run.run, "folder": str(out.absolute()), "complete": not partial, "rows": counts})
        return
    what = ", ".join(f"{count:,} {name}" for name, count in counts.items())
    say(f"exported {short(detail.run.run)} to ", (str(out), "bold"), f": {what}")
    if partial:
        say(("the run has not ended, or not all of it is stored: the files hold what is stored so far", "yellow"))


def _export(bus: Bus, detail: RunDetail, streams: list[StreamCounters], folder: Path, *, quiet: bool) -> dict[str, int]:
    """Write all files next to the folder, then replace it; return the number of rows of each kind."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        counts = _write_all(bus, detail, scratch, sum(each.stored for each in streams), quiet=quiet)
        document = {
            **detail.model_dump(mode="json"),
            "streams": [each.model_dump(mode="json") for each in streams],
            "rows": counts,
        }
        (scratch / _ABOUT).write_bytes(orjson.dumps(document, option=orjson.OPT_INDENT_2))
        scratch.chmod(0o755)
        _replace(scratch, folder)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return counts


def _require_replaceable(folder: Path) -> None:
    """Refuse to replace a folder that holds anything but an export."""
    if not folder.exists():
        return
    if not folder.is_dir():
        raise InputError(f"{folder} is a file, not a folder")
    inside = sorted(folder.iterdir())
    others = [each.name for each in inside if each.name not in _FILES or not each.is_file()]
    if others:
        more = f" and {len(others) - _NAMED} more" if len(others) > _NAMED else ""
        names = ", ".join(others[:_NAMED]) + more
        raise InputError(f"{folder} holds more than an export: {names}", "choose another folder")
    if inside and not (folder / _ABOUT).exists():
        raise InputError(f"{folder} is not an export: it has no {_ABOUT}", "choose another folder")
    if folder == Path.cwd():
        raise InputError(f"{folder} is the current folder, which would be replaced", "choose another folder")


def _replace(scratch: Path, folder: Path) -> None:
    """Move the finished folder into place; an old one is moved away first and removed last."""
    if not folder.exists():
        scratch.rename(folder)
        return
    _require_replaceable(folder)  # checked again, because an export can take long
    old = Path(tempfile.mkdtemp(prefix=f".{folder.name}-old-", dir=folder.parent))
    try:
        os.replace(folder, old)  # noqa: PTH105 - replaces the empty folder
        scratch.rename(folder)
    finally:
        if not folder.exists():  # the second rename failed: restore the old folder
            os.replace(old, folder)  # noqa: PTH105 - as above
        shutil.rmtree(old, ignore_errors=True)


def _write_all(bus: Bus, detail: RunDetail, folder: Path, total: int, *, quiet: bool) -> dict[str, int]:
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console(), transient=True, disable=quiet or not console().is_terminal) as progress:
        task = progress.add_task("exporting", total=total or None)
        return _write(bus, detail, folder, lambda rows: progress.advance(task, rows))


def _write(bus: Bus, detail: RunDetail, folder: Path, advance: Callable[[int], None]) -> dict[str, int]:
    run = detail.run.run
    attempts = range(1, detail.run.attempt + 1)
    counts = dict.fromkeys(_DATA, 0)
    with (
        _writer(folder / "events.parquet", EVENTS) as events,
        _writer(folder / "scalars.parquet", SCALARS) as scalars,
        _writer(folder / "episodes.parquet", EPISODES) as episodes,
        _writer(folder / "logs.parquet", LOGS) as logs,
    ):
        for attempt in attempts:
            for rows in _pages(bus, Events(run=run, attempt=attempt, limit=_PAGE)):
                counts["events"] += _append(events, EVENTS, rows, attempt=attempt)
                advance(len(rows))
            for rows in _pages(bus, Logs(run=run, attempt=attempt, limit=_PAGE)):
                counts["logs"] += _append(logs, LOGS, rows, attempt=attempt)
                advance(len(rows))
        # Episodes and scalars are those of the run: what a later attempt repeated is there once.
        metrics, agents = _names(bus, run)
        for agent in (None, *agents):
            for rows in _pages(bus, Episodes(run=run, agent=agent, limit=_PAGE)):
                counts["episodes"] += _append(episodes, EPISODES, rows)
            for metric in metrics:
                for rows in _pages(bus, Scalars(run=run, metric=metric, agent=agent, limit=_PAGE)):
                    counts["scalars"] += _append(scalars, SCALARS, rows, name=metric, agent=agent)
    return counts


def _writer(path: Path, schema: pa.Schema) -> pq.ParquetWriter:
    return pq.ParquetWriter(path, schema, compression="zstd")


def _append(writer: pq.ParquetWriter, schema: pa.Schema, rows: list[dict[str, Any]], **more: object) -> int:
    if rows:
        writer.write_table(table_of([{**more, **row} for row in rows], schema))
    return len(rows)


def _names(bus: Bus, run: str) -> tuple[list[str], list[str]]:
    """The scalars and the agents of a run."""
    try:
        found = bus.request("telemetry", Metrics(run=run), timeout=30.0)
    except CommandRefusedError as error:
        if error.code == "unknown_run":
            return [], []
        raise
    return list(found.metrics), found.agents


def _pages(bus: Bus, query: Events | Episodes | Logs | Scalars) -> Iterator[list[dict[str, Any]]]:
    """All pages of a query; a run without output has none."""
    start: int | None = 0
    while start is not None:
        try:
            page = bus.request("telemetry", query.model_copy(update={"start": start}), timeout=30.0)
        except CommandRefusedError as error:
            if error.code == "unknown_run":
                return
            raise
        if page.next is not None and page.next <= start:
            raise CliError(f"telemetry's page {start} points back to {page.next}", code=FAILED)
        yield page.rows
        start = page.next
