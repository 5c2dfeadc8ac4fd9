"""The map in docs/architecture.md names what exists."""

from __future__ import annotations

import re

import pytest
from stack import ROOT

PAGE = (ROOT / "docs" / "architecture.md").read_text()
PLACES = (
    ROOT,
    ROOT / "bus",
    ROOT / "services" / "mosaic_services",
    ROOT / "workers" / "kit",
    ROOT / "workers" / "cleanrl_worker",
    ROOT / "workers" / "arena_worker",
    ROOT / "workers" / "llm_worker",
)


def rows(title: str) -> list[tuple[str, str]]:
    """The rows of the table whose head begins with a title."""
    (body,) = re.findall(rf"^\| {re.escape(title)}.*\n\|[-|]+\n((?:\|.*\n)+)", PAGE, re.MULTILINE)
    cells = (line.strip("|").split("|", 1) for line in body.splitlines())
    return [(left.strip(), right.strip(" |")) for left, right in cells]


@pytest.mark.parametrize("row", rows("folder"), ids=lambda row: row[0].strip("`"))
def test_folders_exist_with_the_modules_that_are_named(row):
    folder, text = ROOT / row[0].strip("`"), row[1]
    assert folder.is_dir()
    package = folder / folder.name if (folder / folder.name).is_dir() else folder
    for name in re.findall(r"`([a-z_]+/?)`", text):
        if name not in {"mosaic", "python"}:
            found = [package / name.rstrip("/"), package / f"{name}.py"]
            assert any(each.exists() for each in found), name


@pytest.mark.parametrize("row", rows("to change…"), ids=lambda row: row[0])
def test_files_to_open_exist(row):
    for path in re.findall(r"`([a-z_./]+(?:\.py|\.md|/))`", row[1]):
        if path != "__main__.py":
            assert any((place / path).exists() for place in PLACES), path
