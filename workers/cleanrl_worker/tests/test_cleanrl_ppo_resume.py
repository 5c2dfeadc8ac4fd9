"""Resuming after a stop or a kill: the learning curve continues, and the steps add up."""

import random
import signal
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

LONG = {"algo": "ppo", "env_id": "CartPole-v1", "total_timesteps": 1_000_000, "seed": 1}
QUICK = {**LONG, "total_timesteps": 2048}
KEPT = 10
"""The default of checkpoint_keep."""
GRACE_S = 10
"""Seconds that the platform waits between SIGTERM and SIGKILL."""
MALICE = """
import os, pickle
class Bomb:
    def __reduce__(self):
        return os.system, ("touch exploded",)
pickle.dump(Bomb(), open("bomb.cleanrl_model", "wb"))
import torch
torch.save({"a": Bomb()}, "torch-bomb.cleanrl_model")
torch.save({"layer.weight": torch.zeros(2, 2)}, "foreign.cleanrl_model")
print(0)
"""


def resume(path, step=None):
    return {"path": str(path), "step": step}


def newest(folder):
    files = (folder / "checkpoints").glob("step-*.cleanrl_model")
    return max(files, key=lambda path: int(path.stem.removeprefix("step-")))


def test_sigterm_saves_a_checkpoint_and_the_next_attempt_resumes_from_it(cleanrl, tmp_path):
    with cleanrl.start(**LONG) as run:
        run.wait_until(lambda events: len(events.get("scalars", [])) > 3)
        assert run.signal(signal.SIGTERM) == 143
        events = run.events()
    (saved,) = events["checkpoint_saved"][-1:]
    assert events["run_cancelled"][0]["reason"] == "SIGTERM"
    assert saved["step"] == events["scalars"][-1]["step"], "all that was learned is in it"
    with cleanrl.start(**LONG, resume=resume(tmp_path / saved["path"], saved["step"])) as run:
        run.wait_until(lambda events: len(events.get("scalars", [])) > 1)
        assert run.signal(signal.SIGTERM) == 143
        after = run.events()
    assert after["checkpoint_loaded"][0]["step"] == saved["step"]
    assert [event["step"] for event in after["scalars"]][:2] == [saved["step"] + 512, saved["step"] + 1024]
    assert after["episode"][0]["episode"] > events["episode"][-1]["episode"], "episodes are counted on"


def test_sigterm_in_a_long_update_saves_what_was_learned_before_it(worker_in, tmp_path):
    # An untrained agent's episode of MountainCar takes 200 steps. The update begins when the episode ends.
    config = {"algo": "ppo", "env_id": "MountainCar-v0", "total_timesteps": 400, "seed": 1}
    first = worker_in(tmp_path / "first")
    params = {"num_envs": 1, "num_steps": 200}
    before = first.run(**config, extras={"algo_params": params})["checkpoint_saved"][-1]
    path = str(first.folder / before["path"])
    endless = {"mode": "resume_training", "checkpoint_path": path, "algo_params": {"update_epochs": 1_000_000_000}}
    second = worker_in(tmp_path / "second")
    with second.start(**config, extras=endless) as run:
        run.wait_until(lambda events: events.get("episode"))
        assert run.signal(signal.SIGTERM, deadline_s=GRACE_S) == 143
        events = run.events()
    assert "scalars" not in events, "the update was not finished"
    (saved,) = events["checkpoint_saved"]
    assert (before["step"], saved["step"]) == (400, 400)
    third = worker_in(tmp_path / "third")
    extras = {"mode": "resume_training", "checkpoint_path": str(second.folder / saved["path"])}
    after = third.run(algo="ppo", total_timesteps=200, extras={**extras, "algo_params": {"update_epochs": 1}})
    assert [event["step"] for event in after["scalars"]] == [600]


def test_a_new_attempt_has_the_budget_of_the_one_before(cleanrl, tmp_path):
    whole = cleanrl.run(**QUICK, extras={"checkpoint_every": 512})
    assert [event["step"] for event in whole["checkpoint_saved"]] == [512, 1024, 1536, 2048]
    done = cleanrl.run(**QUICK, resume=resume(tmp_path / "checkpoints/step-1024.cleanrl_model"))
    assert done["run_completed"][0]["summary"]["steps"] == 2048
    assert [event["values"]["charts/learning_rate"] for event in done["scalars"]] == [
        event["values"]["charts/learning_rate"] for event in whole["scalars"][2:]
    ]
    again = cleanrl.run(**QUICK, resume=resume(tmp_path / "checkpoints/step-2048.cleanrl_model"))
    assert again["run_completed"][0]["summary"]["steps"] == 2048
    assert "scalars" not in again, "there was nothing left to do"


