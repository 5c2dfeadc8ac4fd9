"""Runs of upstream scripts: the arguments passed on, the configs refused, and every way to end."""

import json
import os
import signal
import subprocess

import pytest
from upstream_runs import Worker, checkout_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

DQN = {"algo": "dqn", "env_id": "CartPole-v1", "total_timesteps": 300, "seed": 3}
TWO = [{"env_id": "CartPole-v1", "steps": 10}, {"env_id": "CartPole-v1"}]
FAULT = {"algo": "c51", "env_id": "CartPole-v1", "total_timesteps": 100, "seed": 3}


@pytest.fixture
def worker(tmp_path):
    return Worker("default", tmp_path / "run", checkout_of(tmp_path / "upstream"))


def faulty(fault):
    return {**FAULT, "extras": {"algo_params": {"fault": fault}}}


def plan(worker, **config):
    return worker.run("--dry-run", **{**DQN, **config}).events[-1]["plan"]


def refusal(worker, **config):
    """Return the problems that a dry run lists."""
    return "\n".join(worker.run("--dry-run", code=2, **{**DQN, **config}).events[-1]["problems"])


# Arguments.


def test_a_dry_run_says_what_would_run(worker):
    extras = {"algo_params": {"learning_rate": 1e-5, "buffer_size": 1e3, "v_min": -3, "save_model": True}}
    found = plan(worker, extras=extras)
    assert (found["mode"], found["module"], found["upstream"]) == ("train", "cleanrl.dqn", "checkout")
    assert found["task"] == "dqn on CartPole-v1"
    assert found["arguments"] == [
        *("--seed", "3", "--no-cuda", "--no-track", "--wandb-project-name", "cleanRL", "--no-capture-video"),
        *("--save-model", "--env-id", "CartPole-v1", "--total-timesteps", "300"),
        *("--learning-rate", "1e-05", "--buffer-size", "1000", "--v-min=-3"),
    ]
    assert not (worker.folder / "tensorboard").exists()


def test_a_gpu_is_asked_for_by_either_name(worker):
    assert "--cuda" in plan(worker, extras={"cuda": True})["arguments"]
    assert "--cuda" in plan(worker, extras={"use_cuda": True})["arguments"]


def test_run_started_says_what_runs_and_a_seed_is_drawn_and_used(worker):
    done = worker.run(**{**DQN, "seed": None}, extras={"tensorboard_dir": "logs/tb"})
    started = done.one("run_started")
    assert (started["task"], started["env_id"], started["total_steps"]) == ("dqn on CartPole-v1", "CartPole-v1", 300)
    assert {"python", "torch", "gymnasium", "numpy"} <= started["versions"].keys()
    assert started["seed"] == started["config"]["seed"] > 0
    settings = started["config"]["extras"]["algo_params"]
    assert (settings["buffer_size"], settings["save_model"]) == (10000, False), "the script's own defaults"
    (folder,) = (done.folder / "logs" / "tb").iterdir()
    assert folder.name.startswith(f"CartPole-v1__dqn__{started['seed']}__")
    assert done.events[-1]["event"] == "run_completed"
    assert [e["path"] for e in done.all("artifact") if e["kind"] == "manifest"] == ["analytics.json"]


def test_a_drawn_seed_is_the_same_in_every_attempt_of_a_run_and_another_in_another_run(tmp_path):
    upstream, seeds = checkout_of(tmp_path / "upstream"), []
    for number, run_id in enumerate(("one", "one", "two")):
        worker = Worker("default", tmp_path / str(number), upstream)
        seeds.append(worker.run(**{**DQN, "seed": None, "run_id": run_id}).one("run_started")["seed"])
    assert seeds[0] == seeds[1] != seeds[2]


def test_a_nested_config_runs_too(worker):
    worker.folder.mkdir()
    document = {"run_id": "r2", "metadata": {"worker": {"name": "cleanrl", "config": DQN}}}
    assert worker.run("--dry-run", **document).events[0]["config"]["total_timesteps"] == 300


# Refusals.


def test_a_run_refuses_what_a_dry_run_refuses_and_never_starts(worker):
    (failed,) = worker.run(code=2, **{**DQN, "env_id": "Pendulum-v1"}).events
    assert (failed["event"], failed["category"]) == ("run_failed", "configuration")
    assert failed["error"] == refusal(worker, env_id="Pendulum-v1")


