"""Hooks in scripts shaped like upstream's: they report everything and change nothing."""

import json
import os
import re
import signal
import subprocess
from pathlib import Path

import pytest
from upstream_runs import SHAPES, FrameReader, Worker, bare, build, checkout_of, tensorboard_scalars

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

DQN = {"algo": "dqn", "env_id": "CartPole-v1", "seed": 3}
PPO = {"algo": "pqn", "env_id": "CartPole-v1", "seed": 3}
FAULT = {"algo": "c51", "env_id": "CartPole-v1", "total_timesteps": 100, "seed": 3}


@pytest.fixture
def worker(tmp_path):
    return Worker("default", tmp_path / "run", checkout_of(tmp_path / "upstream", pqn="ppo"))


def faulty(fault):
    return {**FAULT, "extras": {"algo_params": {"fault": fault}}}


def printed_returns(text):
    """Return the pairs (global step, return) that the script itself printed."""
    return [
        (int(step), float(value)) for step, value in re.findall(r"global_step=(\d+), episodic_return=\[?([\d.]+)", text)
    ]


def test_a_dqn_shaped_script_reports_its_own_figures_and_its_evaluation_separately(worker):
    done = worker.run(**DQN, total_timesteps=1500, extras={"algo_params": {"save_model": True}})
    assert [(e["step"] - 1, e["return"]) for e in done.all("episode")] == printed_returns(done.log)
    assert [e["episode"] for e in done.all("episode")] == list(range(len(done.all("episode"))))
    assert done.all("episode")[0]["seed"] == 3
    written = tensorboard_scalars(worker.python, worker.folder / "tensorboard")
    assert done.scalars.keys() == written.keys() >= {"losses/td_loss", "charts/episodic_return"}
    for tag, points in written.items():
        assert [step for step, _ in done.scalars[tag]] == [step for step, _ in points]
        assert [value for _, value in done.scalars[tag]] == pytest.approx([value for _, value in points], rel=1e-5)
    completed = done.one("run_completed")
    assert (completed["step"], completed["episodes"]) == (1500, len(done.all("episode")))
    assert completed["summary"]["steps"] == 1500
    evaluated = [event["return"] for event in done.all("evaluation_episode")]
    assert evaluated == [value for _, value in done.scalars["eval/episodic_return"]]
    assert len(evaluated) == 3
    (model,) = [event["path"] for event in done.all("artifact") if event["kind"] == "model"]
    assert (done.folder / model).name == "dqn.cleanrl_model"
    manifest = json.loads((done.folder / "analytics.json").read_text())
    assert manifest["checkpoints"] == [model]
    assert manifest["tensorboard"] == [str(Path(model).parent)]
    assert manifest["logs"] == ["log.txt"]
    assert manifest["wandb"] is None


@pytest.mark.parametrize(("script", "algo", "steps"), [("dqn", "dqn", 2000), ("ppo", "pqn", 3072)])
def test_a_training_is_the_same_with_and_without_hooks_and_frames(worker, tmp_path, script, algo, steps):
    (tmp_path / "frames").mkdir()
    worker.environ["MOSAIC_FASTLANE_DIR"] = str(tmp_path / "frames")
    extras = {"fastlane_video_mode": "single", "record": "every=20"}
    done = worker.run(algo=algo, env_id="CartPole-v1", seed=5, total_timesteps=steps, extras=extras)
    arguments = ["--seed", "5", "--total-timesteps", str(steps), "--no-cuda"]
    text = bare(worker.python, SHAPES / "cleanrl" / f"{script}.py", tmp_path / "bare", *arguments)
    expected = tensorboard_scalars(worker.python, tmp_path / "bare" / "runs")
    for tag in expected.keys() - {"charts/SPS"}:
        points = [(step, float(value)) for step, value in done.scalars[tag]]
        assert [step for step, _ in points] == [step for step, _ in expected[tag]]
        values = [value for _, value in expected[tag]]
        assert [value for _, value in points] == pytest.approx(values, rel=1e-6, nan_ok=True)
    # dqn prints the index of a step, from 0; ppo prints the number of completed steps, as an episode event does.
    first = 1 if script == "dqn" else 0
    assert [(e["step"] - first, e["return"]) for e in done.all("episode")] == printed_returns(text)
    assert done.one("run_completed")["step"] == steps
    assert (tmp_path / "frames" / "main.ring").stat().st_size > 400 * 600 * 3


def test_forked_environments_report_once_share_a_step_count_and_publish_frames(worker, tmp_path):
    (tmp_path / "frames").mkdir()
    worker.environ["MOSAIC_FASTLANE_DIR"] = str(tmp_path / "frames")
    extras = {"fastlane_video_mode": "single", "algo_params": {"asynchronous": True, "num_envs": 2}}
    done = worker.run(**PPO, total_timesteps=1024, extras=extras)
    assert sorted(e["return"] for e in done.all("episode")) == sorted(v for _, v in printed_returns(done.log))
    assert done.one("run_completed")["step"] == 1024
    assert (tmp_path / "frames" / "main.ring").stat().st_size > 400 * 600 * 3
    assert worker.left() == []


