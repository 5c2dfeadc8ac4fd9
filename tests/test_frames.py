"""Frames in shared memory, between real processes: whole or not at all, whichever process is killed."""

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
from mosaic_worker.frames.ring import FrameWriter, require_unused

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
    flat = frame.pixels.reshape(-1)
    number = int(np.frombuffer(flat[CHECKSUM_BYTES:12].tobytes(), np.uint64)[0])
    return number == frame.number and zlib.crc32(flat[CHECKSUM_BYTES:]) == int.from_bytes(
        flat[:CHECKSUM_BYTES], "little"
    )


WRITE = """
import sys
sys.path[:0] = {path!r}
from test_frames import marked
from mosaic_worker.frames.ring import FrameWriter
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
with FrameReader({file!r}) as reader:
    print("reads", flush=True)
    seen = 0
    while seen < {count}:
        frame = reader.latest()
        if frame is not None:
            assert is_whole(frame), frame.number
            seen += 1
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
        shape=frame.pixels.shape,
        wall=frame.wall,
    )


def test_what_is_written_is_read_with_its_figures(folder):
    writer = FrameWriter(folder, wall=lambda: 5.0, clock=lambda: 7.0)
    picture = np.arange(60, dtype=np.uint8).reshape(4, 5, 3)
    assert writer.write(picture, step=9, episode=2, last_reward=1.5, rolling_return=20.25, step_rate_hz=100.0) == 0
    with FrameReader(writer.path) as reader:
        frame = reader.latest()
        assert (frame.pixels == picture).all()
        figures = (frame.number, frame.epoch, frame.step, frame.episode, frame.wall, frame.monotonic)
        assert figures == (0, 1, 9, 2, 5.0, 7.0)
        assert (frame.last_reward, frame.rolling_return, frame.step_rate_hz) == (1.5, 20.25, 100.0)
        assert reader.writer_is_alive
        writer.close()
        assert reader.is_closed
        assert (reader.latest().pixels == picture).all(), "the last picture stays"


@pytest.mark.parametrize("shape", [(84, 84), (84, 84, 1), (3, 5, 4), (480, 640, 3)])
def test_every_kind_of_picture(folder, shape):
    writer = FrameWriter(folder)
    picture = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    writer.write(picture)
    with FrameReader(writer.path) as reader:
        assert (reader.latest().pixels == picture.reshape(reader.latest().pixels.shape)).all()


@pytest.mark.parametrize(
    "bad",
    [np.zeros((4, 4), np.float32), np.zeros((4, 4, 2), np.uint8), np.zeros(4, np.uint8), np.zeros((0, 4), np.uint8)],
)
def test_what_is_no_frame_is_refused_and_the_stream_goes_on(folder, bad):
    writer = FrameWriter(folder)
    with pytest.raises(FrameError, match="frame"):
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
        assert reader.latest().pixels.shape == (10, 10, 3)
        writer.write(marked(2, (200, 200, 3)))
        newest = reader.latest()
        assert (newest.epoch, newest.number, newest.pixels.shape) == (2, 2, (200, 200, 3))
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
        with pytest.raises(StaleFrameError, match=r"frame 0 of .* is gone: the newest is 3"):
            reader.read(first)


@pytest.mark.parametrize("word", [8, 9])
def test_a_process_that_has_got_the_pid_of_the_writer_is_not_taken_for_it(folder, word):
    """Its start time or boot id differs."""
    writer = FrameWriter(folder)
    writer.write(marked(0, (8, 8, 3)))
    words = np.fromfile(writer.path, np.uint64)
    words[word] += 1
    words.tofile(folder / "other.ring")
    with FrameReader(writer.path) as ours, FrameReader(folder / "other.ring") as other:
        assert (ours.writer_is_alive, other.writer_is_alive) == (True, False)


def test_a_stream_is_unused_if_its_writers_pid_belongs_to_another_process(folder):
    process = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
    try:
        writer = FrameWriter(folder)
        writer.write(marked(0, (8, 8, 3)))
        words = np.fromfile(writer.path, np.uint64)
        words[7] = process.pid
        words.tofile(writer.path)
        require_unused(writer.path)
        words[8] = int(Path(f"/proc/{process.pid}/stat").read_bytes().rsplit(b")", 1)[1].split()[19])
        words.tofile(writer.path)
        with pytest.raises(FrameError):
            require_unused(writer.path)
    finally:
        process.communicate()


def test_files_that_are_no_ring_or_of_another_layout_are_refused(folder):
    writer = FrameWriter(folder)
    writer.write(marked(0, (8, 8, 3)))
    whole = bytearray(writer.path.read_bytes())
    other = folder / "other.ring"
    for change, reason in (
        (lambda data: data[:100], "header alone"),
        (lambda data: b"x" * len(data), "wrong magic number"),
        (lambda data: data[:8] + (2).to_bytes(8, "little") + data[16:], "layout 2, and 1 is known"),
        (lambda data: data[:24] + (63).to_bytes(8, "little") + data[32:], "does not fit"),
    ):
        other.write_bytes(change(bytes(whole)))
        with pytest.raises(LayoutError, match=reason):
            FrameReader(other)
    with pytest.raises(FileNotFoundError):
        FrameReader(folder / "nothing.ring")


@pytest.mark.slow
def test_dozens_of_readers_that_crash_and_dawdle_never_disturb_the_writer_nor_get_a_torn_picture(folder, processes):
    writer = start(processes, write_code(folder))
    file = folder / "main.ring"
    wait_until("there are pictures", file.exists)
    readers = [
        start(processes, READ.format(path=paths(), file=str(file), count=10**9 if each % 3 == 0 else 100))
        for each in range(15)
    ]
    crashing, dawdling, steady = readers[::3], readers[1::3], readers[2::3]
    for each in (*crashing, *dawdling):
        assert each.stdout.readline() == "reads\n"
    # Wherever they are, mostly in the middle of a frame.
    for each in dawdling:
        each.send_signal(signal.SIGSTOP)
    for each in crashing:
        each.kill()
    for each in steady:
        assert each.wait(100) == 0
    for each in dawdling:
        each.send_signal(signal.SIGCONT)
    for each in dawdling:
        assert each.wait(100) == 0
    assert writer.poll() is None
    assert file.exists()
    with FrameReader(file) as reader:
        before = reader.published
        wait_until("the writer goes on", lambda: reader.published > before)


def test_a_slot_in_which_the_writer_was_killed_is_never_returned(folder):
    """The writer kills itself when the pixels of frame 6 are written and its figures are not."""
    code = (
        "import os, sys; sys.path[:0] = sys.argv[2:]; from test_frames import marked; "
        "from mosaic_worker.frames.ring import FrameWriter; "
        "wall = lambda: os.kill(os.getpid(), 9) if writer.published == 6 else float(writer.published); "
        "writer = FrameWriter(sys.argv[1], wall=wall); "
        "[writer.write(marked(number, (8, 8, 3))) for number in range(9)]"
    )
    done = subprocess.run([sys.executable, "-c", code, str(folder), *paths()], check=False)
    assert done.returncode == -signal.SIGKILL
    with FrameReader(folder / "main.ring") as reader:
        assert not reader.writer_is_alive
        newest = reader.latest()
        assert (newest.number, is_whole(newest)) == (5, True)
        for number in (2, 6):  # The old frame of that slot, and the new one.
            lost = handle(newest, reader.path).model_copy(update={"number": number, "wall": float(number)})
            with pytest.raises(StaleFrameError):
                reader.read(lost)


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


FOLLOW = """
import sys
from mosaic_bus.errors import LayoutError
from mosaic_bus.frames import FrameReader
reader = FrameReader(sys.argv[1])
print("reads", flush=True)
try:
    while True:
        assert reader.latest().pixels.size
