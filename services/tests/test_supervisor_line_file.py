"""Files are cut into the same lines with the same numbers, whenever and from wherever they are read."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mosaic_bus.messages import Position
from mosaic_services.supervisor.line_file import CHUNK_BYTES, MAX_LINE_BYTES, Cut, Limits, LineFile

if TYPE_CHECKING:
    from pathlib import Path

SMALL = Limits(chunk=8, max_line=20, log_head=64, log_tail=24, scan=16)
# Few different bytes, so that newlines, empty lines and long lines are all common.
FILE_BYTES = st.lists(
    st.one_of(
        st.binary(max_size=6),
        st.just(b"\n"),
        st.integers(1, 60).map(lambda length: b"x" * length),
        st.integers(1, 30).map(lambda length: b"y" * length + b"\n"),
    ),
    max_size=20,
)
LONG = MAX_LINE_BYTES + 1


def expected_lines(content: bytes, limits: Limits, *, is_log: bool) -> list[bytes]:
    """A plain implementation of what the documentation promises for a file that has ended."""
    if is_log and len(content) > limits.log_head + limits.log_tail:
        head = content[: content.rfind(b"\n", 0, limits.log_head) + 1]
        tail_at = len(content) - limits.log_tail
        tail_at += content[tail_at:].find(b"\n") + 1
        middle = f"[{tail_at - len(head)} bytes of log are left out here: it exceeded its limit]".encode()
        parts = [*_split(head, limits, is_log=True), middle, *_split(content[tail_at:], limits, is_log=True)]
    else:
        parts = _split(content, limits, is_log=is_log)
    return parts


def _split(content: bytes, limits: Limits, *, is_log: bool) -> list[bytes]:
    lines = content.split(b"\n")
    ends_whole = lines[-1] == b""
    if ends_whole:
        lines.pop()
    result = []
    for number, line in enumerate(lines):
        if len(line) <= limits.max_line:
            result.append(line)
            continue
        length = len(line) + (number < len(lines) - 1 or ends_whole)
        head = (line + b"\n")[: min(length, 1024)].decode("utf-8", "replace")
        stand_in = {"event": "malformed", "reason": "line too long", "bytes": length, "head": head}
        text = f"[a line of {length} bytes is left out here]" if is_log else json.dumps(stand_in)
        result.append(text.encode())
    return result


def read_all(file: LineFile, position: Position, *, ended: bool) -> list[Cut]:
    """Return all cuts from a position, repeating calls that stopped in the search for the end of a long line."""
    cuts = []
    patience = 50
    while patience:
        cut = file.cut(position, ended=ended)
        if cut is None:
            patience -= 1
            continue
        assert cut.start == position
        assert cut.count == cut.lines.count(b"\n") > 0
        assert cut.lines.endswith(b"\n")
        assert cut.end.number == position.number + cut.count
        assert cut.end.offset > position.offset
        cuts.append(cut)
        position = cut.end
    return cuts


def lines_of(cuts: list[Cut]) -> list[bytes]:
    return b"".join(cut.lines for cut in cuts).split(b"\n")[:-1]


@pytest.fixture(scope="module")
def scratch(tmp_path_factory):
    return tmp_path_factory.mktemp("lines") / "file"


@pytest.mark.parametrize("is_log", [False, True])
@settings(max_examples=120, deadline=None)
@given(pieces=FILE_BYTES, data=st.data())
def test_any_bytes_in_any_pieces_cut_at_any_time_give_the_same_lines(scratch: Path, is_log: bool, pieces, data):
    scratch.write_bytes(b"")
    file = LineFile(str(scratch), is_log=is_log, limits=SMALL)
    position, cuts = Position(), []
    for piece in pieces:
        with scratch.open("ab") as out:
            out.write(piece)
        for _ in range(data.draw(st.integers(0, 3), label="cuts")):
            cut = file.cut(position, ended=False)
            if cut is not None:
                cuts.append(cut)
                position = cut.end
        if data.draw(st.booleans(), label="restart"):
            file.close()
            file = LineFile(str(scratch), is_log=is_log, limits=SMALL)
    written = b"".join(pieces)
    if cuts:
        # While the file grows, every cut ends with a newline of the file.
        assert written[position.offset - 1 : position.offset] == b"\n"
    cuts += read_all(file, position, ended=True)
    end = cuts[-1].end if cuts else Position()
    assert end.offset == len(written)
    assert lines_of(cuts) == expected_lines(written, SMALL, is_log=is_log)

    # Between any two positions that were reached, the same lines come again.
    again = LineFile(str(scratch), is_log=is_log, limits=SMALL)
    start = data.draw(st.integers(0, len(cuts)), label="resend from cut")
    position = cuts[start].start if start < len(cuts) else end
    assert lines_of(read_all(again, position, ended=True)) == lines_of(cuts[start:])
    if start < len(cuts):
        stop = cuts[data.draw(st.integers(start, len(cuts) - 1), label="until cut")].end
        resent = []
        for _ in range(200):
            cut = again.cut(position, ended=True, until=stop.offset)
            if cut is not None:
                resent.append(cut)
                position = cut.end
        assert position == stop
        last = next(number for number, cut in enumerate(cuts) if cut.end == stop)
        assert lines_of(resent) == lines_of(cuts[start : last + 1])
    file.close()
    again.close()


def test_without_stand_ins_the_lines_are_the_file(scratch: Path):
    content = b"".join(b'{"n": %d}\n' % number for number in range(50_000))
    scratch.write_bytes(content)
    cuts = read_all(LineFile(str(scratch)), Position(), ended=False)
    assert b"".join(cut.lines for cut in cuts) == content
    assert all(len(cut.lines) <= CHUNK_BYTES for cut in cuts)


def test_file_that_does_not_exist_has_no_lines(tmp_path: Path):
    file = LineFile(str(tmp_path / "none"))
    assert file.cut(Position(), ended=True) is None
    assert file.size() == 0
    file.close()


def test_last_line_without_newline_counts_only_at_the_end(scratch: Path):
    scratch.write_bytes(b"one\ntwo")
    file = LineFile(str(scratch))
    first = file.cut(Position(), ended=False)
    assert first is not None
    assert first.lines == b"one\n"
    assert file.cut(first.end, ended=False) is None
    last = file.cut(first.end, ended=True)
    assert last is not None
    assert (last.lines, last.end) == (b"two\n", Position(number=2, offset=7))


@pytest.mark.parametrize(("length", "stands_in"), [(MAX_LINE_BYTES, False), (MAX_LINE_BYTES + 1, True)])
@pytest.mark.parametrize("newline", [b"\n", b""])
def test_only_a_line_over_the_limit_is_replaced(scratch: Path, length: int, stands_in: bool, newline: bytes):
    scratch.write_bytes(b"z" * length + newline)
    cut = LineFile(str(scratch)).cut(Position(), ended=True)
    assert cut is not None
    assert cut.end.offset == length + len(newline)
    if stands_in:
        assert json.loads(cut.lines)["bytes"] == length + len(newline)
    else:
        assert cut.lines == b"z" * length + b"\n"


def test_line_of_twenty_megabytes_still_being_written_is_not_cut_early_and_not_searched_twice(scratch: Path):
    scratch.write_bytes(b"first\n")
    file = LineFile(str(scratch))
    first = file.cut(Position(), ended=False)
    assert first is not None
    total, read = 20 * MAX_LINE_BYTES, 0
    original = os.pread

    def counting(fd: int, length: int, offset: int) -> bytes:
        nonlocal read
        piece = original(fd, length, offset)
        read += len(piece)
        return piece

    with pytest.MonkeyPatch.context() as patch, scratch.open("ab", buffering=0) as out:
        patch.setattr("os.pread", counting)
        for _ in range(80):
            out.write(b"q" * (total // 80))
            assert file.cut(first.end, ended=False) is None
            assert file.cut(first.end, ended=False) is None
        out.write(b"\nlast\n")
        cut = file.cut(first.end, ended=False)
    assert cut is not None
    assert json.loads(cut.lines) == {
        "event": "malformed",
        "reason": "line too long",
        "bytes": total + 1,
        "head": "q" * 1024,
    }
    # Its beginning is read again each time the file has grown; the rest is read once.
    assert read < 80 * (LONG + CHUNK_BYTES) + 2 * total
    after = file.cut(cut.end, ended=False)
    assert after is not None
    assert after.lines == b"last\n"


def test_search_for_the_end_of_an_endless_line_is_bounded_per_call(scratch: Path):
    scratch.write_bytes(b"q" * 400 + b"\n")
    limits = Limits(chunk=8, max_line=20, scan=100)
    file = LineFile(str(scratch), limits=limits)
    assert [file.cut(Position(), ended=True) for _ in range(3)] == [None, None, None]
    cut = file.cut(Position(), ended=True)
    assert cut is not None
    assert cut.end.offset == 401


def test_resend_does_not_pass_a_line_longer_than_a_chunk_that_was_live_alone(scratch: Path):
    scratch.write_bytes(b"m" * 15 + b"\n")
    file = LineFile(str(scratch), limits=SMALL)
    live = file.cut(Position(), ended=False)
    assert live is not None
    with scratch.open("ab") as out:
        out.write(b"a\nb\n")
    again = file.cut(Position(), ended=False, until=live.end.offset)
    assert again == live


def test_long_line_early_in_a_log_that_then_floods_does_not_hide_what_follows(scratch: Path):
    limits = Limits(chunk=8, max_line=20, log_head=100, log_tail=30)
    scratch.write_bytes(b"p" * 40 + b"\nshort\n" + b"f\n" * 100)
    file = LineFile(str(scratch), is_log=True, limits=limits)
    running = lines_of(read_all(file, Position(), ended=False))
    assert running[:2] == [b"[a line of 41 bytes is left out here]", b"short"]
    assert sum(line == b"f" for line in running) == (100 - 47) // 2


def test_log_over_its_limit_is_held_while_running_then_stands_in_and_shows_its_tail(scratch: Path):
    limits = Limits(chunk=8, max_line=20, log_head=30, log_tail=10)
    scratch.write_bytes(b"".join(b"line %d\n" % number for number in range(10)))
    file = LineFile(str(scratch), is_log=True, limits=limits)
    head = read_all(file, Position(), ended=False)
    assert lines_of(head) == [b"line 0", b"line 1", b"line 2", b"line 3"]
    tail = read_all(file, head[-1].end, ended=True)
    assert lines_of(tail) == [b"[35 bytes of log are left out here: it exceeded its limit]", b"line 9"]
    assert tail[-1].end.offset == 70


def test_journal_has_no_such_limit(scratch: Path):
    limits = Limits(chunk=8, max_line=20, log_head=30, log_tail=10)
    scratch.write_bytes(b"line\n" * 100)
    assert lines_of(read_all(LineFile(str(scratch), limits=limits), Position(), ended=False)) == [b"line"] * 100
