"""Shell scripts of this host: what the comments at their top say about them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from mosaic_bus.commands import ScriptsResult, ShellScript
from mosaic_bus.errors import CommandRefusedError
from mosaic_bus.refusals import RefusalCode, RefusalDetails, brief

if TYPE_CHECKING:
    from mosaic_services.home import StackHome

__all__ = ["list_scripts"]

# As `mosaic_worker.hooks.script` reads them, which runs the script and has the last word.
_FIELD = re.compile(r"^\s*#\s*@(description|phases|total_timesteps)\b[ \t:]*(.*?)\s*$", re.MULTILINE)
_MOST_SCRIPTS = 200
_MOST_CHARACTERS = 64 * 1024


def list_scripts(home: StackHome, folder: str) -> ScriptsResult:
    """List the scripts of a folder, or of `scripts` in the home if none is given."""
    root = Path(folder) if folder else home.path / "scripts"
    if folder and not (root.is_absolute() and root.is_dir()):
        said = f"{folder!r} is not a folder on this host; give the absolute path of one that holds *.sh files"
        raise CommandRefusedError(RefusalCode.UNKNOWN_FILE, said, RefusalDetails(field="folder", value=brief(folder)))
    try:
        found = sorted(path for path in root.glob("*.sh") if path.is_file())[:_MOST_SCRIPTS]
    except OSError as error:
        raise CommandRefusedError(RefusalCode.UNKNOWN_FILE, f"cannot read {root}: {error.strerror or error}") from error
    return ScriptsResult(folder=str(root), scripts=[_read(path) for path in found])


def _read(path: Path) -> ShellScript:
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            text = file.read(_MOST_CHARACTERS)
    except OSError as error:
        return ShellScript(path=str(path), description=f"cannot be read: {error.strerror or error}")
    said = dict(_FIELD.findall(text))
    steps = said.get("total_timesteps", "").replace("_", "")
    return ShellScript(
        path=str(path),
        description=said.get("description", ""),
        phases=[each for each in (part.strip() for part in said.get("phases", "").split(",")) if each],
        total_timesteps=int(steps) if steps.isascii() and steps.isdigit() else None,
    )