def test_an_unknown_algorithm_is_refused_with_near_names(worker):
    error = refusal(worker, algo="dqnn")
    assert "algo: 'dqnn' is not allowed: no such algorithm; did you mean 'dqn'" in error


def test_an_algorithm_that_this_upstream_does_not_have_is_refused(worker):
    assert "td3_continuous_action" in refusal(worker, algo="td3_continuous_action", env_id="Pendulum-v1")


def test_without_an_upstream_the_refusal_says_how_to_get_one(worker):
    del worker.environ["MOSAIC_UPSTREAM"]
    assert "mosaic workers install cleanrl --upstream" in refusal(worker)


@pytest.mark.parametrize(
    ("env_id", "message"),
    [
        ("CartPol-v1", "env_id: 'CartPol-v1' is not allowed: no such environment among the"),
        ("CartPole-v77", "did you mean 'CartPole-v1'"),
        ("no_such_module:X-v0", "module 'no_such_module' cannot be imported"),
        (
            "Pendulum-v1",
            "dqn needs a discrete action space; Pendulum-v1 has Box(-2.0, 2.0, (1,)). Try sac_continuous_action.",
        ),
    ],
)
def test_an_environment_that_does_not_fit_is_refused(worker, env_id, message):
    assert message in refusal(worker, env_id=env_id)


def test_continuous_algorithms_refuse_discrete_actions(tmp_path):
    upstream = checkout_of(tmp_path / "upstream", sac_continuous_action="dqn")
    worker = Worker("default", tmp_path / "run", upstream)
    error = refusal(worker, algo="sac_continuous_action")
    assert error == "sac_continuous_action needs a continuous action space; CartPole-v1 has Discrete(2). Try ppo."


def test_environments_of_atari_and_minigrid_and_of_modules_are_known(worker):
    for env_id in ("ALE/Pong-v5", "MiniGrid-Empty-5x5-v0", "gymnasium.envs:CartPole-v1"):
        assert plan(worker, env_id=env_id)["task"] == f"dqn on {env_id}"


def test_hyperparameters_are_refused_by_name(worker):
    params = {"learning_rat": 0.1, "gamma": "high", "batch_size": 1.5, "save_model": 1, "seed": 7, "env_id": 3}
    problems = refusal(worker, extras={"algo_params": params}).splitlines()
    assert "did you mean 'learning_rate' or 'learning_starts'?" in problems[0]
    assert [problem.partition(" is not allowed: ")[::2] for problem in problems][1:] == [
        ("extras.algo_params.gamma: 'high'", "a number is needed, as in 0.99"),
        ("extras.algo_params.batch_size: 1.5", "a whole number is needed, as in 64"),
        ("extras.algo_params.save_model: 1", "true or false is needed, as in False"),
        ("extras.algo_params.seed: 7", "give it as seed"),
        ("extras.algo_params.env_id: 3", "give it as env_id"),
    ]


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"extras": {"mode": "policy_eval", "policy_path": "/not/there"}}, "extras.policy_path: '/not/there'"),
        (
            {"algo": "ppo", "extras": {"mode": "resume_training", "checkpoint_path": "/not/there"}},
            "extras.checkpoint_path: '/not/there'",
        ),
        ({"extras": {"fastlane_video_mode": "double"}}, "extras.fastlane_video_mode: 'double' is not allowed"),
        ({"total_timesteps": 0}, "total_timesteps: 0 is not allowed: train needs it"),
        ({"env_id": ""}, "env_id: '' is not allowed: train needs it"),
        (
            {"algo": "ppo", "extras": {"mode": "resume_training", "checkpoint_path": "x", "curriculum_schedule": TWO}},
            "is not allowed: the checkpoint has the schedule; leave it out",
        ),
        (
            {"extras": {"mode": "policy_eval", "policy_path": "x", "curriculum_schedule": "BABYAI_GOTO_CURRICULUM"}},
            "extras.curriculum_schedule: 'BABYAI_GOTO_CURRICULUM' is not allowed: policy_eval follows none",
        ),
    ],
)
def test_what_cannot_run_is_refused(worker, config, message):
    assert message in refusal(worker, **config)


# Endings.


