"""`mosaic show`: everything about one run."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer
import yaml

from mosaic_bus.commands import Events, RunDetail, Show, StreamCounters, Streams, Summaries
from mosaic_bus.errors import CommandRefusedError, NoAnswerError
from mosaic_services.cli.display.output import (
    ago,
    clock,
    console,
    duration,
    number,
    plain,
    print_json,
    say,
    size,
    state_text,
    table,
)
from mosaic_services.cli.lookup import find_run
from mosaic_services.cli.options import current
from mosaic_services.progress import fraction
from mosaic_worker.events import read_line

if TYPE_CHECKING:
    from pathlib import Path

    from rich.table import Table

    from mosaic_bus import Bus
    from mosaic_bus.messages import RunSpec, RunSummary

__all__ = ["command"]

# The first files of a run; more are in its folder.
_FILES_SHOWN = 50


def command(
    run: Annotated[str, typer.Argument(metavar="RUN", help="Any unique part of the run's id, or its name.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show a run: state and reason, attempts, decisions, configuration, results, and whether all events are stored."""
    with current.reader() as bus:
        detail = bus.request("scheduler", Show(run=find_run(bus, run).run))
        summary, streams, trouble = _telemetry(bus, detail.run.run)
        results = _own_summary(bus, summary)
        artifacts = _artifacts(bus, summary)
    folder = current.home.runs / detail.run.run
    if as_json:
        print_json(
            {
                **detail.model_dump(mode="json"),
                "summary": summary.model_dump(mode="json") if summary else None,
                "results": results,
                "artifacts": artifacts,
                "streams": [each.model_dump(mode="json") for each in streams],
                "folder": str(folder),
            }
        )
        return
    _print_state(detail, str(folder))
    if detail.attempts:
        _section("attempts", _attempts(detail.attempts))
    _section("decisions", _decisions(detail))
    if summary is not None:
        _section("results", _results(summary, folder / str(summary.attempt), results))
    if artifacts:
        _section("files", _files(artifacts))
    if streams:
        _section("events and logs", _streams(streams))
    if trouble:
        say((f"\ntelemetry: {trouble}", "yellow"))
    say(("\nCONFIG", "bright_black"))
    say(yaml.safe_dump(detail.spec.config, sort_keys=False).rstrip() or "{}")


def _telemetry(bus: Bus, run: str) -> tuple[RunSummary | None, list[StreamCounters], str]:
    try:
        summaries = bus.request("telemetry", Summaries(runs=[run]), timeout=3.0).summaries
        streams = bus.request("telemetry", Streams(run=run), timeout=3.0).streams
    except NoAnswerError as error:
        return None, [], str(error)
    except CommandRefusedError as error:
        return None, [], "" if error.code == "unknown_run" else str(error)
    return next((each for each in summaries if each.run == run), None), streams, ""


def _own_summary(bus: Bus, summary: RunSummary | None) -> dict[str, Any]:
    """The summary in the worker's own `run_completed` event."""
    if summary is None or summary.outcome != "run_completed":
        return {}
    asked = Events(run=summary.run, attempt=summary.attempt, kinds=["run_completed"], limit=1)
    try:
        rows = bus.request("telemetry", asked, timeout=3.0).rows
    except (NoAnswerError, CommandRefusedError):
        return {}
    found = read_line(rows[0]["line"]).fields.get("summary") if rows else None
    return found if isinstance(found, dict) else {}


def _artifacts(bus: Bus, summary: RunSummary | None) -> list[dict[str, Any]]:
    """Files that the newest attempt reported, such as videos and models, in the order of its journal."""
    if summary is None:
        return []
    asked = Events(run=summary.run, attempt=summary.attempt, kinds=["artifact"], limit=_FILES_SHOWN)
    try:
        rows = bus.request("telemetry", asked, timeout=3.0).rows
    except (NoAnswerError, CommandRefusedError):
        return []
    return [{"attempt": summary.attempt, **read_line(row["line"]).fields} for row in rows]


def _files(artifacts: list[dict[str, Any]]) -> Table:
    rows = table("kind", "path")
    rows.show_header = False
    for each in artifacts:
        # Relative to the run's folder, which is shown above: a whole path does not fit in a narrow terminal.
        rows.add_row(plain(str(each.get("kind", ""))), f"{each['attempt']}/{plain(str(each.get('path', '')))}")
    return rows


def _section(title: str, content: Table) -> None:
    say((f"\n{title.upper()}", "bright_black"))
    console().print(content)


