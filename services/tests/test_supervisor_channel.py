"""The channel writes lines into a real FIFO whole or not at all, and never blocks."""

from __future__ import annotations

import fcntl
import os
import random
from typing import TYPE_CHECKING

import pytest
from pydantic import ValidationError

from mosaic_bus.commands import Tell
from mosaic_bus.commands.supervisor import MAX_TELL_BYTES
from mosaic_services.attempt_folder.layout import STDIN_BYTES
from mosaic_services.supervisor.channel import ChannelClosedError, ChannelFullError, tell

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def fifo(tmp_path):
    """A FIFO as a run host makes it, and the descriptor that reads it."""
    path = tmp_path / "stdin.fifo"
    os.mkfifo(path)
    end = os.open(path, os.O_RDWR | os.O_NONBLOCK)
    yield path, end
    os.close(end)


def fill(path: Path, lines: list[bytes]) -> list[bytes]:
    """Tell lines until one is refused; return those that were taken."""
    taken = []
    for line in lines:
        try:
            tell(path, line)
        except ChannelFullError:
            break
        taken.append(line)
    return taken


@pytest.mark.parametrize("size", [STDIN_BYTES, 65536, 4096])
def test_every_line_of_a_full_pipe_arrives_whole(fifo, size):
    path, end = fifo
    fcntl.fcntl(end, 1031, size)
    chance = random.Random(1)
    written = read = b""
    refused = 0
    for round_ in range(300):
        lengths = [chance.randint(1, chance.choice([20, 4095, 5000, MAX_TELL_BYTES])) for _ in range(200)]
        lines = [bytes([97 + round_ % 26]) * length + b"\n" for length in (1, *lengths)]
        taken = fill(path, lines)
        refused += len(taken) < len(lines)
        written += b"".join(taken)
        read += os.read(end, chance.randint(1, 2 * size))
    assert refused > 200
    while len(read) < len(written):
        read += os.read(end, 2**20)
    assert read == written


def test_longest_line_fits_an_empty_pipe_and_92_kib_may_wait(fifo):
    path, end = fifo
    fcntl.fcntl(end, 1031, STDIN_BYTES)
    longest = b"x" * MAX_TELL_BYTES + b"\n"
    for _ in range(92):
        tell(path, b"y" * 1023 + b"\n")
    with pytest.raises(ChannelFullError) as full:
        tell(path, longest)
    assert full.value.waiting == 92 * 1024
    assert os.read(end, 1024) == b"y" * 1023 + b"\n"
    tell(path, longest)


def test_what_no_run_host_holds_open_is_closed(tmp_path, fifo):
    path, _ = fifo
    nobody, file, link = tmp_path / "nobody", tmp_path / "file", tmp_path / "link"
    os.mkfifo(nobody)
    file.touch()
    link.symlink_to(path)
    for each in (tmp_path / "missing", nobody, file, link):
        with pytest.raises(ChannelClosedError):
            tell(each, b"line\n")
    assert not file.read_bytes()


@pytest.mark.parametrize("line", ["", "two\nlines", "x" * (MAX_TELL_BYTES + 1), "ö" * (MAX_TELL_BYTES // 2 + 1)])
def test_what_is_no_line_is_refused_before_it_is_sent(line):
    with pytest.raises(ValidationError):
        Tell(run="01RUN", attempt=1, line=line)
