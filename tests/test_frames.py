"""Pictures through shared memory, between real processes: whole or not at all, whoever is killed."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest
from stack import wait_until

from mosaic_bus.errors import LayoutError, StaleFrameError
from mosaic_bus.frames import Frame, FrameReader
from mosaic_bus.messages import FrameHandle
from mosaic_worker.errors import FrameError
from mosaic_worker.frames import FrameWriter

# A picture whose first four bytes are the checksum of the rest: whoever gets a torn one can tell.
CHECKSUM_BYTES = 4


def marked(number: int, shape: tuple[int, ...]) -> np.ndarray:
    picture = np.full(shape, number % 251, np.uint8)
    flat = picture.reshape(-1)
    flat[CHECKSUM_BYTES:12] = np.frombuffer(np.uint64(number).tobytes(), np.uint8)
    flat[:CHECKSUM_BYTES] = np.frombuffer(
        zlib.crc32(flat[CHECKSUM_BYTES:]).to_bytes(CHECKSUM_BYTES, "little"), np.uint8
    )
    return picture


def is_whole(frame: Frame) -> bool:
    flat = frame.picture.reshape(-1)
    number = int(np.frombuffer(flat[CHECKSUM_BYTES:12].tobytes(), np.uint64)[0])
    return number == frame.number and zlib.crc32(flat[CHECKSUM_BYTES:]) == int.from_bytes(
        flat[:CHECKSUM_BYTES], "little"
    )


WRITE = """
import sys
sys.path[:0] = {path!r}
from test_frames import marked
from mosaic_worker.frames import FrameWriter
writer = FrameWriter({folder!r})
number = 0
while number != {count}:
    writer.write(marked(number, {shape!r}), step=number)
    number += 1
writer.close()
"""
READ = """
import sys
sys.path[:0] = {path!r}
from test_frames import is_whole
from mosaic_bus.frames import FrameReader
reader = FrameReader({file!r})
seen = 0
while seen < {count}:
    frame = reader.latest()
    if frame is not None:
        assert is_whole(frame), frame.number
        seen += 1