def test_a_crash_is_reported_with_the_last_lines(worker):
    done = worker.run(code=1, **faulty("crash"))
    failed = done.one("run_failed")
    assert failed["category"] == "application"
    first, *rest = failed["error"].splitlines()
    assert first == "c51 ended with exit code 1: RuntimeError: the sky fell"
    assert any('raise RuntimeError("the sky fell")' in line for line in rest)
    assert failed["step"] == 100
    assert "the last thing it printed" in done.log
    assert done.all("episode")
    assert (done.folder / "analytics.json").exists()


def test_a_segmentation_fault_is_reported(worker):
    assert worker.run(code=1, **faulty("segfault")).error.startswith("c51 was killed by signal 11")


def test_a_loss_that_is_nan_stops_the_run(worker):
    done = worker.run(code=1, **faulty("nan"))
    assert done.error == "loss is NaN at step 100 (losses/loss)"
    assert done.one("run_failed")["category"] == "application"
    assert "this line is never reached" not in done.log
    assert done.scalars["losses/loss"] == [(100, 1.5), (100, "NaN")]


def test_exit_code_0_without_episode_and_loss_is_a_failure(worker):
    done = worker.run(code=1, **faulty("silence"))
    assert done.error.startswith("c51 ended with exit code 0 but reported no episode and no loss")


def test_a_run_without_a_loss_gets_a_warning(worker):
    done = worker.run(**faulty("no loss"))
    (warning,) = [event["message"] for event in done.all("log") if event["level"] == "warning"]
    assert warning == "c51 reported no loss in 100 steps"


def hanging_script(worker):
    process = worker.start(**faulty("hang"))
    worker.wait_for(process, lambda: "hanging" in worker.log())
    return process, int(worker.log().split("hanging ")[1].split()[0])


def test_a_stop_ends_every_process_even_one_that_ignores_sigterm(worker):
    process, _ = hanging_script(worker)
    assert len(worker.processes()) >= 5  # worker, keeper, script, bash, sleep
    process.send_signal(signal.SIGTERM)
    done = worker.end(process)
    assert (done.code, done.events[-1]["event"], done.events[-1]["reason"]) == (143, "run_cancelled", "SIGTERM")
    assert done.events[-1]["step"] == 110
    assert worker.left() == []
    assert (done.folder / "analytics.json").exists()


def test_a_killed_script_is_reported_and_leaves_nothing(worker):
    process, script = hanging_script(worker)
    os.kill(script, signal.SIGKILL)
    done = worker.end(process)
    assert done.code == 1
    assert done.error.startswith("c51 was killed by signal 9")
    assert worker.left() == []


def test_a_killed_worker_leaves_its_counters_and_nothing_else(worker):
    process, _ = hanging_script(worker)
    process.kill()
    process.wait()
    (left,) = worker.folder.glob(".training-*")  # no process is left to remove it
    for path in left.iterdir():
        path.unlink()
    left.rmdir()
    assert worker.left() == []


def test_a_killed_keeper_is_reported_and_leaves_nothing(worker):
    process, script = hanging_script(worker)
    keeper = int(subprocess.check_output(["ps", "-o", "ppid=", "-p", str(script)]))
    os.kill(keeper, signal.SIGKILL)
    done = worker.end(process)
    assert done.error.startswith("c51 was killed by signal 9")
    assert worker.left() == []


def test_heartbeats_report_the_step(worker):
    worker.environ["MOSAIC_HEARTBEAT_S"] = "0.5"
    process = worker.start(**faulty("hang"))
    worker.wait_for(process, lambda: any(e["event"] == "heartbeat" and e.get("step") == 110 for e in worker.events()))
    process.terminate()
    assert worker.end(process).code == 143


# Weights & Biases.


def test_weights_and_biases_is_off_by_default_and_offline_runs_stay_in_the_run_folder(worker):
    assert not (worker.run(**DQN).folder / "wandb").exists()
    (worker.folder / "journal.jsonl").unlink()
    done = worker.run(**DQN, extras={"track_wandb": True, "wandb_project_name": "mine", "wandb_entity": "us"})
    (written,) = (done.folder / "wandb").rglob("*.wandb")
    assert b"charts/episodic_return" in written.read_bytes(), "what goes to TensorBoard goes there, too"
    wandb = json.loads((done.folder / "analytics.json").read_text())["wandb"]
    assert wandb == {
        "project": "mine",
        "entity": "us",
        "mode": "offline",
        "dir": "wandb",
        "runs": [written.parent.name.rsplit("-", 1)[-1]],
    }