def _print_state(detail: RunDetail, folder: str) -> None:
    run, spec = detail.run, detail.spec
    say((plain(run.name), "bold"), "  ", state_text(run.state), (f"  {run.run}", "bright_black"))
    grid = table("", "")
    grid.show_header = False
    grid.columns[0].style = "bright_black"
    grid.columns[1].no_wrap = False
    category = f"{run.category}: " if run.category else ""
    grid.add_row("why", f"{category}{run.reason}" + (f"\n{run.detail}" if run.detail not in run.reason else ""))
    profile = "" if run.profile == "default" else f", profile {run.profile}"
    grid.add_row("worker", f"{run.worker}{profile}")
    if run.group:
        grid.add_row("group", run.group)
    if run.host:
        of = f" of {run.attempts}" if run.attempts > 1 else ""
        grid.add_row("host", f"{run.host}, attempt {run.attempt}{of}")
    if run.next_attempt_at:
        left = max(0.0, run.next_attempt_at - time.time())
        grid.add_row("next", f"attempt {run.attempt + 1} of {run.attempts}, in {left:.0f} s at the earliest")
    grid.add_row("asks for", _asks(spec))
    if run.priority:
        grid.add_row("priority", str(run.priority))
    for label, text in _conditions(spec):
        grid.add_row(label, text)
    grid.add_row("submitted", ago(run.submitted_at))
    if run.started_at:
        grid.add_row("started", ago(run.started_at))
    if run.started_at and run.ended_at:
        grid.add_row("ended", f"{ago(run.ended_at)}, after {duration(run.ended_at - run.started_at)}")
    grid.add_row("folder", folder)
    console().print(grid)


def _asks(spec: RunSpec) -> str:
    """What a run needs of a host."""
    asked = [f"{spec.resources.cpus:g} CPU{'' if spec.resources.cpus == 1 else 's'}", f"{spec.resources.memory_mb} MB"]
    if spec.resources.gpus:
        asked.append(f"{spec.resources.gpus:g} GPU")
    return ", ".join([*asked, *(f"a host {tag}" for tag in _tags(spec))])


def _tags(spec: RunSpec) -> list[str]:
    return [f"without {tag[1:]}" if tag.startswith("!") else f"with {tag}" for tag in spec.requires]


def _conditions(spec: RunSpec) -> list[tuple[str, str]]:
    """Further fields of the spec that differ from their defaults."""
    limits = [
        *([f"{spec.limits.memory_mb} MB"] if spec.limits.memory_mb else []),
        *([duration(spec.limits.wall_s)] if spec.limits.wall_s else []),
    ]
    retries = f"up to {spec.retries.max}, on {', '.join(map(str, spec.retries.on))}"
    return [
        *([("after", ", ".join(spec.after))] if spec.after else []),
        *([("limits", ", ".join(limits))] if limits else []),
        *([("retries", retries)] if spec.retries.max else []),
        *([("again for", spec.replaces)] if spec.replaces else []),
    ]


def _attempts(attempts: list[dict[str, Any]]) -> Table:
    rows = table("attempt", "host", "outcome", "placed", "started", "ended", "memory", "how", right=("memory",))
    rows.columns[-1].no_wrap = False
    for each in attempts:
        ended = each.get("exit") or {}
        times = (clock(each.get(name)) for name in ("placed_at", "started_at", "ended_at"))
        memory = size(ended["max_rss_mb"]) if ended.get("max_rss_mb") else ""
        outcome = str(each.get("outcome") or each.get("phase") or "")
        rows.add_row(
            str(each.get("attempt", "")),
            str(each.get("host") or ""),
            state_text(outcome),
            *times,
            memory,
            str(ended.get("reason") or ""),
        )
    return rows


def _decisions(detail: RunDetail) -> Table:
    rows = table("at", "what", "why")
    rows.show_header = False
    rows.columns[2].no_wrap = False
    for each in detail.decisions:
        rows.add_row(clock(each.at), each.event, each.reason)
    return rows


def _results(summary: RunSummary, folder: Path, own: dict[str, Any]) -> Table:
    rows = table("", "")
    rows.show_header = False
    rows.columns[0].style = "bright_black"
    if summary.task:
        rows.add_row("task", summary.task)
    done = fraction(summary)
    rows.add_row("steps", f"{summary.step:,}" + (f" of {summary.total_steps:,}" if summary.total_steps else ""))
    rows.add_row(
        "episodes", f"{summary.episodes:,}" + (f" of {summary.total_episodes:,}" if summary.total_episodes else "")
    )
    if done is not None:
        rows.add_row("progress", f"{done:.0%}")
    if summary.return_mean is not None:
        spread = f" ± {number(summary.return_std)}" if summary.return_std is not None else ""
        rows.add_row(
            "return", f"{number(summary.return_mean)}{spread}  (last 100 episodes; last {number(summary.return_last)})"
        )
    for name, agent in sorted(summary.agents.items()):
        returns = f"{number(agent.return_mean)}  ({agent.episodes:,} episodes; last {number(agent.return_last)})"
        rows.add_row(f"return of {plain(name)}", returns)
    for name, value in sorted(summary.scalars.items()):
        rows.add_row(name, number(value))
    if summary.checkpoint:
        rows.add_row("checkpoint", str(folder / summary.checkpoint))
    for name, value in own.items():
        if value is not None and not isinstance(value, (dict, list)):
            is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
            rows.add_row(f"summary: {name}", number(value) if is_number else plain(str(value)))
    if summary.outcome:
        rows.add_row("journal ends with", summary.outcome)
    return rows


def _streams(streams: list[StreamCounters]) -> Table:
    counts = ("stored", "received", "repaired", "missing", "malformed")
    rows = table("attempt", "stream", *counts, "", right=counts)
    for each in streams:
        rows.add_row(
            str(each.attempt),
            each.kind,
            *(f"{getattr(each, name):,}" for name in counts),
            "complete" if each.final and not each.missing else "open",
        )
    return rows
