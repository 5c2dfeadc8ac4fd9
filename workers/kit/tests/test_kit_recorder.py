"""Recording: the selected episodes become whole videos, in bounded memory, and are reported."""

import json
import os
import struct
import zlib

import numpy as np
import pytest

from mosaic_worker.emitter import Emitter
from mosaic_worker.frames.apng import encode
from mosaic_worker.frames.fastlane import FastLane, FastLaneSettings
from mosaic_worker.frames.settings import RecordSettings


def decode(data):
    """Decode an unfiltered 8-bit RGB animated PNG by its specification; return frames and seconds per frame."""
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    chunks, at = [], 8
    while at < len(data):
        (size,) = struct.unpack_from(">I", data, at)
        kind, body = data[at + 4 : at + 8], data[at + 8 : at + 8 + size]
        assert struct.unpack_from(">I", data, at + 8 + size)[0] == zlib.crc32(kind + body)
        chunks.append((kind, body))
        at += 12 + size
    kinds = [kind for kind, _ in chunks]
    assert (kinds[:4], kinds[-1]) == ([b"IHDR", b"acTL", b"fcTL", b"IDAT"], b"IEND")
    width, height, *rest = struct.unpack(">IIBBBBB", chunks[0][1])
    assert rest == [8, 2, 0, 0, 0]
    count, plays = struct.unpack(">II", chunks[1][1])
    assert plays == 0
    canvas, frames, seconds, numbers = np.zeros((height, width, 3), np.uint8), [], [], []
    for kind, body in chunks[2:-1]:
        if kind == b"fcTL":
            number, w, h, x, y, shown, of, dispose, blend = struct.unpack(">IIIIIHHBB", body)
            numbers.append(number)
            seconds.append(shown / of)
            assert (dispose, blend) == (0, 0)
            continue
        if kind == b"fdAT":
            numbers.append(struct.unpack_from(">I", body)[0])
        pixels = zlib.decompress(body[4:] if kind == b"fdAT" else body)
        lines = np.frombuffer(pixels, np.uint8).reshape(h, 1 + 3 * w)
        assert not lines[:, 0].any()
        canvas = canvas.copy()
        canvas[y : y + h, x : x + w] = lines[:, 1:].reshape(h, w, 3)
        frames.append(canvas)
    assert numbers == list(range(2 * count - 1))
    assert len(frames) == count
    return frames, seconds


class Numbered:
    """An environment that paints its step count into one pixel; `lengths` sets the episode lengths."""

    render_mode = "rgb_array"

    def __init__(self, lengths, shape=(4, 6, 3)):
        self.metadata = {"render_fps": 20}
        self.lengths = iter(lengths)
        self.shape = shape
        self.steps, self.renders, self.broken = 0, 0, False

    def reset(self, seed=None):
        self.steps, self.length = 0, next(self.lengths)
        return 0, {}

    def step(self, action):
        self.steps += 1
        return 0, 1.0, self.steps == self.length, False, {}

    def render(self):
        self.renders += 1
        if self.broken:
            raise RuntimeError("the window was closed")
        frame = np.zeros(self.shape, np.uint8)
        frame[1, 2] = self.steps % 256
        return frame

    def close(self):
        pass


@pytest.fixture
def run_dir(tmp_path):
    return tmp_path


@pytest.fixture
def record(run_dir):
    """Return a function that plays and records episodes and returns the events."""
    path = run_dir / "journal.jsonl"
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def play(env, settings, episodes, seed=100):
        lane = FastLane(FastLaneSettings(), None, record=settings, run_dir=run_dir, emitter=Emitter(fd))
        assert lane.wants_frames
        wrapped = lane.wrap(env)
        for episode in range(episodes):
            wrapped.reset(seed=seed + episode)
            over = False
            while not over:
                over = wrapped.step(0)[2]
        wrapped.close()
        return [json.loads(line) for line in path.read_text().splitlines()]

    yield play
    os.close(fd)


def test_an_animated_png_comes_back_pixel_by_pixel():
    rng = np.random.default_rng(0)
    frames = [rng.integers(0, 256, (5, 7, 3), dtype=np.uint8) for _ in range(3)]
    frames += [frames[-1].copy(), frames[-1].copy()]
    frames[-1][2, 3] ^= 255
    decoded, seconds = decode(encode(frames, 0.05))
    assert [(one == two).all() for one, two in zip(decoded, frames, strict=True)] == [True] * 5
    assert seconds == [0.05] * 5


def test_only_what_changed_is_written_again():
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    assert len(encode([noise] * 50, 0.1)) < 2 * len(encode([noise], 0.1))


def test_frames_of_unequal_size_share_a_canvas():
    decoded, _ = decode(encode([np.full((2, 2, 3), 9, np.uint8), np.full((4, 2, 3), 7, np.uint8)], 0.1))
    assert decoded[0][:, 0, 0].tolist() == [0, 9, 9, 0]
    assert (decoded[1] == 7).all()


def test_pillow_reads_what_is_written(tmp_path):
    image = pytest.importorskip("PIL.Image", reason="Pillow comes with the services")
    frames = [np.full((4, 4, 3), value, np.uint8) for value in (1, 2, 3)]
    (tmp_path / "a.png").write_bytes(encode(frames, 0.1))
    with image.open(tmp_path / "a.png") as video:
        assert (video.is_animated, video.n_frames) == (True, 3)
        video.seek(2)
        assert (np.asarray(video.convert("RGB")) == 3).all()


