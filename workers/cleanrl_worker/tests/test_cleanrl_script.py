"""Mode script: shell scripts with several phases, whose Python processes are hooked."""

import signal

import pytest
from upstream_runs import Worker, checkout_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

TRAIN = 'python "$MOSAIC_UPSTREAM/cleanrl/dqn.py" --seed "$MOSAIC_SEED" --no-cuda --total-timesteps'


@pytest.fixture
def worker(tmp_path):
    return Worker("default", tmp_path / "run", checkout_of(tmp_path / "upstream"))


@pytest.fixture
def script(tmp_path):
    def write(text, name="train.sh"):
        path = tmp_path / name
        path.write_text(text)
        return {"seed": 4, "extras": {"mode": "script", "script": str(path)}}

    return write


def phases(done):
    return [(event["number"], event["total"], event["name"]) for event in done.all("phase")]


def test_phases_are_reported_and_their_steps_add_up(worker, script):
    text = f"""#!/usr/bin/env bash
# @description Two short trainings
# @phases warm up, main
# @total_timesteps 1_000
set -e
echo "@phase warm up"
{TRAIN} 400
echo "@phase main"
{TRAIN} 600
"""
    done = worker.run(**script(text))
    started = done.one("run_started")
    assert (started["task"], started["total_steps"], started["seed"]) == ("train.sh: Two short trainings", 1000, 4)
    assert phases(done) == [(1, 2, "warm up"), (2, 2, "main")]
    assert [value for _, value in done.scalars["progress/phase"]] == [1, 2]
    steps = [event["step"] for event in done.all("episode")]
    assert steps == sorted(steps)
    assert steps[0] < 100
    assert 900 < steps[-1] <= 1000
    # Step n of the second training is step 400 + n of the run.
    losses = [step for step, _ in done.scalars["losses/td_loss"]]
    assert losses == [300, 700, 800, 900]
    completed = done.one("run_completed")
    assert completed["step"] == 1000
    names = [(phase["name"], phase["steps"]) for phase in completed["summary"]["phases"]]
    assert [name for name, _ in names] == ["warm up", "main"]
    assert sum(count for _, count in names) == 1000
    assert len(list((done.folder / "tensorboard").iterdir())) >= 1


def test_a_script_that_announces_nothing_begins_a_phase_with_each_program(worker, script):
    done = worker.run(**script(f"# @phases 2\n{TRAIN} 300\n{TRAIN} 300\n"))
    assert phases(done) == [(1, 2, "phase 1"), (2, 2, "phase 2")]
    assert done.one("run_completed")["step"] == 600


def test_missing_and_unknown_phases_are_warnings(worker, script):
    done = worker.run(**script(f'# @phases a, b, c\necho "@phase z"\n{TRAIN} 400\n'))
    warnings = [event["message"] for event in done.all("log") if event["level"] == "warning"]
    assert warnings == [
        "phase 'z' is not among those of @phases: a, b, c",
        "1 of 3 phases began: a, b, c were expected",
    ]


def test_arguments_reach_the_script_and_its_output_the_log(worker, script):
    config = script(f'echo "first is $1" ; echo "to stderr" >&2\n{TRAIN} "$2"\n')
    config["extras"]["script_args"] = ["one two", "300"]
    done = worker.run(**config)
    assert {"first is one two", "to stderr"} <= set(done.log.splitlines())
    assert done.one("run_completed")["step"] == 300


def test_a_nonzero_exit_code_is_a_failure_with_the_last_lines(worker, script):
    done = worker.run(code=1, **script("echo working\necho 'the disk is on fire' >&2\nexit 7\n"))
    assert done.error == "train.sh ended with exit code 7: the disk is on fire"
    assert done.one("run_failed")["category"] == "application"


CRASH = 'python "$MOSAIC_UPSTREAM/cleanrl/c51.py" --fault crash --total-timesteps 100'


