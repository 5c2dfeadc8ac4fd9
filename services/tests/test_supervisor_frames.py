"""Folders and rings of frames on a host, with real files. Published handles are collected in a list."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from structlog.testing import capture_logs

from mosaic_services.attempt_folder import AttemptKey
from mosaic_services.supervisor.frames import Frames
from mosaic_services.supervisor.pictures import Lease, Pictures
from mosaic_worker.frames.ring import FrameWriter

KEY = AttemptKey("01K5A0Q4T1M7Z8V9W2X3Y4B5C6", 1)


@pytest.fixture
def root():
    place = Path(f"/dev/shm/mosaic-unit-{os.getpid()}")
    yield place
    assert not place.exists(), "the last folder takes the one above with it"


@pytest.fixture
def said():
    return []


@pytest.fixture
def frames(root, said):
    made = Frames(root, "h", lambda topic, body, buffers: said.append((topic, body)) or True)
    yield made
    for key in list(made._followed):
        made.end(key)


def picture(value=0, shape=(8, 8, 3)):
    return np.full(shape, value, np.uint8)


def test_host_without_shared_memory_goes_on_without_pictures_and_says_so_once(tmp_path):
    frames = Frames(tmp_path / "no-shm" / "mosaic-1", "h", lambda *_: True)
    with capture_logs() as logs:
        assert frames.make(KEY) is None
        assert frames.make(AttemptKey("other", 1)) is None
    assert [each["event"] for each in logs] == ["no frames from runs on this host"]
    frames.turn(0.0)
    assert frames.end(KEY) == []
    assert frames.states(KEY.run) is None


def test_folder_that_cannot_be_made_is_said_with_the_reason(tmp_path):
    (tmp_path / "mosaic-1").write_text("a file in the way")
    with capture_logs() as logs:
        assert Frames(tmp_path / "mosaic-1", "h", lambda *_: True).make(KEY) is None
    assert "File exists" in logs[0]["reason"]


def test_somebody_elses_link_is_not_followed(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "mosaic-1").symlink_to(tmp_path / "real")
    assert Frames(tmp_path / "mosaic-1", "h", lambda *_: True).make(KEY) is None
    assert list((tmp_path / "real").iterdir()) == []


def test_sweep_leaves_alone_what_is_not_ours(tmp_path):
    (tmp_path / "real" / "precious").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    Frames(tmp_path / "link", "h", lambda *_: True).sweep([])
    if os.getuid() == 0:
        os.chown(tmp_path / "real", 65534, -1)
        Frames(tmp_path / "real", "h", lambda *_: True).sweep([])
    assert (tmp_path / "real" / "precious").is_dir()


def test_folder_of_another_user_does_not_keep_a_supervisor_from_starting(tmp_path, monkeypatch):
    def forbidden(_):  # as for all but root
        raise PermissionError(13, "Permission denied")

    (tmp_path / "mosaic-1").mkdir()
    monkeypatch.setattr(Path, "iterdir", forbidden)
    Frames(tmp_path / "mosaic-1", "h", lambda *_: True).sweep([])


def test_many_streams_are_announced_less_often_but_all_of_them(frames, said):
    folder = frames.make(KEY)
    writers = [FrameWriter(folder, f"s{number}") for number in range(60)]
    for writer in writers:
        writer.write(picture())
    frames.turn(0.0)
    assert len(said) == 25
    frames.turn(0.05)
    frames.turn(0.1)
    assert len({body.stream for _, body in said}) == 60
    frames.turn(0.15)
    assert len(said) == 60, "what is not new is not said again"


def test_folder_is_listed_only_every_half_second(frames, said):
    folder = frames.make(KEY)
    frames.turn(0.0)
    FrameWriter(folder).write(picture())
    frames.turn(0.4)
    assert said == []
    frames.turn(0.5)
    assert len(said) == 1


def test_writer_that_begins_anew_in_the_same_attempt_is_followed(frames, said):
    folder = frames.make(KEY)
    first = FrameWriter(folder)
    for _ in range(3):
        first.write(picture())
    frames.turn(0.0)
    first.close()
    assert frames.states(KEY.run)[0].writer == "closed"
    FrameWriter(folder).write(picture(9))
    frames.turn(0.1)
    assert [body.number for _, body in said] == [2, 0]
    assert frames.states(KEY.run)[0].writer == "live"


def test_pictures_per_second_are_those_of_the_last_two_seconds(frames):
    folder = frames.make(KEY)
    writer = FrameWriter(folder)
    for half_second in range(9):
        for _ in range(5):
            writer.write(picture())
        frames.turn(half_second / 2)
    assert frames.states(KEY.run)[0].fps == 10
    for half_second in range(9, 14):
        frames.turn(half_second / 2)
    assert frames.states(KEY.run)[0].fps == 0


@pytest.mark.parametrize("harm", [lambda path: path.write_bytes(b"\xff" * 2000), lambda path: os.truncate(path, 0)])
def test_ring_that_goes_bad_under_way_is_counted_and_said_once_and_does_not_stop_the_others(frames, said, harm):
    folder = frames.make(KEY)
    bad, good = FrameWriter(folder, "bad"), FrameWriter(folder, "good")
    bad.write(picture())
    good.write(picture())
    frames.turn(0.0)
    harm(bad.path)
    assert [state.newest.stream for state in frames.states(KEY.run)] == ["bad", "good"], "nobody has looked yet"
    good.write(picture())
    with capture_logs() as logs:
        for now in (0.6, 0.65, 1.2, 1.8):
            frames.turn(now)
    assert said[-1][1].stream == "good"
    assert [state.newest.stream for state in frames.states(KEY.run)] == ["good"]
    assert frames.counters["bad_rings"] == 1
    assert [(each["event"], each["stream"]) for each in logs] == [("frames cannot be read", "bad")]


def test_ring_that_goes_bad_just_before_the_end_does_not_stop_it(frames):
    writer = FrameWriter(frames.make(KEY))
    writer.write(picture(), step=5)
    frames.turn(0.0)
    os.truncate(writer.path, 0)
    (last,) = frames.end(KEY)
    assert (last.newest.step, last.published, last.writer) == (5, 1, "ended")


@pytest.mark.parametrize("looks", [0, 1, 3])
def test_end_says_what_the_last_picture_was_even_if_the_run_host_has_removed_the_file(frames, looks):
    folder = frames.make(KEY)
    writer = FrameWriter(folder)
    writer.write(picture())
    frames.turn(0.0)
    writer.write(picture(), step=77)
    shutil.rmtree(folder)
    for now in (0.1, 1.0, 2.0)[:looks]:
        frames.turn(now)
    (last,) = frames.end(KEY)
    assert (last.newest.step, last.published, last.writer) == (77, 2, "ended")
    assert frames.counters["bad_rings"] == 0


def test_leases_of_many_readers_are_one_and_end(frames):
    folder = frames.make(KEY)
    writer = FrameWriter(folder)
    writer.write(picture())
    frames.turn(0.0)
    pictures = Pictures(frames)
    lease = Lease(KEY.run, None, 64, 80)
    assert pictures.plan(0.0) == []
    for _ in range(10):
        pictures.watch(lease, 100.0)
    pictures.watch(Lease(KEY.run, "main", 64, 80), 100.0)
    assert len(pictures.plan(101.0)) == 1
    assert len(pictures.take(pictures.encode(pictures.plan(101.0)), 101.0)) == 1
    assert pictures.encode(pictures.plan(101.1)) == []
    pictures.watch(lease, 101.2)
    assert pictures.take([], 101.3) == [], "what stays the same is sent again once a second"
    assert len(pictures.take([], 102.1)) == 1
    assert pictures.counters["pictures_encoded"] == 1
    writer.write(picture(1))
    frames.turn(0.1)
    assert len(pictures.take(pictures.encode(pictures.plan(102.2)), 102.2)) == 1
    assert pictures.encode(pictures.plan(106.3)) == []
    assert pictures._readers == {}, "files that nobody wants are let go, and their memory with them"
    assert not pictures.asked.is_set()


def test_picture_that_cannot_be_encoded_is_counted_once(frames):
    folder = frames.make(KEY)
    writer = FrameWriter(folder)
    writer.write(picture())
    frames.turn(0.0)
    pictures = Pictures(frames)
    pictures.watch(Lease(KEY.run, None, 64, 80), 100.0)
    jobs = pictures.plan(100.0)
    os.truncate(writer.path, 100)
    for _ in range(3):
        assert pictures.take(pictures.encode(jobs), 100.0) == []
    assert frames.counters["bad_rings"] == 1
