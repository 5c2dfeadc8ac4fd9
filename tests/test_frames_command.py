"""`mosaic frames`, and `bus.frames` as in a notebook, on a stack of real processes."""

from __future__ import annotations

import contextlib
import itertools
import os
import pty
import re
import select
import subprocess
import sys
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING

import imageio_ffmpeg
import numpy as np
import pytest
from frame_runs import ENDLESS, end, pixels, streams, submit, wait_for_frames
from mosaic_cli import MOSAIC, Cli
from PIL import Image
from stack import ROOT, wait_until

from mosaic_bus.frames import FrameReader
from mosaic_services.cli.frames import film

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# ── the command ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
def test_list_and_files_of_all_kinds(shared_stack, tmp_path):
    run = submit(shared_stack, frame_shape=[91, 120, 3])
    wait_for_frames(shared_stack, run)
    cli = Cli(shared_stack.home.path)
    said = cli("frames", run).stdout
    assert re.search(r"main +120×91 +\d+ +[\d.]+ +step \d+  episode \d+  reward 1.5 ", said), said
    (row,) = cli.json("frames", run)["streams"]
    assert (row["stream"], row["local"], row["writer"], row["shape"]) == ("main", True, "live", [91, 120, 3])
    assert row["age_s"] < 100
    for extra in ([], ["--remote"]):
        picture = tmp_path / "one.png"
        cli("frames", run, "--save", str(picture), *extra)
        with Image.open(picture) as image:
            assert (image.format, image.size) == ("PNG", (120, 91))
        film = tmp_path / "some.gif"
        cli("frames", run, "--save", str(film), "--seconds", "1", *extra)
        with Image.open(film) as image:
            assert (image.format, image.size) == ("GIF", (120, 91))
            assert image.n_frames > 2
    video = tmp_path / "film.mp4"
    saved = cli.json("frames", run, "--save", str(video), "--seconds", "1")
    count, seconds = imageio_ffmpeg.count_frames_and_secs(str(video))
    assert (count, round(seconds, 1)) == (saved["frames"], 1.0)
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []
    end(shared_stack, run)


@pytest.mark.slow
def test_saved_picture_is_the_very_picture(shared_stack, tmp_path):
    run = submit(shared_stack, frames=3)
    wait_until("all are there", lambda: streams(shared_stack, run) and streams(shared_stack, run)[0].published == 3)
    Cli(shared_stack.home.path)("frames", run, "--save", str(tmp_path / "out.png"))
    with FrameReader(streams(shared_stack, run)[0].newest.file) as reader:
        assert (pixels(tmp_path / "out.png") == reader.latest().pixels).all()
    end(shared_stack, run)


@pytest.mark.slow
def test_what_cannot_be_done_is_said_with_what_to_do(shared_stack, tmp_path):
    cli = Cli(shared_stack.home.path)
    blind = shared_stack.submit(config={"end": "hang"}, grace_s=5)
    shared_stack.wait_state(blind, "running")
    assert "has no frames: a worker publishes frames only if" in cli("frames", blind).stdout
    assert "has no frames" in cli("frames", blind, "--save", str(tmp_path / "x.png"), code=1).stderr
    shared_stack.cancel(blind)
    run = submit(shared_stack, frame_streams=["left", "right"])
    wait_until("both are there", lambda: len(streams(shared_stack, run)) == 2)
    assert "save a frame instead" in cli("frames", run, "--watch", code=2).stderr
    assert "neither .png, .gif nor .mp4" in cli("frames", run, "--save", "x.jpg", code=2).stderr
    assert "there is no folder" in cli("frames", run, "--save", str(tmp_path / "no" / "x.png"), code=2).stderr
    assert "choose one with --stream" in cli("frames", run, "--save", str(tmp_path / "x.png"), code=2).stderr
    assert "it has: left, right" in cli("frames", run, "--stream", "up", code=2).stderr
    cli("frames", run, "--stream", "left", "--save", str(tmp_path / "x.png"))
    end(shared_stack, run)
    assert "see: mosaic runs" in cli("frames", "no-such-run", code=2).stderr


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written_is_refused_before_a_film_is_taken(tmp_path):
    tmp_path.chmod(0o500)
    refused = Cli(tmp_path)("frames", "any", "--save", str(tmp_path / "x.gif"), code=2).stderr
    assert f"the folder {tmp_path} cannot be written to" in refused


