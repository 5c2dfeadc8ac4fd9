"""Hooks in upstream-shaped scripts: everything that happens is reported, and nothing that happens is changed."""

import json
import os
import re
import signal
import subprocess

import pytest
from upstream_runs import SHAPES, Worker, bare, build, checkout_of, tensorboard_scalars

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
    """What the script itself printed: (global step, return)."""
    return [
        (int(step), float(value)) for step, value in re.findall(r"global_step=(\d+), episodic_return=\[?([\d.]+)", text)
    ]


def test_episodes_and_scalars_of_a_dqn_shaped_script_are_those_it_saw_itself(worker):
    done = worker.run(**DQN, total_timesteps=1500)
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


def test_several_environments_share_one_step_axis(worker):
    done = worker.run(**PPO, total_timesteps=2048)
    episodes = done.all("episode")
    assert [(e["step"], e["return"]) for e in episodes] == printed_returns(done.log)
    assert done.one("run_completed")["step"] == 2048
    assert done.scalars["losses/explained_variance"][0] == (512, "NaN")  # that one may be


@pytest.mark.parametrize(("script", "algo", "steps"), [("dqn", "dqn", 3000), ("ppo", "pqn", 4096)])
def test_a_training_is_the_same_with_and_without_hooks(worker, tmp_path, script, algo, steps):
    pictures = {"extras": {"fastlane_video_mode": "single", "record": "every=3"}}
    (tmp_path / "pictures").mkdir()
    worker.environ["MOSAIC_FASTLANE_DIR"] = str(tmp_path / "pictures")
    done = worker.run(algo=algo, env_id="CartPole-v1", seed=5, total_timesteps=steps, **pictures)
    arguments = ["--seed", "5", "--total-timesteps", str(steps), "--no-cuda"]
    text = bare(worker.python, SHAPES / "cleanrl" / f"{script}.py", tmp_path / "bare", *arguments)
    expected = tensorboard_scalars(worker.python, tmp_path / "bare" / "runs")
    found = tensorboard_scalars(worker.python, worker.folder / "tensorboard")
    for tag in expected.keys() - {"charts/SPS"}:
        assert [str(point) for point in found[tag]] == [str(point) for point in expected[tag]]
    assert [e["return"] for e in done.all("episode")] == [value for _, value in printed_returns(text)]


def test_forked_environments_report_once_each_and_count_together(worker):
    extras = {"algo_params": {"asynchronous": True, "num_envs": 2}}
    done = worker.run(**PPO, total_timesteps=2048, extras=extras)
    assert sorted(e["return"] for e in done.all("episode")) == sorted(v for _, v in printed_returns(done.log))
    assert done.one("run_completed")["step"] == 2048
    worker.require_nothing_left()


def test_pictures_of_a_script_arrive_in_the_ring(worker, tmp_path):
    from mosaic_bus.frames import FrameReader

    rings = tmp_path / "rings"
    rings.mkdir()
    worker.environ["MOSAIC_FASTLANE_DIR"] = str(rings)
    process = worker.start(
        **PPO, total_timesteps=40_960, extras={"fastlane_video_mode": "grid", "fastlane_grid_limit": 2}
    )
    worker.wait_for(process, (rings / "main.ring").exists)
    with FrameReader(rings / "main.ring") as reader:
        worker.wait_for(process, lambda: (frame := reader.latest()) is not None and frame.number > 3)
        frame = reader.latest()
    process.terminate()
    assert worker.end(process).code == 143
    assert frame.picture.shape[2] == 3
    assert frame.picture.std() > 0
    assert frame.step > 0


def test_pictures_of_forked_environments_arrive_too(worker, tmp_path):
    rings = tmp_path / "rings"
    rings.mkdir()
    worker.environ["MOSAIC_FASTLANE_DIR"] = str(rings)
    extras = {"fastlane_video_mode": "single", "algo_params": {"asynchronous": True, "num_envs": 2}}
    worker.run(**PPO, total_timesteps=1024, extras=extras)
    assert (rings / "main.ring").stat().st_size > 400 * 600 * 3


def test_episodes_are_recorded_as_videos(worker):
    done = worker.run(**DQN, total_timesteps=300, extras={"record": "every=5"})
    videos = [event for event in done.all("artifact") if event["kind"] == "video"]
    assert [event["path"] for event in videos] == [f"videos/episode-{n}.png" for n in range(0, 5 * len(videos), 5)]
    assert (done.folder / videos[0]["path"]).stat().st_size > 1000