except LayoutError as error:
    print(error)
"""


@pytest.mark.parametrize("left", [0, 300, 500_000])
def test_a_ring_that_is_cut_under_a_reader_is_said_to_be_and_does_not_kill_it(folder, processes, left):
    FrameWriter(folder).write(marked(0, (480, 640, 3)))
    file = folder / "main.ring"
    reader = subprocess.Popen([sys.executable, "-c", FOLLOW, str(file)], stdout=subprocess.PIPE, text=True)
    processes.append(reader)
    assert reader.stdout.readline() == "reads\n"
    os.truncate(file, left)
    said = reader.communicate(timeout=30)[0]
    assert reader.returncode == 0, "a mapped page that is gone would have killed it with SIGBUS"
    assert f"it has been cut from 3687168 to {left} bytes" in said


@pytest.mark.parametrize("left", [0, 300])
def test_a_ring_that_is_cut_under_its_writer_is_begun_anew(folder, processes, left):
    code = (
        "import os, sys; import numpy as np; from mosaic_worker.frames.ring import FrameWriter; "
        "writer = FrameWriter(sys.argv[1]); writer.write(np.zeros((8, 8, 3), np.uint8)); "
        "os.truncate(writer.path, int(sys.argv[2])); writer.write(np.full((8, 8, 3), 5, np.uint8)); "
        "os.truncate(writer.path, int(sys.argv[2])); writer.close()"
    )
    done = subprocess.run([sys.executable, "-c", code, str(folder), str(left)], check=False)
    assert done.returncode == 0, "it would have been killed with SIGBUS"
    writer = FrameWriter(folder, "other")
    writer.write(marked(0, (8, 8, 3)))
    with FrameReader(writer.path) as reader:
        os.truncate(writer.path, left)
        writer.write(marked(1, (8, 8, 3)))
        with pytest.raises(LayoutError, match="cut"):
            reader.latest()
        reader.refresh()
        assert is_whole(reader.latest())
        assert (reader.latest().number, reader.epoch) == (1, 2)


@pytest.mark.parametrize("word", [0, 1, 3, 4, 5, 6, 7, 10])
def test_a_header_that_is_overwritten_under_a_reader_says_so(folder, word):
    writer = FrameWriter(folder)
    writer.write(marked(0, (8, 8, 3)))
    with FrameReader(writer.path) as reader:
        assert is_whole(reader.latest())
        with writer.path.open("r+b") as file:
            file.seek(8 * word)
            file.write(b"\xff" * 8)
        for look in (reader.latest, reader.facts, reader.refresh, lambda: reader.published):
            with pytest.raises(LayoutError, match="its header has been overwritten"):
                look()


def test_pictures_that_are_overwritten_by_others_are_never_returned(folder):
    """Noise at the start of a slot, not written by the writer, must not confuse the reader."""
    writer = FrameWriter(folder, slots=2)
    for number in range(2):
        writer.write(marked(number, (8, 8, 3)))
    noise = np.random.default_rng(0)
    with FrameReader(writer.path) as reader:
        for _ in range(300):
            with writer.path.open("r+b") as file:
                for slot in range(2):
                    file.seek(256 + slot * 320 + 8)  # The lock stays.
                    file.write(noise.bytes(120))
            assert reader.latest() is None


def test_a_handle_of_an_earlier_writer_is_not_taken_for_one_of_the_next(folder):
    first = FrameWriter(folder, wall=lambda: 1.0)
    first.write(marked(0, (8, 8, 3)))
    with FrameReader(first.path) as early, FrameReader(first.path) as late:
        old = handle(early.latest(), first.path)
        first.close()
        FrameWriter(folder, wall=lambda: 2.0).write(marked(0, (8, 8, 3)))
        with pytest.raises(StaleFrameError, match="another writer has written one of that number"):
            late.read(old)
        new = handle(late.latest(), first.path)
        assert (new.number, new.epoch) == (old.number, old.epoch)
        assert early.read(new).wall == 2.0, "who still has the old file open finds the new one"