def test_every_nth_episode_is_kept_whole_and_the_others_are_not_rendered(record, run_dir):
    events = record(env := Numbered([3, 4, 5, 6, 7]), RecordSettings(every=2), 5)
    assert sorted(path.name for path in (run_dir / "videos").iterdir()) == [f"episode-{n}.png" for n in (0, 2, 4)]
    assert env.renders == 4 + 6 + 8
    frames, seconds = decode((run_dir / "videos" / "episode-2.png").read_bytes())
    assert [int(frame[1, 2, 0]) for frame in frames] == [0, 1, 2, 3, 4, 5]
    assert set(seconds) == {0.05}
    assert [event["event"] for event in events] == ["artifact"] * 3
    second = events[1]
    assert (second["kind"], second["path"], second["step"]) == ("video", "videos/episode-2.png", 12)
    assert second["info"] == {"episode": 2, "seed": 102, "return": 5.0, "why": "every"}


def test_the_best_and_the_worst_replace_their_file_when_they_are_beaten(record, run_dir):
    events = record(Numbered([4, 6, 2, 6, 5, 9]), RecordSettings(best=True, worst=True), 6)
    told = [(event["info"]["why"], event["info"]["episode"], event["info"]["return"]) for event in events]
    assert told == [("best", 0, 4.0), ("worst", 0, 4.0), ("best", 1, 6.0), ("worst", 2, 2.0), ("best", 5, 9.0)]
    assert sorted(path.name for path in (run_dir / "videos").iterdir()) == ["best.png", "worst.png"]
    assert len(decode((run_dir / "videos" / "best.png").read_bytes())[0]) == 10
    assert len(decode((run_dir / "videos" / "worst.png").read_bytes())[0]) == 3


def test_an_episode_can_be_kept_for_more_than_one_reason(record):
    events = record(Numbered([4, 6]), RecordSettings(every=2, best=True), 2)
    assert [event["path"] for event in events] == ["videos/episode-0.png", "videos/best.png", "videos/best.png"]


def test_a_long_episode_is_thinned_and_still_shows_its_end(record, run_dir):
    record(env := Numbered([1000]), RecordSettings(every=1, max_frames=16), 1)
    frames, seconds = decode((run_dir / "videos" / "episode-0.png").read_bytes())
    assert len(frames) <= 16
    assert env.renders < 200, "what is not kept is not rendered, once the episode is known to be long"
    stride = round(seconds[0] * 20)
    assert [int(frame[1, 2, 0]) for frame in frames[:-1]] == [
        moment * stride % 256 for moment in range(len(frames) - 1)
    ]
    assert int(frames[-1][1, 2, 0]) == 1000 % 256


@pytest.mark.parametrize(
    ("fps", "seconds"),
    [(0, 0.033), (-5, 0.033), (float("nan"), 0.033), (float("inf"), 0.033), ("fast", 0.033), (1e-320, 65.535)],
)
def test_an_invalid_frame_rate_falls_back_to_thirty_frames_a_second(record, run_dir, fps, seconds):
    env = Numbered([2, 2])
    env.metadata = {"render_fps": fps}
    events = record(env, RecordSettings(every=1), 2)
    assert [event["event"] for event in events] == ["artifact"] * 2
    assert set(decode((run_dir / "videos" / "episode-1.png").read_bytes())[1]) == {seconds}


def test_large_frames_are_recorded_smaller(record, run_dir):
    record(Numbered([2], shape=(300, 600, 3)), RecordSettings(every=1, max_dim=100), 1)
    frames, _ = decode((run_dir / "videos" / "episode-0.png").read_bytes())
    assert frames[0].shape == (50, 100, 3)


def test_an_episode_cut_short_by_a_reset_is_not_kept(record, run_dir):
    env = Numbered([5, 3])
    lane = FastLane(FastLaneSettings(), None, record=RecordSettings(every=1), run_dir=run_dir)
    wrapped = lane.wrap(env)
    wrapped.reset()
    wrapped.step(0)
    wrapped.reset()
    for _ in range(3):
        wrapped.step(0)
    (video,) = (run_dir / "videos").iterdir()
    assert video.name == "episode-0.png"
    assert len(decode(video.read_bytes())[0]) == 4


def test_a_render_error_ends_recording_and_not_the_run(record):
    env = Numbered([3, 3, 3])
    env.broken = True
    (event,) = record(env, RecordSettings(best=True), 3)
    assert "render raised RuntimeError: the window was closed" in event["message"]
    assert env.renders == 1


def test_a_folder_that_cannot_be_written_ends_recording_and_not_the_run(record, run_dir):
    (run_dir / "videos").write_text("in the way")
    (event,) = record(env := Numbered([3, 3, 3]), RecordSettings(every=1), 3)
    assert event["message"].startswith("no more videos: ")
    assert env.renders == 4


def test_only_the_slot_is_recorded_and_live_frames_use_the_same_rendering(run_dir):
    settings = FastLaneSettings(mode="single", slot=1, interval_ms=1)
    now = iter(range(10**6))
    lane = FastLane(settings, run_dir, record=RecordSettings(every=1), run_dir=run_dir, clock=lambda: float(next(now)))
    assert lane.wrap(other := Numbered([3]), 0) is other
    env = lane.wrap(inner := Numbered([3]), 1)
    env.reset()
    for _ in range(3):
        env.step(0)
    assert inner.renders == 4
    assert (run_dir / "main.ring").exists()
    assert (run_dir / "videos" / "episode-0.png").exists()