def test_frames_arrive_while_it_trains_and_tensorboard_files_are_whole_after_a_stop(worker, tmp_path):
    rings = tmp_path / "rings"
    rings.mkdir()
    worker.environ["MOSAIC_FASTLANE_DIR"] = str(rings)
    worker.environ["CLEANRL_FASTLANE_MAX_DIM"] = "100"  # the name in earlier CleanRL workers of MOSAIC
    extras = {"fastlane_video_mode": "grid", "fastlane_grid_limit": 2}
    process = worker.start(**PPO, total_timesteps=1_000_000, extras=extras)
    worker.wait_for(process, (rings / "main.ring").exists)
    with FrameReader(rings / "main.ring") as reader:
        worker.wait_for(process, lambda: (frame := reader.latest()) is not None and frame.number > 3)
        frame = reader.latest()
    assert frame.pixels.shape[2] == 3
    assert max(frame.pixels.shape) <= 100
    assert frame.pixels.std() > 0
    assert frame.step > 0
    worker.wait_for_event(process, "scalars")
    process.send_signal(signal.SIGTERM)
    done = worker.end(process)
    assert (done.code, done.events[-1]["event"]) == (143, "run_cancelled")
    written = tensorboard_scalars(worker.python, worker.folder / "tensorboard")
    for tag, points in done.scalars.items():
        assert len(written[tag]) in {len(points), len(points) + 1}


def test_videos_of_the_script_and_ours_are_both_kept(worker):
    done = worker.run(**DQN, total_timesteps=300, extras={"capture_video": True, "record": "every=5"})
    videos = [event["path"] for event in done.all("artifact") if event["kind"] == "video"]
    ours = [path for path in videos if path.endswith(".png")]
    assert ours == [f"videos/episode-{n}.png" for n in range(0, 5 * len(ours), 5)]
    assert any(path.endswith(".mp4") for path in videos)
    assert all((done.folder / path).stat().st_size > 1000 for path in videos)
    assert set(json.loads((done.folder / "analytics.json").read_text())["videos"]) == set(videos)


def test_environments_not_created_by_make_are_reported_by_their_scalars(worker):
    done = worker.run(**faulty("scalars only"))
    assert [(e["step"], e["return"]) for e in done.all("episode")] == [(100, 0.0), (200, 10.0), (300, 20.0)]
    assert done.one("run_completed")["step"] == 300


def test_a_script_finds_what_it_expects_and_copies_prints_and_odd_rewards_do_no_harm(worker):
    done = worker.run(**faulty("oddities"))
    assert done.one("run_completed")["step"] == 101  # the steps of copied environments do not count
    for line in ("straight to descriptor 1", '{"event": "run_completed", "ts": 1}', "to stderr", "all is as expected"):
        assert line in done.log.splitlines()
    (warning,) = [event for event in done.all("log") if event["level"] == "warning"]
    assert warning["message"].startswith("no more episodes of environment 0: TypeError")
    assert done.all("episode")


def test_nothing_is_hooked_outside_a_run_and_a_shadowed_sitecustomize_still_runs(tmp_path):
    python, site = build("default")
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.was_here = True\n")
    startup = site / "mosaic_worker" / "hooks" / "startup"
    code = (
        "import sys, gymnasium\n"
        "print(sys.was_here, gymnasium.make.__module__, len(sys.meta_path), hasattr(gymnasium.make, '__wrapped__'))"
    )
    plain = f"{site}{os.pathsep}{tmp_path}"
    answers = [
        subprocess.run(
            [python, "-c", code], env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=True
        ).stdout
        for path in (plain, f"{startup}{os.pathsep}{plain}")
    ]
    assert answers[0] == answers[1]
    assert answers[0].splitlines()[-1] == "True gymnasium.envs.registration 4 False"


def test_a_hook_that_cannot_report_says_so_once_and_the_script_goes_on(tmp_path):
    python, site = build("default")
    environ = {
        **os.environ,
        "PYTHONPATH": f"{site / 'mosaic_worker' / 'hooks' / 'startup'}{os.pathsep}{site}",
        "MOSAIC_HOOKS": json.dumps({"counters": "/not/there", "journal": "1:1:/not/there", "settings": {}}),
    }
    code = "import gymnasium; [gymnasium.make('CartPole-v1').reset() for _ in range(3)]; print('played')"
    done = subprocess.run([python, "-c", code], env=environ, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "played"
    assert done.stderr.count("mosaic_worker: nothing is reported") == 1