@pytest.mark.slow
def test_mp4_without_ffmpeg_says_how_to_get_it(shared_stack, tmp_path):
    code = (
        "import sys; sys.modules['imageio_ffmpeg'] = None; from mosaic_services.cli.main import main; sys.exit(main())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "frames", "any", "--save", str(tmp_path / "x.mp4")],
        env=Cli(shared_stack.home.path).env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "pip install imageio-ffmpeg" in done.stderr


@pytest.mark.slow
def test_a_run_that_has_not_started_is_waited_for(shared_stack, tmp_path):
    all_cpus = {"cpus": 8, "memory_mb": 128}
    first = shared_stack.submit(config={"end": "hang"}, grace_s=5, resources=all_cpus)
    shared_stack.wait_state(first, "running")
    watched = {"frames": ENDLESS, "end": "hang"}
    second = shared_stack.submit(config=watched, grace_s=5, resources=all_cpus)
    out = tmp_path / "x.png"
    saving = subprocess.Popen(
        [*MOSAIC, "frames", second, "--save", str(out)],
        env=Cli(shared_stack.home.path).env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert "(queued) to start; Ctrl-C stops waiting" in saving.stderr.readline()
    assert not out.exists()
    shared_stack.cancel(first)
    said, wrong = saving.communicate(timeout=60)
    assert (saving.returncode, wrong) == (0, "")
    assert said.startswith("saved 1 frame of 160×120")
    assert pixels(out).shape == (120, 160, 3)
    end(shared_stack, second)


@pytest.mark.slow
def test_a_run_that_is_told_to_publish_is_waited_for_however_long_it_takes_to_begin(shared_stack, tmp_path):
    cli = Cli(shared_stack.home.path)
    run = submit(shared_stack, fastlane_video_mode="single", frames_after_s=25)
    shared_stack.wait_state(run, "running")
    saved = cli("frames", run, "--save", str(tmp_path / "x.png"))
    assert "waiting for the first frame of run" in saved.stderr
    assert saved.stdout.startswith("saved 1 frame of 160×120")
    end(shared_stack, run)
    run = submit(shared_stack, frames=0, fastlane_video_mode="single", end="complete", events=150, rate=10)
    assert "has no frames" in cli("frames", run, "--save", str(tmp_path / "y.png"), code=1).stderr
    assert shared_stack.state(run).state.final, "only then is it sure"


@pytest.mark.slow
def test_watch_draws_in_a_terminal_until_q(shared_stack):
    run = submit(shared_stack)
    wait_for_frames(shared_stack, run)
    ours, theirs = pty.openpty()
    environ = {**Cli(shared_stack.home.path).env, "TERM": "xterm-256color", "COLUMNS": "60", "LINES": "20"}
    process = subprocess.Popen([*MOSAIC, "frames", run, "--watch"], env=environ, stdin=theirs, stdout=theirs)
    os.close(theirs)
    shown = b""

    def drawn() -> bool:
        nonlocal shown
        if select.select([ours], [], [], 0.1)[0]:
            shown += os.read(ours, 65536)
        return shown.count(b"reward 1.5") > 2

    wait_until("pictures are drawn", drawn)
    os.write(ours, b"q")

    def ended() -> bool:
        if select.select([ours], [], [], 0.1)[0]:
            with contextlib.suppress(OSError):
                os.read(ours, 65536)
        return process.poll() is not None

    wait_until("q ends it", ended)
    os.close(ours)
    assert process.returncode == 0
    assert re.search(rb"\x1b\[38;2;\d+;\d+;\d+;48;2;\d+;\d+;\d+m\xe2\x96\x80", shown)
    end(shared_stack, run)


# ── the page ─────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
def test_python_of_the_page_runs(shared_stack):
    run = shared_stack.submit(name="my-run", config={"frames": ENDLESS, "end": "hang"}, grace_s=5)
    wait_for_frames(shared_stack, run)
    code = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "frames.md").read_text(), re.DOTALL)[0]
    environ = {**os.environ, "MOSAIC_HOME": str(shared_stack.home.path)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert "(120, 160, 3)" in done.stdout
    end(shared_stack, run)


@pytest.mark.slow
def test_loop_over_pictures_ends_with_the_run(shared_stack):
    run = submit(shared_stack, frames=40, end="complete")
    numbers = [frame.number for frame in shared_stack.bus.frames(run)]
    assert numbers == sorted(set(numbers))
    assert numbers[-1] > 10
    assert shared_stack.wait_final(run).state == "succeeded"


@pytest.mark.slow
def test_pictures_here_go_on_while_the_supervisor_is_dead(stack):
    run = submit(stack)
    frames = iter(stack.bus.frames(run))
    next(frames)
    stack.kill("supervisor")
    began, came = time.monotonic(), []
    for frame in frames:
        came.append((time.monotonic() - began, frame.number))
        if came[-1][0] > 7:
            break
    stack.start("supervisor")
    stack.wait_for("supervisor")
    end(stack, run)
    gaps = [after - before for (before, _), (after, _) in itertools.pairwise([(0.0, 0), *came])]
    assert max(gaps) < 2, "they do not wait for an answer that does not come"
    assert [number for _, number in came] == sorted({number for _, number in came})


# ── films ────────────────────────────────────────────────────────────────────────────────────────────


def length(path: Path) -> int:
    """Return the number of frames in a film."""
    if path.suffix == ".mp4":
        return imageio_ffmpeg.count_frames_and_secs(str(path))[0]
    with Image.open(path) as image:
        return image.n_frames


def written(path: Path) -> bool:
    """Whether a film that is being recorded has data in its file."""
    scratch = path.with_name(f".{path.name}.new{path.suffix}")
    return scratch.exists() and scratch.stat().st_size > 0


@pytest.mark.slow
def test_a_film_ends_with_the_run(shared_stack, tmp_path):
    run = submit(shared_stack)
    wait_for_frames(shared_stack, run)
    out = tmp_path / "x.gif"
    filming = Cli(shared_stack.home.path).start("frames", run, "--save", str(out), "--seconds", "3600")
    try:
        wait_until("it is being written", lambda: written(out))
        end(shared_stack, run)
        said, wrong = filming.communicate(timeout=30)
    finally:
        filming.kill()
    assert (filming.returncode, wrong) == (0, "")
    assert "(the run has ended: cancelled)" in said.replace("\n", " ")
    assert length(out) > 1
    assert list(tmp_path.iterdir()) == [out]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["x.gif", "x.mp4"])
