"""Frames through a stack of real processes: announced, sent as pictures, and removed at the end."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from frame_runs import (
    SUPERVISOR,
    counter,
    end,
    folder,
    handles,
    is_whole,
    pixels,
    run_host,
    streams,
    submit,
    wait_for_frames,
)
from mosaic_cli import Cli
from PIL import Image
from stack import HOST, STRESS, wait_until

from mosaic_bus import Bus, topics
from mosaic_bus.commands import WatchFrames
from mosaic_bus.errors import CommandRefusedError, StaleFrameError
from mosaic_bus.frames import Frame, FrameReader
from mosaic_bus.messages import FrameHandle
from mosaic_services.environments import build, read_recipe

# ── handles ──────────────────────────────────────────────────────────────────────────────────────────


def test_handles_say_where_each_new_picture_is_and_what_belongs_to_it(shared_stack):
    run = submit(shared_stack, frame_rate=5)
    found = [handle for _, handle in handles(shared_stack, run, 4)]
    with FrameReader(found[-1].file) as reader:
        frame = reader.read(found[-1])
        assert is_whole(frame)
        with pytest.raises(StaleFrameError):
            wait_until("it is overwritten", lambda: reader.read(found[-1]) and None)
    newest = found[-1]
    assert (newest.host, newest.run, newest.attempt, newest.stream) == (HOST, run, 1, "main")
    assert (newest.shape, newest.step, newest.last_reward) == ((120, 160, 3), newest.number, 1.5)
    assert (newest.rolling_return, newest.step_rate_hz, newest.encoding) == (None, None, None)
    assert [each.number for each in found] == sorted({each.number for each in found}), "each is said once"
    assert folder(shared_stack, run).stat().st_mode & 0o777 == 0o700
    assert folder(shared_stack, run).parent.stat().st_mode & 0o777 == 0o700
    end(shared_stack, run)


@pytest.mark.slow
def test_a_fast_writer_is_announced_twenty_times_a_second_at_most(shared_stack):
    run = submit(shared_stack, frame_rate=500)
    found = handles(shared_stack, run, 20)
    (first, _), (last, _) = found[0], found[-1]
    assert (last - first) / (len(found) - 1) > 0.045
    assert found[-1][1].number - found[0][1].number > len(found), "pictures between are not announced"
    end(shared_stack, run)


@pytest.mark.slow
def test_several_streams_each_have_handles(shared_stack):
    run = submit(shared_stack, frame_streams=["left", "right"])
    assert {handle.stream for _, handle in handles(shared_stack, run, 10)} == {"left", "right"}
    end(shared_stack, run)


@pytest.mark.slow
def test_warm_start_has_its_own_folder(shared_stack):
    build(read_recipe(STRESS), "warm", lambda _step, _percent: None)
    before = counter(shared_stack, "warm_starts")

    def forked() -> str | None:
        run = submit(shared_stack, profile="warm")
        assert wait_for_frames(shared_stack, run).newest.file == str(folder(shared_stack, run) / "main.ring")
        end(shared_stack, run)
        return run if counter(shared_stack, "warm_starts") > before else None

    wait_until("a run was forked", forked)


# ── pictures for others ──────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
def test_nothing_is_encoded_unasked_and_one_picture_once_for_ten_readers(stack):
    run = submit(stack, frames=1)
    newest = wait_for_frames(stack, run).newest
    wait_until("it was announced", lambda: counter(stack, "frames_published") == 1)
    assert counter(stack, "pictures_encoded") == 0

    def read(_: int) -> Frame:
        with Bus(stack.home.address()) as bus:
            return next(iter(bus.frames(run, remote=True, timeout=20)))

    with ThreadPoolExecutor(10) as pool:
        seen = list(pool.map(read, range(10)))
    assert counter(stack, "pictures_encoded") == 1
    assert counter(stack, "picture_bytes") > 100
    with FrameReader(newest.file) as reader:
        local = reader.latest()
    for frame in seen:
        assert (frame.number, frame.step, frame.stream) == (local.number, local.step, "main")
        assert (frame.last_reward, np.isnan(frame.rolling_return)) == (1.5, True)
        error = np.abs(frame.pixels.astype(int) - local.pixels.astype(int))
        assert frame.pixels.shape == local.pixels.shape
        assert error.mean() < 2
    end(stack, run)


@pytest.mark.slow
def test_pictures_come_in_the_size_that_was_asked_for(shared_stack):
    run = submit(shared_stack, frame_shape=[300, 600, 3])
    wait_for_frames(shared_stack, run)
    answer = shared_stack.bus.request(SUPERVISOR, WatchFrames(run=run, max_dim=64, quality=30))
    assert answer.topic == topics.picture(run, 64, 30)
    message = next(shared_stack.bus.listen(answer.topic, timeout=20))
    handle = FrameHandle.model_validate(message.payload)
    assert (handle.encoding, handle.shape) == ("jpeg", (300, 600, 3))
    assert Image.open(io.BytesIO(message.buffers[0])).size == (64, 32)
    coarseness = []
    for quality in (1, 30, 95):
        topic = shared_stack.bus.request(SUPERVISOR, WatchFrames(run=run, max_dim=64, quality=quality)).topic
        picture = next(shared_stack.bus.listen(topic, timeout=20)).buffers[0]
        coarseness.append(sum(Image.open(io.BytesIO(picture)).quantization[0]))
    assert coarseness == sorted(coarseness, reverse=True), "quality is what was asked for, too"
    assert coarseness[0] > 10 * coarseness[2]
    end(shared_stack, run)
    with pytest.raises(CommandRefusedError, match="no run") as refused:
        shared_stack.bus.request(SUPERVISOR, WatchFrames(run=run))
    assert refused.value.code == "unknown_run"


READ = """
import sys
from mosaic_bus import Bus
with Bus() as bus:
    for frame in bus.frames(sys.argv[1], remote=sys.argv[2] == "remote"):
        print(frame.number, flush=True)
