"""The last checkpoint of a journal: with broken lines, of huge size, with files that are gone."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mosaic_bus.messages import Checkpoint
from mosaic_services.supervisor.checkpoints import last_checkpoint

if TYPE_CHECKING:
    from pathlib import Path


def saved(path: str, **fields: object) -> bytes:
    return json.dumps({"event": "checkpoint_saved", "path": path, **fields, "ts": 1.0}).encode() + b"\n"


@pytest.fixture
def folder(tmp_path) -> Path:
    """An attempt's folder with checkpoints 1 to 3, the last of which is itself a folder."""
    for name in ("1.pt", "2.pt"):
        (tmp_path / name).touch()
    (tmp_path / "3").mkdir()
    return tmp_path


def find(folder: Path, journal: bytes, **sizes: int) -> Checkpoint | None:
    (folder / "journal.jsonl").write_bytes(journal)
    return last_checkpoint(folder / "journal.jsonl", folder, **sizes)


def test_the_last_that_exists_counts_whether_file_or_folder(folder):
    lines = saved("1.pt", step=10) + saved("2.pt", step=20)
    assert find(folder, lines) == Checkpoint(path=str(folder / "2.pt"), step=20)
    assert find(folder, lines + saved("3")) == Checkpoint(path=str(folder / "3"), step=None)
    absolute = saved(str(folder / "1.pt"), step=30)
    assert find(folder, lines + absolute) == Checkpoint(path=str(folder / "1.pt"), step=30)
    assert find(folder, lines + saved("removed.pt", step=40)).step == 20


@pytest.mark.parametrize("journal", [b"", b"\n\n", b'{"event":"step","step":1}\n', saved("removed.pt")])
def test_journal_without_a_checkpoint_has_none(folder, journal):
    assert find(folder, journal) is None
    (folder / "journal.jsonl").unlink()
    assert last_checkpoint(folder / "journal.jsonl", folder) is None


@pytest.mark.parametrize(
    "line",
    [
        b"checkpoint_saved",
        b'{"event":"checkpoint_saved","path":"2.pt"',
        b'{"event":"checkpoint_saved","path":"2.p',
        b'["checkpoint_saved", {"path": "2.pt"}]',
        b'{"event":"log","message":"checkpoint_saved","path":"2.pt"}',
        b'{"event":"checkpoint_saved"}',
        b'{"event":"checkpoint_saved","path":null}',
        b'{"event":"checkpoint_saved","path":7}',
        b'{"event":"checkpoint_saved","path":""}',
        b'{"event":"checkpoint_saved","path":"2.pt\\u0000"}',
        b'{"event":"checkpoint_saved","path":"' + b"x" * 5000 + b'"}',
        b"\xff\xfe checkpoint_saved",
        b"[" * 100_000 + b"checkpoint_saved",
        b"\x00checkpoint_saved\x00",
    ],
)
@pytest.mark.parametrize("end", [b"\n", b""])
def test_line_that_is_no_checkpoint_is_passed_over(folder, line, end):
    assert find(folder, saved("1.pt", step=10) + line + end).step == 10


@pytest.mark.parametrize("step", [True, "x", math.nan, None, [7], -1, 2**63, 10**30])
def test_step_that_cannot_be_one_is_left_out(folder, step):
    assert find(folder, saved("1.pt", step=step)) == Checkpoint(path=str(folder / "1.pt"), step=None)
    assert find(folder, saved("1.pt", step=10) + saved("removed.pt", step=step)).step == 10


def test_last_line_of_a_worker_that_was_killed_counts_only_if_it_is_whole(folder):
    assert find(folder, saved("1.pt", step=10) + saved("2.pt", step=20)[:-1]).step == 20
    assert find(folder, saved("1.pt", step=10) + saved("2.pt", step=20)[:-2]).step == 10


noise = st.sampled_from([b"{}\n", b"\n", b"checkpoint_saved\n", b'{"event":"step"}\n', b"x" * 70 + b"\n", b"\xff\n"])
marks = st.sampled_from([saved("1.pt", step=1), saved("2.pt", step=2), saved("gone.pt", step=3)])


@settings(max_examples=300, deadline=None)
@given(lines=st.lists(st.one_of(noise, marks), max_size=12), block=st.integers(1, 200), torn=st.integers(0, 40))
def test_size_of_the_blocks_makes_no_difference(tmp_path_factory, lines, block, torn):
    folder = tmp_path_factory.getbasetemp() / "blocks"
    folder.mkdir(exist_ok=True)
    for name in ("1.pt", "2.pt"):
        (folder / name).touch()
    journal = b"".join(lines)[: -torn or None]
    expected = None
    for line in journal.split(b"\n"):
        try:
            event = json.loads(line)
        except ValueError:
            continue
        if event.get("event") == "checkpoint_saved" and (folder / event["path"]).exists():
            expected = event["step"]
    found = find(folder, journal, block_bytes=block)
    assert (found.step if found else None) == expected


def test_huge_journal_is_read_from_its_end_and_only_so_far(folder):
    huge = 3 * 2**30  # One endless line; mostly a hole, which takes no space on disk.
    (folder / "journal.jsonl").write_bytes(saved("1.pt", step=10))
    with (folder / "journal.jsonl").open("r+b") as file:
        file.truncate(huge)
    assert last_checkpoint(folder / "journal.jsonl", folder) is None, "that would have taken minutes"
    with (folder / "journal.jsonl").open("ab") as file:
        file.write(b"\n" + saved("2.pt", step=20) + b'{"event":"step","step":21}\n' * 100_000)
    assert last_checkpoint(folder / "journal.jsonl", folder).step == 20


def test_line_at_the_edge_of_what_is_searched_is_not_taken_for_a_whole_one(folder):
    journal = b"x" * 50 + saved("1.pt", step=10)
    assert find(folder, journal, searched_bytes=len(journal) - 50) is None
    assert find(folder, b"\n" + saved("1.pt", step=10), searched_bytes=len(saved("1.pt", step=10)) + 1).step == 10


def test_line_longer_than_any_event_costs_no_more_than_its_length(folder):
    journal = saved("1.pt", step=10) + b'{"blob":"' + b"x" * (8 * 2**20) + b'"}\n' + b"{}\n"
    assert find(folder, journal, block_bytes=64 * 1024).step == 10
