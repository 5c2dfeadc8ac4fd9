"""The texts of prompts, and examples: files of the package, which a user may copy, change and name in the config."""

import hashlib
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from string import Template

from llm_worker.problems import RefusedError

__all__ = ["EXAMPLES", "TEMPLATES", "Templates"]

TEMPLATES = {
    "system.txt": {"environment", "rules", "agent", "team", "answer"},
    "team.txt": {"agent", "agents", "role", "roles", "coordination"},
    "turn.txt": {"step", "observation", "mates", "actions"},
    "answer-schema.txt": set(),
    "answer-schema-thoughts.txt": set(),
    "answer-text.txt": set(),
    "answer-text-thoughts.txt": set(),
    "answer-tools.txt": set(),
    "again.txt": {"error", "actions"},
    "replaced.txt": set(),
}
"""Each template, and the $names that it may use."""
EXAMPLES = ("examples-babyai.json", "examples-tictactoe.json")
"""Files of the same folder that are not filled in."""
_FILES = (*TEMPLATES, *EXAMPLES)


class Templates:
    """The templates of one operator."""

    def __init__(self, folder: str | None) -> None:
        """Read them; those of `folder` replace the package's. RefusedError names a file that does not fit."""
        own = resources.files("llm_worker") / "templates"
        self._texts = {name: (own / name).read_text(encoding="utf-8") for name in _FILES}
        if folder is not None:
            self._texts |= _read_folder(Path(folder))
        for name in TEMPLATES:
            _check(name, self._texts[name], folder)

    def text(self, name: str) -> str:
        """Return a file as it is."""
        return self._texts[name]

    def fill(self, name: str, values: Mapping[str, str] | None = None) -> str:
        """Fill a template in."""
        return Template(self._texts[name]).substitute(values or {}).strip()

    @property
    def digest(self) -> str:
        """Identify the texts."""
        return hashlib.sha256("\0".join(self._texts[name] for name in _FILES).encode()).hexdigest()


def _read_folder(folder: Path) -> dict[str, str]:
    try:
        files = sorted(path for path in folder.iterdir() if not path.name.startswith("."))
        unknown = [path.name for path in files if path.name not in _FILES]
        if unknown:
            raise RefusedError(f"templates: {folder} has {unknown[0]!r}; the templates are {', '.join(_FILES)}")
        return {path.name: path.read_text(encoding="utf-8") for path in files}
    except (OSError, UnicodeDecodeError) as error:
        raise RefusedError(f"templates: {folder} cannot be read: {error}") from error


def _check(name: str, text: str, folder: str | None) -> None:
    template = Template(text)
    if not template.is_valid():
        raise RefusedError(f"templates: {name} in {folder}: a $ stands alone; write $$ for the sign itself")
    unknown = set(template.get_identifiers()) - TEMPLATES[name]
    if unknown:
        may = ", ".join(f"${each}" for each in sorted(TEMPLATES[name])) or "no $names"
        raise RefusedError(f"templates: {name} in {folder} uses ${min(unknown)}; it may use {may}")