@pytest.mark.parametrize("command", [CRASH, f"{CRASH} | cat"])
def test_a_phase_that_crashes_ends_the_script_and_is_named(worker, script, command):
    text = f'# @phases one, two\necho "@phase one"\n{command}\necho "@phase two"\n{TRAIN} 300\n'
    done = worker.run(code=1, **script(text))
    first, *rest = done.error.splitlines()
    assert first == "train.sh, phase one, ended with exit code 1: RuntimeError: the sky fell"
    assert any('raise RuntimeError("the sky fell")' in line for line in rest)
    assert phases(done) == [(1, 2, "one")]


def test_a_script_may_ignore_a_failure(worker, script):
    done = worker.run(**script(f"set +e\n{CRASH}\n{TRAIN} 300\n"))
    assert done.one("run_completed")["step"] == 400


OWN = """
import gymnasium
from gymnasium.wrappers import TransformReward
from torch.utils.tensorboard import SummaryWriter
if __name__ == "__main__":
    wrappers = [lambda env: TransformReward(env, lambda reward: 7 * reward)]
    envs = gymnasium.make_vec("CartPole-v1", num_envs=2, vectorization_mode="MODE", wrappers=wrappers)
    envs.reset(seed=1)
    ended = 0
    for _ in range(300):
        _, _, terminated, truncated, _ = envs.step(envs.action_space.sample())
        ended += int((terminated | truncated).sum())
    envs.close()
    print("ended", ended)
    SummaryWriter("runs/own").add_scalar("losses/loss", 1.0, 600)
"""


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_environments_of_make_vec_report_too(worker, script, tmp_path, mode):
    (tmp_path / "own.py").write_text(OWN.replace("MODE", mode))
    done = worker.run(**script(f'python "{tmp_path}/own.py"\n'))
    ended = int(done.log.split("ended ")[1].split()[0])
    assert len(done.all("episode")) == ended > 10
    assert all(event["return"] == event["length"] for event in done.all("episode")), "what the environment gives"
    assert done.one("run_completed")["step"] == 600


def test_a_script_that_trains_nothing_has_failed(worker, script):
    error = worker.run(code=1, **script("echo done\n")).error
    assert error.startswith("train.sh ended with exit code 0 but reported no episode and no loss")


def test_nan_in_one_phase_ends_the_script(worker, script):
    text = 'python "$MOSAIC_UPSTREAM/cleanrl/c51.py" --fault nan || true\nsleep 100\necho "not reached"\n'
    done = worker.run(code=1, **script(text))
    assert done.error == "loss is NaN at step 100 (losses/loss)"
    assert "not reached" not in done.log
    assert worker.left() == []


def test_a_stop_ends_the_script_and_all_it_started(worker, script):
    process = worker.start(**script(f"sleep 1000 &\n{TRAIN} 1000000\n"))
    worker.wait_for_event(process, "episode")
    process.send_signal(signal.SIGTERM)
    done = worker.end(process)
    assert (done.code, done.events[-1]["event"]) == (143, "run_cancelled")
    assert worker.left() == []


def test_the_script_ends_when_its_worker_is_killed(worker, script):
    process = worker.start(**script(f"sleep 1000 &\n{TRAIN} 1000000\n"))
    worker.wait_for_event(process, "episode")
    process.kill()
    process.wait()
    for path in worker.folder.glob(".training-*/*"):
        path.unlink()
        path.parent.rmdir()
    assert worker.left() == []


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("train.py", "print(1)", "is not allowed: give the path of a shell script, *.sh"),
        ("train.sh", "# @total_timesteps many\n", "@total_timesteps 'many' is not allowed"),
        ("train.sh", None, "cannot be read"),
        ("train.sh", b"\xff\xfe", "cannot be read"),
    ],
)
def test_a_script_that_cannot_be_understood_is_refused(worker, tmp_path, name, text, message):
    path = tmp_path / name
    if text is not None:
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    refused = worker.run(code=2, extras={"mode": "script", "script": str(path)}).one("run_failed")
    assert message in refused["error"]
    assert refused["category"] == "configuration"
