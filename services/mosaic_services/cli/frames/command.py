"""`mosaic frames`: list a run's frames, draw them in the terminal, or save them."""

from __future__ import annotations

import math
import os
import sys
import time
from pathlib import Path  # noqa: TC003 - typer reads it when it runs
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from mosaic_bus import topics
from mosaic_bus.commands import FrameStream, FrameStreams, Show
from mosaic_bus.errors import CommandRefusedError
from mosaic_bus.frames.feed import FrameFeed, is_here
from mosaic_bus.messages import RunStateName
from mosaic_services.cli.display.figures import of_frame
from mosaic_services.cli.display.output import ago, clock, console, number, print_json, say, short, table
from mosaic_services.cli.errors import FAILED, CliError, InputError
from mosaic_services.cli.frames import film
from mosaic_services.cli.frames.terminal import watch_frames
from mosaic_services.cli.lookup import find_run
from mosaic_services.cli.options import current
from mosaic_services.cli.wait.interruption import interrupted
from mosaic_services.cli.wait.silence import SilenceLimit

if TYPE_CHECKING:
    from mosaic_bus import Bus
    from mosaic_bus.client import PlainFollower
    from mosaic_bus.commands import RunDetail
    from mosaic_bus.frames import Frame
    from mosaic_bus.messages import FrameHandle, RunState

__all__ = ["command"]

_FIRST_FRAME_S = 10.0
_POLL_S = 0.25
_NOT_YET = (RunStateName.QUEUED, RunStateName.PREPARING, RunStateName.STARTING)
_MODE = "fastlane_video_mode"
_HOW_TO = "a worker publishes frames only if its config asks for them: see docs/frames.md"


