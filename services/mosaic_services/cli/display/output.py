"""Formats what commands print: tables, JSON, ids, times, sizes, states."""

from __future__ import annotations

import functools
import math
import os
import re
import sys
import time
from typing import TYPE_CHECKING, Any

import orjson

from mosaic_bus.messages import FailureCategory
from mosaic_bus.wording import duration

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from mosaic_bus.messages import Gpu, RunState

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
    "why",
]

# Width for a pipe, which has none: nothing is cut.
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
    """A console for stdout, whether it is a terminal or not."""
    from rich.console import Console  # noqa: PLC0415 - start-up time

    columns = os.environ.get("COLUMNS", "")
    width = None if sys.stdout.isatty() else (columns.isdecimal() and int(columns)) or _PIPE_COLUMNS
    # Without markup: square brackets in a name or a reason are literal.
    return Console(width=width, highlight=False, emoji=False, markup=False)


def say(*parts: str | tuple[str, str] | Text, end: str = "\n") -> None:
    """Print text; a part may be a pair of text and style. Long lines are left to the terminal to wrap."""
    console().print(styled(*parts), end=end, soft_wrap=True)


def styled(*parts: str | tuple[str, str] | Text) -> Text:
    """Join parts, each a string, a pair of text and style, or a styled text."""
    from rich.text import Text  # noqa: PLC0415 - start-up time

    return Text.assemble(*((plain(each), "") if isinstance(each, str) else each for each in parts))


_CONTROL = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|.)|[\x00-\x08\x0b-\x1f\x7f]")


def plain(text: str) -> str:
    """Remove control characters and escape sequences: text from runs must not control the terminal."""
    return _CONTROL.sub("", text)


def print_json(document: Any) -> None:
    """Print one JSON document, indented if stdout is a terminal."""
    options = orjson.OPT_INDENT_2 if sys.stdout.isatty() else 0
    sys.stdout.write(orjson.dumps(document, option=options | orjson.OPT_NON_STR_KEYS).decode() + "\n")


def table(*columns: str, right: tuple[str, ...] = ()) -> Table:
    """Make a table without borders; the columns named in `right` are right-aligned."""
    from rich.table import Table  # noqa: PLC0415 - start-up time

    made = Table(box=None, pad_edge=False, header_style="bright_black", padding=(0, 2, 0, 0))
    for column in columns:
        made.add_column(column.upper(), justify="right" if column in right else "left", no_wrap=True)
    return made


def state_text(state: str) -> Text:
    """Format a state in its colour."""
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


_UNITS = ((86_400, "d"), (3_600, "h"), (60, "min"))


def ago(moment: float | None, now: float | None = None) -> str:
    """Format a past moment: `3 min ago`, `just now`; empty for None."""
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
    """Format the local time of day."""
    return time.strftime("%H:%M:%S", time.localtime(moment)) if moment else ""


def size(megabytes: float) -> str:
    """Format a size: `512 MB`, `6.1 GB`."""
    return f"{megabytes / 1024:.1f} GB" if megabytes >= 1000 else f"{megabytes:.0f} MB"  # noqa: PLR2004 - plain in its place


def gpu_list(gpus: Iterable[Gpu]) -> str:
    """Format GPUs: `0, 1: NVIDIA A100 (40.0 GB)`, or ids alone."""
    kinds: dict[str, list[str]] = {}
    for each in gpus:
        memory = f"({size(each.memory_mb)})" if each.memory_mb else ""
        kinds.setdefault(f"{each.name} {memory}".strip(), []).append(each.id)
    return "; ".join(", ".join(ids) + (f": {kind}" if kind else "") for kind, ids in kinds.items())


def own_tags(tags: Iterable[str]) -> str:
    """Format the tags of a host that were given by its owner, not set automatically."""
    return ", ".join(tag for tag in tags if tag != "gpu" and not tag.startswith("host:"))


def number(value: float | None) -> str:
    """Format a number: `12,410`, `463.2`, `0.00214`, `1.2e-05`."""
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


def why(run: RunState) -> str:
    """Say in one line why a run is in its state: the reason, and of a failure of its own the last line of its log."""
    if not run.state.final:
        return plain(run.detail or run.reason).replace("\n", " ")
    last = run.detail.strip().rpartition("\n")[2]
    own = run.category in {FailureCategory.APPLICATION, FailureCategory.CONFIGURATION}
    return plain(f"{run.reason}: {last}" if own and last and last not in run.reason else run.reason)
