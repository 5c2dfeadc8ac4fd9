"""Counters that workers share: shown under the file's name; what is no counter is left out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mosaic_services.supervisor.worker_counters import worker_counters

if TYPE_CHECKING:
    from pathlib import Path


def test_counters_of_workers_are_read_and_junk_is_not(tmp_path: Path):
    assert worker_counters(tmp_path) == {}
    folder = tmp_path / "counters"
    folder.mkdir()
    (folder / "llm-a.json").write_text('{"calls": 3, "window": 1.5, "state": {"x": 1}, "yes": true, "name": "n"}')
    (folder / "half.json").write_text('{"calls": ')
    (folder / "list.json").write_text("[1, 2]")
    (folder / "large.json").write_text('{"a": 1, "b": "' + "x" * 5000 + '"}')
    (folder / "binary.json").write_bytes(b"\xff\xfe")
    assert worker_counters(tmp_path) == {"llm-a.calls": 3, "llm-a.window": 1.5}