def command(
    run: Annotated[str, typer.Argument(metavar="RUN", help="Any unique part of the run's id, or its name.")],
    save: Annotated[
        Path | None,
        typer.Option(
            "--save",
            metavar="FILE",
            help="Save a frame (.png) or a film (.gif, .mp4).",
        ),
    ] = None,
    seconds: Annotated[float, typer.Option("--seconds", min=0.1, max=3600, help="Length of the film.")] = 5.0,
    watch: Annotated[bool, typer.Option("--watch", help="Draw the frames in the terminal; q quits.")] = False,
    stream: Annotated[
        str | None, typer.Option("--stream", metavar="NAME", help="The stream, if the run has several.")
    ] = None,
    remote: Annotated[
        bool, typer.Option("--remote", help="Receive frames over the bus, even on the same machine.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the frame streams of a run, draw one in the terminal, or save a frame or a film."""
    if watch and (save or as_json):
        raise InputError("--watch draws in the terminal", "leave out --save and --json, or leave out --watch")
    if watch and not (sys.stdout.isatty() and os.environ.get("TERM") != "dumb"):
        raise InputError("--watch needs a terminal", "save a frame instead: mosaic frames RUN --save out.png")
    if save is not None:
        film.require(save)
    with current.connect() as bus:
        detail = bus.request("scheduler", Show(run=find_run(bus, run).run))
        state, streams = detail.run, _streams(bus, detail.run)
        if not streams and (watch or save):
            with bus.follow(runs=[state.run], hosts=False, summaries=False) as view:
                state, streams = _await_streams(bus, view, detail)
        chosen = [each for each in streams if stream in (None, each.newest.stream)]
        if streams and not chosen:
            names = ", ".join(each.newest.stream for each in streams)
            raise InputError(f"run {short(state.run)} has no stream {stream!r}", f"it has: {names}")
        if save is None and not watch:
            _print(state, chosen, remote=remote, as_json=as_json)
            return
        _require_frames(state, chosen)
        if len(chosen) > 1:
            names = ", ".join(each.newest.stream for each in chosen)
            raise InputError(f"run {short(state.run)} has several streams: {names}", "choose one with --stream")
        (one,) = chosen
        max_dim = min(4096, max(16, *one.newest.shape[:2])) if save else 640
        with FrameFeed(bus, state.run, one.newest.stream, remote=remote, max_dim=max_dim, quality=90) as feed:
            if watch:
                watch_frames(feed)
            elif save is not None:
                _save(feed, save, seconds, one, as_json=as_json)


def _streams(bus: Bus, state: RunState) -> list[FrameStream]:
    if not state.host:
        return []
    try:
        return bus.request(topics.supervisor(state.host), FrameStreams(run=state.run)).streams
    except CommandRefusedError as error:
        if error.code == "unknown_run":
            return []
        raise


def _await_streams(bus: Bus, view: PlainFollower, detail: RunDetail) -> tuple[RunState, list[FrameStream]]:
    """Wait for a new run to start, and then for its first frame.

    If its config asks for frames, wait until it ends: its imports may take long. Otherwise wait briefly, because
    other workers may call that field something else.
    """
    state = detail.run
    is_told = _asks_for_frames(detail.spec.config)
    if state.state in _NOT_YET:
        _say_waiting(f"for run {short(state.run)} ({state.state}) to start")
    streams: list[FrameStream] = []
    outage = SilenceLimit()
    deadline = time.monotonic() + _FIRST_FRAME_S
    while not streams and not state.state.final:
        if state.state in _NOT_YET:
            deadline = time.monotonic() + _FIRST_FRAME_S
        elif time.monotonic() >= deadline:
            if not is_told:
                break
            _say_waiting(f"for the first frame of run {short(state.run)} (if none arrives, mosaic logs may say why)")
            deadline = math.inf
        view.wait(_POLL_S)
        state = view.runs.get(state.run, state)
        with outage:
            streams = _streams(bus, state)
    return state, streams


def _asks_for_frames(config: dict[str, Any]) -> bool:
    """Whether the field is set, at the top level or in a group such as CleanRL's `extras`."""
    groups = [config, *(value for value in config.values() if isinstance(value, dict))]
    return any(group.get(_MODE, "off") != "off" for group in groups)


def _say_waiting(what: str) -> None:
    print(f"waiting {what}; Ctrl-C stops waiting", file=sys.stderr)


# ── the list ─────────────────────────────────────────────────────────────────────────────────────────


def _print(state: RunState, streams: list[FrameStream], *, remote: bool, as_json: bool) -> None:
    now = time.time()
    if as_json:
        rows = [
            {
                **each.newest.model_dump(mode="json"),
                "published": each.published,
                "fps": each.fps,
                "writer": each.writer,
                "age_s": now - each.newest.wall,
                "local": not remote and is_here(each.newest),
            }
            for each in streams
        ]
        print_json({"run": state.run, "state": state.state, "streams": rows})
        return
    if not streams:
        say(f"run {short(state.run)} ({state.state}) has no frames: {_HOW_TO}")
        return
    lines = table("stream", "size", "frames", "fps", "figures", "newest", right=("frames", "fps"))
    for each in streams:
        lines.add_row(
            each.newest.stream,
            _size(each.newest),
            f"{each.published:,}",
            number(round(each.fps, 1)),
            of_frame(each.newest),
            ago(each.newest.wall, now),
        )
    lines.columns[4].no_wrap = False  # the figures are cut first in a narrow terminal
    console().print(lines)
    # Below the table: a further column would not fit a narrow terminal.
    for each in streams:
        if remark := _about_writer(each):
            say(f"{each.newest.stream}: {remark}")
    if any(each.writer == "ended" for each in streams):
        last = max(each.newest.wall for each in streams)
        say(f"run {short(state.run)} ({state.state}): its last frame was at {clock(last)} and is gone")


def _size(handle: FrameHandle) -> str:
    height, width = handle.shape[:2]
    return f"{width}×{height}"


def _about_writer(stream: FrameStream) -> str:
    return {
        "live": "",
        "closed": "complete: the worker closed it",
        "dead": "its writer died: no more frames will come",
        "ended": "",
    }[stream.writer]


# ── files ────────────────────────────────────────────────────────────────────────────────────────────


def _require_frames(state: RunState, streams: list[FrameStream]) -> None:
    if not streams:
        raise CliError(f"run {short(state.run)} ({state.state}) has no frames", _HOW_TO, code=FAILED)
    if all(each.writer == "ended" for each in streams):
        last = max(each.newest.wall for each in streams)
        raise CliError(
            f"run {short(state.run)} ({state.state}) no longer has frames; the last one was {ago(last)}",
            "frames exist only while a run is live",
            code=FAILED,
        )


def _save(feed: FrameFeed, path: Path, seconds: float, stream: FrameStream, *, as_json: bool) -> None:
    first = feed.next(_FIRST_FRAME_S)
    if first is None:
        raise CliError(
            f"no frame of {stream.newest.stream} arrived within {_FIRST_FRAME_S:g} s",
            "see: mosaic frames RUN, and mosaic status",
            code=FAILED,
        )
    try:
        count, why = _film(feed, path, first, seconds, quiet=as_json)
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror or error}") from error
    height, width = first.pixels.shape[:2]
    if as_json:
        print_json(
            {"file": str(path.absolute()), "frames": count, "width": width, "height": height, "writer": stream.writer}
        )
        return
    what = "frame" if count == 1 else "frames"
    age = f", newest {ago(first.wall)}" if count == 1 else ""
    remark = why or _about_writer(stream)
    note = f" ({remark})" if remark else ""
    say(f"saved {count} {what} of {width}×{height} to ", (str(path), "bold"), f"{age}{note}")


def _film(feed: FrameFeed, path: Path, first: Frame, seconds: float, *, quiet: bool) -> tuple[int, str]:
    """Write the file; return the number of frames, and why a film is shorter than asked for."""
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    hidden = quiet or path.suffix.lower() == ".png" or not console().is_terminal
    with interrupted() as stopped, Progress(*columns, console=console(), transient=True, disable=hidden) as progress:
        task = progress.add_task("filming; Ctrl-C ends it early", total=film.length(path, seconds))

        def go_on(count: int) -> bool:
            progress.update(task, completed=count)
            return not stopped.is_set()

        count = film.write(path, first, feed, seconds, go_on)
    if stopped.is_set():
        return count, "ended early by Ctrl-C"
    return count, f"the run has ended: {feed.state.state}" if feed.is_over else ""
