"""Draws frames in a terminal with half blocks: two pixels per character, foreground and background."""

from __future__ import annotations

import shutil
import sys
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

from mosaic_services.cli.display.figures import of_frame
from mosaic_services.cli.display.keys import Keys
from mosaic_services.cli.display.output import ago, plain
from mosaic_services.cli.wait.silence import require_answers

if TYPE_CHECKING:
    from mosaic_bus.frames import Frame
    from mosaic_bus.frames.feed import FrameFeed

__all__ = ["ALTERNATE", "BACK", "draw", "watch_frames"]

ALTERNATE, BACK = "\033[?1049h\033[?25l", "\033[?25h\033[?1049l"
_HOME, _CLEAR_LINE, _CLEAR_BELOW, _PLAIN = "\033[H", "\033[K", "\033[J", "\033[0m"
_KEY_S = 0.02
_FRAME_S = 0.05
_LINES_BELOW = 2


def draw(frame: Frame, columns: int, rows: int) -> list[str]:
    """Render a frame in at most `rows` lines of `columns` characters."""
    image = Image.fromarray(frame.pixels).convert("RGB")
    scale = min(columns / image.width, 2 * rows / image.height)
    width, height = max(1, int(image.width * scale)), max(2, int(image.height * scale) // 2 * 2)
    pixels = np.asarray(image.resize((width, height), Image.Resampling.BILINEAR)).astype(int)
    lines = []
    for upper, lower in zip(pixels[::2].tolist(), pixels[1::2].tolist(), strict=True):
        cells = []
        before = None
        for top, bottom in zip(upper, lower, strict=True):
            if (top, bottom) != before:
                before = (top, bottom)
                cells.append("\033[38;2;{};{};{};48;2;{};{};{}m".format(*top, *bottom))
            cells.append("▀")
        lines.append("".join(cells) + _PLAIN)
    return lines


def watch_frames(feed: FrameFeed) -> None:
    """Draw frames as they arrive, until q is pressed or the run has ended."""
    frame: Frame | None = None
    with Keys() as keys:
        sys.stdout.write(ALTERNATE)
        try:
            while not feed.is_over:
                require_answers(feed.silent)
                frame = feed.next(_FRAME_S) or frame
                _show(feed, frame)
                if keys.next(_KEY_S) in {"q", "escape"}:
                    return
        except KeyboardInterrupt:
            return
        finally:
            sys.stdout.write(BACK)
            sys.stdout.flush()
    print(f"{plain(feed.state.name)} has ended ({feed.state.state})")


def _show(feed: FrameFeed, frame: Frame | None) -> None:
    columns, rows = shutil.get_terminal_size()
    lines = draw(frame, columns, max(1, rows - _LINES_BELOW)) if frame is not None else []
    below = [_below(feed, frame)[:columns], f"{plain(feed.state.name)}   [q] quit"[:columns]]
    text = f"{_CLEAR_LINE}\r\n".join([*lines, *below])
    sys.stdout.write(f"{_HOME}{text}{_CLEAR_BELOW}")
    sys.stdout.flush()


def _below(feed: FrameFeed, frame: Frame | None) -> str:
    if frame is None:
        return "waiting for a frame…"
    # First, because a narrow terminal shows only the start of the line.
    died = "its writer died: no more frames will come  " if any(each.writer == "dead" for each in feed.streams) else ""
    age = "" if (said := ago(frame.wall)) == "just now" else f"{said}  "
    return f"{died}{age}{of_frame(frame)}"