def test_the_videos_of_the_script_itself_are_kept(worker):
    done = worker.run(**DQN, total_timesteps=300, extras={"capture_video": True})
    videos = [event["path"] for event in done.all("artifact") if event["kind"] == "video"]
    assert videos
    assert all((done.folder / path).stat().st_size > 1000 for path in videos)
    assert json.loads((done.folder / "analytics.json").read_text())["videos"] == videos


def test_a_saved_model_is_an_artifact_and_its_evaluation_does_not_advance_the_steps(worker):
    done = worker.run(**DQN, total_timesteps=600, extras={"algo_params": {"save_model": True}})
    (model,) = [event["path"] for event in done.all("artifact") if event["kind"] == "model"]
    assert (done.folder / model).name == "dqn.cleanrl_model"
    assert len(done.all("evaluation_episode")) == 3
    assert [e["return"] for e in done.all("evaluation_episode")] == [v for _, v in done.scalars["eval/episodic_return"]]
    assert done.one("run_completed")["step"] == 600
    assert max(e["step"] for e in done.all("episode")) <= 600
    manifest = json.loads((done.folder / "analytics.json").read_text())
    assert manifest["checkpoints"] == [model]
    assert manifest["tensorboard"] == [os.path.dirname(model)]  # noqa: PTH120 - a text in JSON
    assert manifest["logs"] == ["log.txt"]
    assert manifest["wandb"] is None


def test_environments_that_never_pass_make_are_reported_by_their_scalars(worker):
    done = worker.run(**faulty("scalars only"))
    assert [(e["step"], e["return"]) for e in done.all("episode")] == [(100, 0.0), (200, 10.0), (300, 20.0)]
    assert done.one("run_completed")["step"] == 300


def test_types_names_and_specs_are_what_a_script_expects(worker):
    worker.run(**faulty("types"))


def test_a_copy_of_an_environment_is_not_followed(worker):
    done = worker.run(**faulty("copy"))
    assert done.one("run_completed")["step"] == 100


def test_an_environment_that_cannot_be_followed_does_not_stop_the_script(worker):
    done = worker.run(**faulty("odd environment"))
    (warning,) = [e for e in done.all("log") if "no more episodes of environment 0" in e["message"]]
    assert warning["level"] == "warning"
    assert done.all("episode")


def test_prints_go_to_the_log_and_never_between_events(worker):
    done = worker.run(**faulty("print"))
    assert done.events[-1]["event"] == "run_completed"
    for line in ("straight to descriptor 1", '{"event": "run_completed", "ts": 1}', "to stderr"):
        assert line in done.log.splitlines()


def test_nothing_is_hooked_outside_a_run_and_a_shadowed_sitecustomize_still_runs(tmp_path):
    python, site = build("default")
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.was_here = True\n")
    startup = site / "cleanrl_worker" / "startup"
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
    assert answers[0].startswith("True gymnasium.envs.registration")


def test_a_hook_that_cannot_report_says_so_once_and_the_script_goes_on(tmp_path):
    python, site = build("default")
    environ = {
        **os.environ,
        "PYTHONPATH": f"{site / 'cleanrl_worker' / 'startup'}{os.pathsep}{site}",
        "MOSAIC_CLEANRL_COUNTERS": str(tmp_path / "not-there"),
        "MOSAIC_CLEANRL_JOURNAL": "1:1:/not/there",
    }
    code = "import gymnasium; [gymnasium.make('CartPole-v1').reset() for _ in range(3)]; print('played')"
    done = subprocess.run([python, "-c", code], env=environ, capture_output=True, text=True, check=True)
    assert done.stdout == "played\n"
    assert done.stderr.count("mosaic: nothing is reported") == 1


def test_tensorboard_files_are_whole_after_a_stop(worker):
    process = worker.start(**DQN, total_timesteps=1_000_000)
    worker.wait_for(process, lambda: len([e for e in worker.events() if e["event"] == "scalars"]) > 30)
    process.send_signal(signal.SIGTERM)
    done = worker.end(process)
    assert done.code == 143
    assert done.events[-1]["event"] == "run_cancelled"
    written = tensorboard_scalars(worker.python, worker.folder / "tensorboard")
    for tag, points in done.scalars.items():
        assert len(written[tag]) in {len(points), len(points) + 1}