print(seen)
"""


@pytest.fixture
def folder():
    place = Path(f"/dev/shm/mosaic-test-{os.getpid()}")
    place.mkdir(mode=0o700)
    yield place
    shutil.rmtree(place)


@pytest.fixture
def processes():
    started: list[subprocess.Popen[str]] = []
    yield started
    for each in started:
        if each.poll() is None:
            each.kill()
        each.communicate()


def start(started: list, code: str) -> subprocess.Popen[str]:
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    started.append(process)
    return process


def paths() -> list[str]:
    here = Path(__file__).parent
    return [str(here), str(here / "support")]


def write_code(folder: Path, count: int = -1, shape: tuple[int, ...] = (120, 160, 3)) -> str:
    return WRITE.format(path=paths(), folder=str(folder), count=count, shape=shape)


def handle(frame: Frame, file: Path) -> FrameHandle:
    return FrameHandle(
        host="h",
        run="r",
        attempt=1,
        stream="main",
        file=str(file),
        epoch=frame.epoch,
        slot=0,
        number=frame.number,
        shape=frame.picture.shape,
        wall=frame.wall,
    )


def test_what_is_written_is_read_with_its_figures(folder):
    writer = FrameWriter(folder, wall=lambda: 5.0, clock=lambda: 7.0)
    picture = np.arange(60, dtype=np.uint8).reshape(4, 5, 3)
    assert writer.write(picture, step=9, episode=2, last_reward=1.5, rolling_return=20.25, step_rate_hz=100.0) == 0
    with FrameReader(writer.path) as reader:
        frame = reader.latest()
        assert (frame.picture == picture).all()
        figures = (frame.number, frame.epoch, frame.step, frame.episode, frame.wall, frame.monotonic)
        assert figures == (0, 1, 9, 2, 5.0, 7.0)
        assert (frame.last_reward, frame.rolling_return, frame.step_rate_hz) == (1.5, 20.25, 100.0)
        assert reader.writer_is_alive
        writer.close()
        assert reader.is_closed
        assert (reader.latest().picture == picture).all(), "the last picture stays"


@pytest.mark.parametrize("shape", [(84, 84), (84, 84, 1), (3, 5, 4), (480, 640, 3)])
def test_every_kind_of_picture(folder, shape):
    writer = FrameWriter(folder)
    picture = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    writer.write(picture)
    with FrameReader(writer.path) as reader:
        assert (reader.latest().picture == picture.reshape(reader.latest().picture.shape)).all()


@pytest.mark.parametrize(
    "bad",
    [np.zeros((4, 4), np.float32), np.zeros((4, 4, 2), np.uint8), np.zeros(4, np.uint8), np.zeros((0, 4), np.uint8)],
)
def test_what_is_no_picture_is_refused_and_the_stream_goes_on(folder, bad):
    writer = FrameWriter(folder)
    with pytest.raises(FrameError, match="picture"):
        writer.write(bad)
    writer.write(np.ones((4, 4, 3), np.uint8))
    with FrameReader(writer.path) as reader:
        assert reader.latest().number == 0


def test_larger_pictures_get_a_new_file_which_readers_find_by_themselves(folder):
    writer = FrameWriter(folder)
    writer.write(marked(0, (20, 20, 3)))
    with FrameReader(writer.path) as reader:
        old = reader.latest()
        writer.write(marked(1, (10, 10, 3)))
        assert reader.latest().picture.shape == (10, 10, 3)
        writer.write(marked(2, (200, 200, 3)))
        newest = reader.latest()
        assert (newest.epoch, newest.number, newest.picture.shape) == (2, 2, (200, 200, 3))
        assert is_whole(newest)
        with pytest.raises(StaleFrameError, match="epoch 2, not 1"):
            reader.read(handle(old, writer.path))
    assert [path.name for path in folder.iterdir()] == ["main.ring"]


def test_a_handle_whose_picture_was_overwritten_says_so(folder):
    writer = FrameWriter(folder, slots=3)
    writer.write(marked(0, (8, 8, 3)))
    with FrameReader(writer.path) as reader:
        first = handle(reader.latest(), writer.path)
        assert reader.read(first).number == 0
        for number in range(1, 4):
            writer.write(marked(number, (8, 8, 3)))
        with pytest.raises(StaleFrameError, match=r"picture 0 of .* is gone: the newest is 3"):
            reader.read(first)


def test_files_that_are_no_ring_or_of_another_layout_are_refused(folder):
    writer = FrameWriter(folder)
    writer.write(marked(0, (8, 8, 3)))
    whole = bytearray(writer.path.read_bytes())
    other = folder / "other.ring"
    for change, reason in (
        (lambda data: data[:100], "header alone"),
        (lambda data: b"x" * len(data), "does not begin"),
        (lambda data: data[:8] + (2).to_bytes(8, "little") + data[16:], "layout 2, and 1 is known"),
        (lambda data: data[:24] + (63).to_bytes(8, "little") + data[32:], "does not fit"),
    ):
        other.write_bytes(change(bytes(whole)))
        with pytest.raises(LayoutError, match=reason):
            FrameReader(other)
    with pytest.raises(FileNotFoundError):
        FrameReader(folder / "nothing.ring")


def test_no_room_is_a_clear_error_before_anything_is_made(folder, monkeypatch):
    full = os.statvfs_result((4096, 4096, 10, 5, 5, 0, 0, 0, 0, 255))
    monkeypatch.setattr(os, "statvfs", lambda _: full)
    writer = FrameWriter(folder)
    with pytest.raises(FrameError, match=r"has 20480 bytes free, and \d+ are needed"):
        writer.write(marked(0, (8, 8, 3)))
    assert list(folder.iterdir()) == []


@pytest.mark.slow
def test_dozens_of_readers_that_crash_and_dawdle_never_disturb_the_writer_nor_get_a_torn_picture(folder, processes):
    writer = start(processes, write_code(folder))
    file = folder / "main.ring"
    wait_until("there are pictures", file.exists)
    readers = [
        start(processes, READ.format(path=paths(), file=str(file), count=10**9 if each % 3 == 0 else 200))
        for each in range(12)
    ]
    for crashing in readers[::3]:
        wait_until(
            "it reads", lambda process=crashing: Path(f"/proc/{process.pid}/maps").read_text().count("main.ring")
        )
        crashing.kill()
    for each in set(readers) - set(readers[::3]):
        assert each.wait(100) == 0
    assert writer.poll() is None
    assert file.exists()
    with FrameReader(file) as reader:
        before = reader.published
        wait_until("the writer goes on", lambda: reader.published > before)


@pytest.mark.slow
def test_writer_killed_in_the_middle_of_writing_leaves_whole_pictures_only(folder, processes):
    for _ in range(15):
        writer = start(processes, write_code(folder, shape=(480, 640, 3)))
        file = folder / "main.ring"
        wait_until("there are pictures", file.exists)
        with FrameReader(file) as reader:
            wait_until("some have been written", lambda reader=reader: reader.published > 20)
            writer.send_signal(signal.SIGKILL)
            writer.wait()
            assert not reader.writer_is_alive
            assert not reader.is_closed
            assert is_whole(reader.latest())
        file.unlink()


@pytest.mark.slow
@pytest.mark.parametrize("minor", [11, 12, 13])
def test_readers_of_every_python_that_is_here_read_what_another_wrote(folder, processes, minor):
    found = [shutil.which(f"python3.{minor}"), *Path(sys.base_prefix).parent.glob(f"3.{minor}.*/bin/python3")]
    runs = [
        each
        for each in found
        if each and subprocess.run([each, "-c", ""], capture_output=True, check=False).returncode == 0
    ]
    if not runs:
        pytest.skip(f"Python 3.{minor} is not on this machine")
    FrameWriter(folder).write(marked(0, (8, 8, 3)))
    # It may have no numpy: the layout is simple enough to be read without.
    code = (
        "import mmap, struct, sys; f = open(sys.argv[1], 'rb'); m = mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ); "
        "h = struct.unpack_from('=12Q', m); lock, *shape = struct.unpack_from('=4Q', m, 256); "
        "print(m[:8].decode(), h[1], h[11], lock, shape, sum(m[384:384 + 192]))"
    )
    said = subprocess.run(
        [runs[0], "-c", code, str(folder / "main.ring")], capture_output=True, text=True, check=True
    ).stdout.strip()
    assert said == f"MOSAICFL 1 1 2 [8, 8, 3] {int(marked(0, (8, 8, 3)).sum(dtype=int))}"