def test_a_new_attempt_of_a_resumed_training_does_not_need_the_original_checkpoint(worker_in, tmp_path):
    first = worker_in(tmp_path / "first")
    began = first.folder / first.run(**QUICK)["checkpoint_saved"][-1]["path"]
    extras = {"mode": "resume_training", "checkpoint_path": str(began), "checkpoint_every": 512}
    second = worker_in(tmp_path / "second")
    config = {"algo": "ppo", "total_timesteps": 1024, "extras": extras}
    saved = second.run(**config)["checkpoint_saved"]
    assert [event["step"] for event in saved] == [2048 + 512, 2048 + 1024]
    began.unlink()
    events = worker_in(tmp_path / "third").run(**config, resume=resume(second.folder / saved[0]["path"]))
    assert events["run_started"][0]["total_steps"] == 2048 + 1024
    assert events["run_completed"][0]["summary"]["steps"] == 2048 + 1024


def test_only_the_newest_checkpoints_are_kept(cleanrl, tmp_path):
    events = cleanrl.run(**QUICK, extras={"checkpoint_every": 512, "checkpoint_keep": 2})
    assert [event["step"] for event in events["checkpoint_saved"]] == [512, 1024, 1536, 2048]
    kept = {path.name for path in (tmp_path / "checkpoints").iterdir()}
    assert kept == {"step-1536.cleanrl_model", "step-2048.cleanrl_model"}


def test_kill_9_at_any_moment_leaves_whole_checkpoints_and_the_steps_add_up(worker_in, tmp_path):
    # This run spends almost all of its time saving, so most kills interrupt a save.
    often = {"checkpoint_every": 1, "algo_params": {"num_steps": 2, "num_minibatches": 1, "update_epochs": 1}}
    moments, given, step = random.Random(5), None, 0
    for attempt in range(4):
        worker = worker_in(tmp_path / f"attempt-{attempt}")
        with worker.start(**LONG, extras=often, **({"resume": given} if given else {})) as run:
            count = moments.randint(2 * KEPT, 6 * KEPT)
            run.wait_until(lambda events, count=count: len(events.get("checkpoint_saved", [])) > count)
            assert run.signal(signal.SIGKILL) == -signal.SIGKILL
            events = run.events()
        told = [event["step"] for event in events["checkpoint_saved"]]
        assert told == list(range(step + 8, told[-1] + 1, 8)), "eight steps an update, and none left out or repeated"
        path = newest(worker.folder)
        kept = int(path.stem.removeprefix("step-"))
        assert kept in {told[-1], told[-1] + 8}, "what was reported is there; the next may be, too"
        code = """
import json
from pathlib import Path
from cleanrl_worker.checkpoints import load
print(json.dumps([load(p, "it").about.step for p in Path("checkpoints").glob("step-*")]))
"""
        whole = worker.python_says(code)
        assert max(whole) == kept
        assert set(told[-KEPT:]) <= set(whole), "every file under a final name can be read"
        assert len(whole) <= KEPT + 1, "the oldest goes when a new one is there and reported"
        given, step = resume(path, kept), kept
    worker = worker_in(tmp_path / "last")
    # The budget of a million steps is stored in the checkpoint. Lower it there to save half of the test's time.
    shortened = worker.python_says(f"""
import dataclasses, json
from pathlib import Path
from cleanrl_worker.checkpoints import load, save
saved = load(Path({given["path"]!r}), "it")
saved = dataclasses.replace(saved, about=dataclasses.replace(saved.about, target={step + 800}))
print(json.dumps(str(save(saved, Path("shortened")))))
""")
    done = worker.run(**LONG, extras=often, resume=resume(worker.folder / shortened, step))
    assert done["run_completed"][0]["summary"]["steps"] == step + 800
    assert done["scalars"][0]["step"] == step + 8


