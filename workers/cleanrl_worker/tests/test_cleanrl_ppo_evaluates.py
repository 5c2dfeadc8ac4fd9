"""Evaluation while our ppo trains: it plays fixed episodes, keeps the best model and leaves training unchanged."""

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

TRAINING = {"algo": "ppo", "env_id": "CartPole-v1", "total_timesteps": 6144, "seed": 1}
EVALUATED = {"eval_every": 1024, "eval_episodes": 6, "checkpoint_keep": 1}
FIRST_SEED = 1_000_000


@pytest.fixture(scope="module")
def evaluated(worker_in, tmp_path_factory):
    worker = worker_in(tmp_path_factory.mktemp("evaluated"))
    return worker, worker.run(**TRAINING, extras=EVALUATED)


def scores(events):
    """Return the mean return of each evaluation, by step."""
    return {
        event["step"]: event["values"]["eval/return_mean"]
        for event in events["scalars"]
        if "eval/return_mean" in event["values"]
    }


def test_every_evaluation_plays_the_same_episodes_and_is_reported(evaluated):
    _, events = evaluated
    found = scores(events)
    assert list(found) == [1024, 2048, 3072, 4096, 5120, 6144]
    for step, score in found.items():
        played = [event for event in events["evaluation_episode"] if event["step"] == step]
        assert [event["seed"] for event in played] == list(range(FIRST_SEED, FIRST_SEED + 6))
        assert score == pytest.approx(sum(event["return"] for event in played) / 6)


def test_the_best_model_is_marked_and_kept_and_reproduces_its_score(evaluated, worker_in, tmp_path):
    worker, events = evaluated
    best = [event for event in events["checkpoint_saved"] if event.get("best")]
    rising, highest = [], float("-inf")
    for step, score in scores(events).items():
        if score > highest:
            highest = score
            rising.append((step, score))
    assert [(event["step"], event["score"]) for event in best] == rising
    path = worker.folder / best[-1]["path"]
    assert path.is_file()
    assert len(list(path.parent.iterdir())) <= 2, "the best, and the newest"
    summary = events["run_completed"][0]["summary"]
    assert (summary["best_checkpoint"], summary["best_score"]) == (best[-1]["path"], best[-1]["score"])
    again = worker_in(tmp_path).run(
        algo="ppo", seed=FIRST_SEED, extras={"mode": "policy_eval", "policy_path": str(path), "eval_episodes": 6}
    )
    assert again["run_completed"][0]["summary"]["return_mean"] == best[-1]["score"]


def test_a_training_is_the_same_with_and_without_evaluation(evaluated, worker_in, tmp_path):
    _, events = evaluated
    plain = worker_in(tmp_path).run(**TRAINING)
    for name in ("return", "length", "step"):
        assert [event[name] for event in plain["episode"]] == [event[name] for event in events["episode"]]
    assert "evaluation_episode" not in plain
    assert not any("best" in event for event in plain["checkpoint_saved"])


RAISE_THE_BAR = """
import json, torch
content = torch.load({path!r}, weights_only=True)
about = json.loads(content["about"])
about.update(best_score=1e9, target=about["step"] + 2048)
torch.save({{**content, "about": json.dumps(about)}}, "bar.cleanrl_model")
print(json.dumps(about["step"]))
"""


def test_a_retry_remembers_the_best_score_of_the_attempt_before(evaluated, cleanrl):
    worker, events = evaluated
    path = str(worker.folder / events["checkpoint_saved"][-1]["path"])
    step = cleanrl.python_says(RAISE_THE_BAR.format(path=path))
    resume = {"path": str(cleanrl.folder / "bar.cleanrl_model"), "step": step}
    resumed = cleanrl.run(**TRAINING, extras=EVALUATED, resume=resume)
    assert len(scores(resumed)) == 2
    assert not any("best" in event for event in resumed["checkpoint_saved"])


def test_eval_every_is_refused_in_mode_policy_eval(cleanrl):
    (said,) = cleanrl.refusals({"extras": {"mode": "policy_eval", "policy_path": "/x", "eval_every": 5}})
    assert said.startswith("extras.eval_every: ")


def test_all_effective_hyperparameters_are_recorded(evaluated, worker_in, tmp_path):
    worker, events = evaluated
    recorded = events["run_started"][0]["config"]
    settings = recorded["extras"]["algo_params"]
    assert {"learning_rate", "num_envs", "gamma", "vf_coef", "clip_coef", "update_epochs"} <= settings.keys()
    assert (settings["num_envs"], settings["gamma"]) == (4, 0.99)
    assert recorded["extras"]["eval_every"] == 1024
    path = str(worker.folder / events["checkpoint_saved"][-1]["path"])
    extras = {"mode": "resume_training", "checkpoint_path": path, "algo_params": {"gamma": 0.9, "num_envs": 2.0}}
    resumed = worker_in(tmp_path).run(algo="ppo", total_timesteps=512, extras=extras)
    there = resumed["run_started"][0]["config"]["extras"]["algo_params"]
    assert {name: there[name] for name in settings if there[name] != settings[name]} == {"gamma": 0.9, "num_envs": 2}
