"""What commands print: tables, JSON, and how ids, times, sizes and states look."""

from __future__ import annotations

import functools
import math
import os
import re
import sys
import time
from typing import TYPE_CHECKING, Any

import orjson

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from mosaic_bus.messages import Gpu

__all__ = [
    "STATE_STYLES",
    "ago",
    "clock",
    "console",
    "duration",
    "fit_name",
    "gpu_list",
    "number",
    "own_tags",
    "plain",
    "print_json",
    "say",
    "short",
    "size",
    "state_text",
    "styled",
    "table",
]

# A pipe has no width: wide enough that nothing is cut.
_PIPE_COLUMNS = 250

STATE_STYLES = {
    "queued": "yellow",
    "preparing": "cyan",
    "starting": "cyan",
    "running": "bold cyan",
    "stopping": "yellow",
    "succeeded": "green",
    "failed": "bold red",
    "cancelled": "bright_black",
    "lost": "red",
}


@functools.cache
def console() -> Console:
    """The terminal, or whatever stdout is."""
    from rich.console import Console  # noqa: PLC0415 - start-up time

    columns = os.environ.get("COLUMNS", "")
    width = None if sys.stdout.isatty() else (columns.isdecimal() and int(columns)) or _PIPE_COLUMNS
    # Markup off: square brackets in a run's name or in a reason are meant as they are.
    return Console(width=width, highlight=False, emoji=False, markup=False)


def say(*parts: str | tuple[str, str] | Text, end: str = "\n") -> None:
    """Print text to a person; a part may be a pair of text and style. A terminal wraps long lines by itself."""
    console().print(styled(*parts), end=end, soft_wrap=True)


def styled(*parts: str | tuple[str, str] | Text) -> Text:
    """Join parts, each plain, a pair of text and style, or a text already styled."""
    from rich.text import Text  # noqa: PLC0415 - start-up time

    return Text.assemble(*((plain(each), "") if isinstance(each, str) else each for each in parts))


_CONTROL = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|.)|[\x00-\x08\x0b-\x1f\x7f]")


def plain(text: str) -> str:
    """Take out what would move the cursor or colour the rest: text from runs must not steer the terminal."""
    return _CONTROL.sub("", text)


def print_json(document: Any) -> None:
    """Print one JSON document, indented for a person at a terminal."""
    options = orjson.OPT_INDENT_2 if sys.stdout.isatty() else 0
    sys.stdout.write(orjson.dumps(document, option=options | orjson.OPT_NON_STR_KEYS).decode() + "\n")


def table(*columns: str, right: tuple[str, ...] = ()) -> Table:
    """Make a table without lines, headers in dim capitals, the columns named in `right` aligned right."""
    from rich.table import Table  # noqa: PLC0415 - start-up time

    made = Table(box=None, pad_edge=False, header_style="bright_black", padding=(0, 2, 0, 0))
    for column in columns:
        made.add_column(column.upper(), justify="right" if column in right else "left", no_wrap=True)
    return made


def state_text(state: str) -> Text:
    """A run's state in its colour."""
    from rich.text import Text  # noqa: PLC0415 - start-up time

    return Text(str(state), style=STATE_STYLES.get(str(state), ""))


def fit_name(name: str, width: int) -> str:
    """Cut a name in its middle, so that names which differ at their end stay apart."""
    text = plain(name).replace("\n", " ")
    if len(text) <= width:
        return text
    head = (width - 1) // 2
    return f"{text[:head]}…{text[len(text) - (width - 1 - head) :]}"


def short(run: str) -> str:
    """The last six characters of a run's id."""
    return run[-6:]


def duration(seconds: float) -> str:
    """Write `00:02:11`, or `3 d 04:00:00`."""
    total = int(max(0, seconds))
    days, rest = divmod(total, 86_400)
    text = f"{rest // 3600:02}:{rest // 60 % 60:02}:{rest % 60:02}"
    return f"{days} d {text}" if days else text


_UNITS = ((86_400, "d"), (3_600, "h"), (60, "min"))


def ago(moment: float | None, now: float | None = None) -> str:
    """Write `3 min ago`, `just now`, or nothing if it never was."""
    if moment is None:
        return ""
    seconds = (time.time() if now is None else now) - moment
    if seconds < 1:
        return "just now"
    for length, unit in _UNITS:
        if seconds >= length:
            return f"{seconds / length:.0f} {unit} ago"
    return f"{seconds:.0f} s ago"


def clock(moment: float | None) -> str:
    """Write the local time of day."""
    return time.strftime("%H:%M:%S", time.localtime(moment)) if moment else ""


def size(megabytes: float) -> str:
    """Write `512 MB` or `6.1 GB`."""
    return f"{megabytes / 1024:.1f} GB" if megabytes >= 1000 else f"{megabytes:.0f} MB"  # noqa: PLR2004 - plain in its place


def gpu_list(gpus: Iterable[Gpu]) -> str:
    """Write `0, 1: NVIDIA A100 (40.0 GB)`, or only ids if no more is known."""
    kinds: dict[str, list[str]] = {}
    for each in gpus:
        memory = f"({size(each.memory_mb)})" if each.memory_mb else ""
        kinds.setdefault(f"{each.name} {memory}".strip(), []).append(each.id)
    return "; ".join(", ".join(ids) + (f": {kind}" if kind else "") for kind, ids in kinds.items())


def own_tags(tags: Iterable[str]) -> str:
    """Write the tags of a host that somebody gave it; each has its name and, with GPUs, `gpu` as well."""
    return ", ".join(tag for tag in tags if tag != "gpu" and not tag.startswith("host:"))


def number(value: float | None) -> str:
    """Write a number as people do: `12,410`, `463.2`, `0.00214`, `1.2e-05`."""
    if value is None:
        return ""
    magnitude = abs(value)
    if not math.isfinite(value):
        return str(value)
    if magnitude >= 1000 or value == int(value):  # noqa: PLR2004 - plain in its place
        return f"{value:,.0f}"
    if 0 < magnitude < 0.001:  # noqa: PLR2004 - plain in its place
        return f"{value:.1e}"
    if magnitude < 0.1:  # noqa: PLR2004 - plain in its place
        return f"{value:.3g}"
    return f"{value:.1f}" if magnitude >= 10 else f"{value:.3f}".rstrip("0")  # noqa: PLR2004 - plain in its place