def test_resume_training_adds_its_steps_and_keeps_what_was_learned(worker_in, tmp_path):
    settings = {"learning_rate": 2e-3, "update_epochs": 6, "ent_coef": 0.0}
    first = worker_in(tmp_path / "first")
    trained = first.run(**{**LONG, "total_timesteps": 16_384}, extras={"algo_params": settings})
    path = first.folder / trained["checkpoint_saved"][-1]["path"]
    second = worker_in(tmp_path / "second")
    extras = {"mode": "resume_training", "checkpoint_path": str(path)}
    events = second.run(algo="ppo", total_timesteps=4096, extras=extras)
    assert events["checkpoint_loaded"][0]["step"] == 16_384
    assert [event["step"] for event in events["scalars"]] == list(range(16_384 + 512, 20_481, 512))
    assert events["run_completed"][0]["summary"]["steps"] == 20_480
    rate = events["scalars"][0]["values"]["charts/learning_rate"]
    assert rate == pytest.approx(2e-3 * 4096 / 20_480), "its settings are kept"
    before, after = (
        [event["return"] for event in episodes] for episodes in (trained["episode"][-20:], events["episode"][:20])
    )
    mean = {"before": sum(before) / len(before), "after": sum(after) / len(after)}
    assert mean["before"] > 100, "it had learned something"
    assert mean["after"] > mean["before"] / 2, f"and still knows it: {mean}"


FOREIGN = {
    "nowhere.cleanrl_model": "no such file",
    "nothing-in-it": "there is no .cleanrl_model file in",
    "garbage.cleanrl_model": "is no file of trained weights",
    "empty.cleanrl_model": "is no file of trained weights",
    "torn.cleanrl_model": "is no file of trained weights",
    "bomb.cleanrl_model": "never code",
    "torch-bomb.cleanrl_model": "never code",
    "foreign.cleanrl_model": "was not saved by this worker's ppo",
}


def resumed(path, **config):
    return {
        "algo": "ppo",
        "total_timesteps": 100,
        "seed": 1,
        **config,
        "extras": {"mode": "resume_training", "checkpoint_path": str(path)},
    }


def test_foreign_checkpoints_are_refused_and_never_run(cleanrl, tmp_path, foreign):
    (foreign / "nothing-in-it").mkdir()
    said = cleanrl.refusals(*(resumed(foreign / name) for name in FOREIGN))
    for (name, message), text in zip(FOREIGN.items(), said, strict=True):
        assert text.startswith("extras.checkpoint_path: ")
        assert name in text
        assert message in text
    assert not list(tmp_path.glob("exploded"))


def test_a_checkpoint_whose_insides_do_not_fit_is_refused(cleanrl, foreign):
    changed = cleanrl.python_says(f"""
import dataclasses, json, torch
from pathlib import Path
from cleanrl_worker.checkpoints import load, save
saved = load(Path({str(foreign)!r}) / "step-512.cleanrl_model", "it")
wrong = {{**saved.weights, "actor.weight": torch.zeros(3, 64)}}
paths = [save(dataclasses.replace(saved, weights=wrong), Path("one"))]
about = dataclasses.replace(saved.about, agent="minigrid")
paths.append(save(dataclasses.replace(saved, about=about), Path("two")))
about = dataclasses.replace(saved.about, env_id="Acrobot-v1")
paths.append(save(dataclasses.replace(saved, about=about), Path("three")))
print(json.dumps([str(path) for path in paths]))
""")
    other = resumed(foreign / "step-512.cleanrl_model", env_id="Acrobot-v1")
    said = cleanrl.refusals(*map(resumed, changed), other)
    assert "size mismatch for actor.weight" in said[0]
    assert "it is of an agent 'minigrid', this one is 'mlp'" in said[1]
    assert "its observation_space is" in said[2]
    assert "was trained on CartPole-v1, but env_id is Acrobot-v1" in said[3]


@pytest.fixture(scope="module")
def foreign(worker_in, tmp_path_factory):
    """A folder with one valid checkpoint and several invalid files."""
    folder = tmp_path_factory.mktemp("foreign")
    worker = worker_in(folder)
    worker.python_says(MALICE)
    made = worker.run(**{**QUICK, "total_timesteps": 512})
    whole = folder / made["checkpoint_saved"][-1]["path"]
    Path(folder / "step-512.cleanrl_model").write_bytes(whole.read_bytes())
    (folder / "torn.cleanrl_model").write_bytes(whole.read_bytes()[:5000])
    (folder / "garbage.cleanrl_model").write_bytes(b"not a model" * 100)
    (folder / "empty.cleanrl_model").write_bytes(b"")
    for name in ("checkpoints", "tensorboard"):
        for path in (folder / name).iterdir():
            path.unlink()
        (folder / name).rmdir()
    return folder