"""


@pytest.mark.slow
def test_reader_killed_disturbs_nobody_and_its_pictures_are_no_longer_encoded(stack):
    run = submit(stack, frame_rate=50)
    wait_for_frames(stack, run)
    environ = {**os.environ, "MOSAIC_HOME": str(stack.home.path)}
    readers = [
        subprocess.Popen([sys.executable, "-c", READ, run, how], env=environ, stdout=subprocess.PIPE, text=True)
        for how in ("local", "remote")
    ]
    for reader in readers:
        assert reader.stdout.readline()
        reader.send_signal(signal.SIGKILL)
        reader.wait()
        reader.stdout.close()
    assert (folder(stack, run) / "main.ring").exists()
    seen = [0.0, time.monotonic()]

    def quiet() -> bool:
        encoded = counter(stack, "pictures_encoded")
        if encoded != seen[0]:
            seen[:] = [encoded, time.monotonic()]
        return time.monotonic() - seen[1] > 1.5

    wait_until("nothing more is encoded", quiet)
    assert seen[0] > 0
    assert len(handles(stack, run, 5)) == 5, "handles go on"
    end(stack, run)


# ── deaths ───────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["worker", "run host"])
def test_worker_or_run_host_killed_leaves_no_pictures_and_a_word_when_the_last_was(shared_stack, victim):
    run = submit(shared_stack)
    wait_for_frames(shared_stack, run)
    host = run_host(shared_stack, run)
    (host if victim == "run host" else host.children()[0]).kill()
    assert shared_stack.wait_final(run).state == "failed"
    wait_until("its folder is gone", lambda: not folder(shared_stack, run).exists())
    (last,) = streams(shared_stack, run)
    assert last.writer == "ended"
    assert abs(time.time() - last.newest.wall) < 100
    said = Cli(shared_stack.home.path)("frames", run).stdout
    assert "its last frame was at" in said
    refused = Cli(shared_stack.home.path)("frames", run, "--save", "never.png", code=1).stderr
    assert "no longer has frames; the last one was" in refused


@pytest.mark.slow
def test_supervisor_killed_adopts_the_pictures_and_sweeps_what_is_nobodys(stack):
    run = submit(stack)
    before = wait_for_frames(stack, run).newest
    stack.kill("supervisor")
    stray = stack.home.frames / "01K5A0Q4T1M7Z8V9W2X3Y4B5C6.1"
    stray.mkdir()
    (stray / "main.ring").write_bytes(b"x" * 1000)
    stack.start("supervisor")
    wait_until("the stray is swept", lambda: not stray.exists())
    stack.wait_for("supervisor")
    after = handles(stack, run, 3)[-1][1]
    assert (after.file, after.epoch) == (before.file, before.epoch)
    assert after.number > before.number
    end(stack, run)
    assert not stack.home.frames.exists()


@pytest.mark.slow
def test_run_that_ends_while_the_supervisor_is_dead_leaves_no_pictures(stack):
    run = submit(stack, frames=60, end="complete")
    wait_for_frames(stack, run)
    stack.kill("supervisor")
    wait_until("the run ends by itself", (stack.home.runs / run / "1" / "exit.json").exists)
    assert not stack.home.frames.exists()
    stack.start("supervisor")
    assert stack.wait_final(run).state == "succeeded"


@pytest.mark.slow
def test_writer_dead_while_its_run_lives_says_so_and_is_not_repeated(shared_stack):
    run = submit(shared_stack, frames_by_child=True)
    wait_for_frames(shared_stack, run)
    (worker,) = run_host(shared_stack, run).children()
    (child,) = worker.children()
    child.kill()

    def known() -> bool:
        found = streams(shared_stack, run)[0]
        return found.writer == "dead" and found.newest.number == found.published - 1

    wait_until("it is known, and its last picture too", known)
    last = streams(shared_stack, run)[0].newest
    published = counter(shared_stack, "frames_published")
    cli = Cli(shared_stack.home.path)
    assert "its writer died: no more frames will come" in cli("frames", run).stdout
    for extra in ([], ["--remote"]):
        out = shared_stack.home.path / "last.png"
        saved = cli.json("frames", run, "--save", str(out), *extra)
        assert (saved["writer"], saved["frames"]) == ("dead", 1)
        assert pixels(out).shape == (120, 160, 3)
    assert streams(shared_stack, run)[0].newest == last
    assert counter(shared_stack, "frames_published") == published
    end(shared_stack, run)


@pytest.mark.slow
def test_files_that_are_no_rings_are_counted_once_and_hurt_nobody(stack):
    run = submit(stack)
    good = wait_for_frames(stack, run).newest
    place = folder(stack, run)
    whole = (place / "main.ring").read_bytes()
    (place / "empty.ring").write_bytes(b"")
    (place / "noise.ring").write_bytes(os.urandom(5000))
    (place / "future.ring").write_bytes(whole[:8] + (2).to_bytes(8, "little") + whole[16:])
    (place / "no name \udcff.ring").write_bytes(whole)
    os.mkfifo(place / "pipe.ring")
    (place / "folder.ring").mkdir()
    (place / "link.ring").symlink_to("/dev/zero")
    wait_until("four are counted", lambda: counter(stack, "bad_rings") == 4)
    (place / "cut.ring").write_bytes(whole)
    wait_until("it is followed", lambda: len(streams(stack, run)) == 2)
    os.truncate(place / "cut.ring", 300)
    wait_until("a fifth is counted", lambda: counter(stack, "bad_rings") == 5)
    (place / "gone.ring").write_bytes(whole)
    wait_until("it is followed", lambda: len(streams(stack, run)) == 2)
    (place / "gone.ring").unlink()
    wait_until("a sixth is counted", lambda: counter(stack, "bad_rings") == 6)
    (place / "overwritten.ring").write_bytes(whole)
    wait_until("it is followed", lambda: len(streams(stack, run)) == 2)
    with (place / "overwritten.ring").open("r+b") as file:
        file.write(os.urandom(256))
    wait_until("a seventh is counted", lambda: counter(stack, "bad_rings") == 7)
    assert handles(stack, run, 3)[-1][1].number > good.number
    assert stack.log("supervisor").count("frames cannot be read") == 7
    end(stack, run)
    assert counter(stack, "bad_rings") == 7, "what goes with its run is no fault"