def test_ctrl_c_ends_a_film_and_keeps_it(shared_stack, tmp_path, name):
    run = submit(shared_stack)
    wait_for_frames(shared_stack, run)
    ours, theirs = pty.openpty()
    out = tmp_path / name
    process = subprocess.Popen(
        [*MOSAIC, "frames", run, "--save", str(out), "--seconds", "3600"],
        env={**Cli(shared_stack.home.path).env, "TERM": "xterm-256color", "COLUMNS": "200"},
        preexec_fn=lambda: os.login_tty(theirs),  # noqa: PLW1509 - so that Ctrl-C reaches ffmpeg, too, if it can
    )
    os.close(theirs)
    shown = b""

    def read() -> None:
        nonlocal shown
        if select.select([ours], [], [], 0.05)[0]:
            with contextlib.suppress(OSError):
                shown += os.read(ours, 65536)

    def filming() -> bool:
        read()
        return b"filming" in shown and written(out)

    def ended() -> bool:
        read()
        return process.poll() is not None

    try:
        wait_until("it is being written, and says so", filming)
        os.write(ours, b"\x03")
        wait_until("Ctrl-C ends it", ended)
        read()
    finally:
        process.kill()
        process.wait()
        os.close(ours)
    assert process.returncode == 0, shown
    saved = re.search(rb"saved (\d+) frames of 160.*ended early by Ctrl-C", shown, re.DOTALL)
    assert saved, shown
    assert 1 < length(out) <= int(saved[1])
    assert list(tmp_path.iterdir()) == [out]
    end(shared_stack, run)


def frames_of(count: int) -> list[SimpleNamespace]:
    """Yield fake frames: noise of four colours, part of which changes; each comes twice."""
    noise = np.random.default_rng(1)
    colours = noise.integers(0, 256, (4, 3), np.uint8)
    picture = colours[noise.integers(0, 4, (90, 120))]
    found = []
    for number in range(count):
        picture = picture.copy()
        picture[number : number + 20, 10:110] = colours[noise.integers(0, 4, (20, 100))]
        found += [SimpleNamespace(pixels=picture)] * 2
    return found


def test_a_gif_is_written_while_the_pictures_come_and_shows_each_of_them(tmp_path):
    out, frames, sizes = tmp_path / "x.gif", frames_of(60), []

    def coming() -> Iterator[SimpleNamespace]:
        for frame in frames:
            yield frame
            sizes.append(out.stat().st_size)

    assert film._write_gif(out, coming()) == 120
    assert sizes[60] > out.stat().st_size / 4
    with Image.open(out) as image:
        assert (image.n_frames, image.info["loop"]) == (60, 0)
        for number in range(60):
            image.seek(number)
            assert (np.asarray(image.convert("RGB")) == frames[2 * number].pixels).all()
            assert image.info["duration"] == 100


@pytest.mark.parametrize("count", [1, 2, 12_001, 30_000])
def test_a_gif_in_which_nothing_changes(tmp_path, count):
    still = SimpleNamespace(pixels=np.zeros((4, 4, 3), np.uint8))
    assert film._write_gif(tmp_path / "x.gif", itertools.repeat(still, count)) == count
    with Image.open(tmp_path / "x.gif") as image:
        total = 0
        for number in range(image.n_frames):
            image.seek(number)
            total += image.info["duration"]
    assert total == count * 50


def test_a_film_that_is_late_takes_the_newest_picture_nevertheless(monkeypatch):
    class Feed:
        """A fake that always has a new frame."""

        is_over = False
        numbers = itertools.count(1)

        def next(self, _wait):
            return next(self.numbers)

    clock = itertools.count(step=100)  # As if each frame took long to write.
    monkeypatch.setattr(film, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    assert list(film._sample(0, Feed(), 20, 5, lambda _count: True)) == [0, 1, 2, 3, 4]
