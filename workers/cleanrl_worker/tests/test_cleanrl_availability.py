"""In the real environments: which algorithms run, what the others need, how hyperparameters are checked."""

import json
import os
import subprocess
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

HYPERPARAMETERS = '''
@dataclass
class Args:
    exp_name: str = "x"
    """the name"""
    seed: int = 1
    """the seed"""
    env_id: str = "CartPole-v1"
    """the environment"""
    total_timesteps: int = 500
    """the budget"""
    learning_rate: float = 2.5e-4
    """the learning rate of the optimizer"""
    buffer_size: int = 10000
    """the size of the memory"""
    anneal_lr: bool = False
    """let the learning rate fall"""
    target_kl: float = None
    """the divergence at which to stop"""

    # to be filled in runtime
    batch_size: int = 0
'''
TOP = "import numpy as np\nimport torch\nfrom dataclasses import dataclass\n"


@pytest.fixture
def checkout(tmp_path):
    """A small checkout of ours in the shape of CleanRL's."""
    scripts = {
        "cleanrl/ppo.py": TOP,
        "cleanrl/dqn.py": f"{TOP}import tyro\nfrom cleanrl_utils.buffers import ReplayBuffer\n{HYPERPARAMETERS}",
        "cleanrl/dqn_jax.py": f"{TOP}import flax.linen as nn\nimport jax.numpy as jnp\nimport jax\n{HYPERPARAMETERS}",
        "cleanrl/c51.py": f"{TOP}from cleanrl_utils.tricks import trick\n{HYPERPARAMETERS}",
        "cleanrl/pqn.py": "print('no arguments at all')\n",
        "cleanrl_utils/__init__.py": "",
        "cleanrl_utils/buffers.py": "import torch\n\n\ndef later():\n    import wandb_that_is_not_there\n",
        "cleanrl_utils/tricks.py": "import tricks_library\nimport cleanrl_utils.buffers\n",
    }
    folder = tmp_path / "checkout"
    for name, source in scripts.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(source)
    return folder


def described(worker, upstream=None):
    if upstream is not None:
        worker.environ["MOSAIC_UPSTREAM"] = str(upstream)
    done = worker.module("cleanrl_worker.cli", "--describe")
    assert done.returncode == 0, done.stderr
    description = json.loads(done.stdout)
    return description, {card["name"]: card for card in description["algorithms"]}


def git(folder, *words):
    who = ["-c", "user.name=x", "-c", "user.email=x@example.org"]
    done = subprocess.run(["git", "-C", folder, *who, *words], check=True, capture_output=True, text=True)
    return done.stdout.strip()


def test_default_without_a_checkout_runs_ours_and_says_what_the_others_need(make_cleanrl):
    description, cards = described(make_cleanrl())
    assert [name for name, card in cards.items() if card["runs"]] == ["ppo"]
    assert cards["ppo"]["source"] == f"cleanrl_worker {description['metadata']['version']}"
    assert {"learning_rate", "num_steps", "gae_lambda"} <= {each["name"] for each in cards["ppo"]["parameters"]}
    assert description["metadata"]["upstream_version"] is None
    assert cards["dqn"]["profiles"] == ["default", "legacy"]
    assert cards["dqn"]["needs"] == (
        "dqn runs in profile legacy (mosaic submit --profile legacy …), "
        "or here with a checkout: mosaic workers install cleanrl --upstream PATH"
    )
    assert cards["dqn_atari"]["needs"] == (
        "dqn_atari runs with a checkout of CleanRL: mosaic workers install cleanrl --upstream PATH"
    )
    assert "downloads a trained teacher" in cards["qdagger_dqn_atari_impalacnn"]["needs"]
    assert cards["ppo_atari_envpool_xla_jax"]["profiles"] == []


def test_default_with_a_checkout_runs_what_its_packages_allow_and_names_those_that_are_missing(make_cleanrl, checkout):
    description, cards = described(make_cleanrl(), checkout)
    assert [name for name, card in cards.items() if card["runs"]] == ["ppo", "dqn"]
    assert [each["name"] for each in cards["dqn"]["parameters"]] == [
        "learning_rate",
        "buffer_size",
        "anneal_lr",
        "target_kl",
    ]
    assert cards["dqn_jax"]["needs"] == "dqn_jax needs flax, jax, which no profile of this worker has"
    assert cards["c51"]["needs"] == "c51 needs tricks_library, which no profile of this worker has"
    assert "the arguments of" in cards["pqn"]["needs"]
    assert "neither a class Args nor a call of add_argument" in cards["pqn"]["needs"]
    assert cards["ppo_atari"]["needs"].startswith(
        f"ppo_atari needs {checkout}/cleanrl/ppo_atari.py, which is not there"
    )
    assert cards["dqn"]["source"] == f"checkout {description['metadata']['upstream_version']}"
    assert description["metadata"]["upstream_version"].startswith("files-")


def test_version_of_a_checkout_is_its_commit_and_says_whether_it_was_edited(make_cleanrl, checkout):
    worker = make_cleanrl()
    git(checkout, "init", "--quiet")
    git(checkout, "add", ".")
    git(checkout, "commit", "--quiet", "-m", "first")
    git(checkout, "tag", "v1")
    commit = git(checkout, "rev-parse", "--short=7", "HEAD")
    _, cards = described(worker, checkout)
    assert cards["dqn"]["source"] == f"checkout {commit}"
    with (checkout / "cleanrl" / "dqn.py").open("a") as file:
        file.write("\n# edited\n")
    _, cards = described(worker)
    assert cards["dqn"]["source"] == f"checkout {commit}+dirty"
    # A folder that happens to lie in somebody's repository has no commit of its own.
    _, cards = described(worker, (checkout / ".git").rename(checkout.parent / ".git").parent / "checkout")
    assert cards["dqn"]["source"].startswith("checkout files-")


def test_legacy_runs_the_six_of_the_package_and_sends_the_others_to_default(make_cleanrl):
    description, cards = described(make_cleanrl("legacy"))
    running = {name for name, card in cards.items() if card["runs"]}
    assert running == {
        "ppo",
        "ppo_continuous_action",
        "dqn",
        "c51",
        "ddpg_continuous_action",
        "td3_continuous_action",
        "sac_continuous_action",
    }
    assert {cards[name]["source"] for name in running} == {"cleanrl 0.4.8"}
    assert description["metadata"]["upstream_version"] == "0.4.8"
    parameters = {each["name"]: each for each in cards["dqn"]["parameters"]}
    assert parameters["learning_starts"]["default"] == 10_000
    assert parameters["learning_rate"]["help"] == "the learning rate of the optimizer"
    assert not {"gym_id", "seed", "cuda", "prod_mode"} & parameters.keys()
    assert cards["pqn"]["needs"] == (
        "pqn runs in profile default, with a checkout: mosaic workers install cleanrl --upstream PATH"
    )


@pytest.mark.parametrize("profile", ["default", "legacy"])
def test_describing_imports_no_library_and_its_example_is_accepted(make_cleanrl, profile):
    worker = make_cleanrl(profile)
    program = (
        "import json, sys; from cleanrl_worker import get_worker_metadata as ask; print(json.dumps(ask().describe()));"
        "assert not {'torch', 'gym', 'gymnasium', 'cleanrl'} & set(sys.modules)"
    )
    done = subprocess.run(
        [worker.python, "-c", program], env=worker.environ, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    description = json.loads(done.stdout)
    validator = Draft202012Validator(description["config_schema"])
    assert list(validator.iter_errors(description["example_config"])) == []
    code, answer = worker.dry_run(**description["example_config"])
    assert (code, answer["ok"]) == (0, True), answer


ACCEPTED = [
    {"algo": "dqn", "algo_params": {"learning_rate": 1, "buffer_size": 2e3, "anneal_lr": True, "target_kl": None}},
    {"algo": "dqn", "algo_params": {}},
    {"algo": "ppo", "algo_params": {"num_envs": 2}},
]
REFUSED = [
    ("dqn", {"learning_rat": 0.1}, "extras.algo_params.learning_rat: 0.1 is not allowed: cleanrl.dqn (checkout files-"),
    ("dqn", {"learning_rat": 0.1}, "has no such hyperparameter; did you mean 'learning_rate'?"),
    ("dqn", {"zzz": 1}, "there are learning_rate, buffer_size, anneal_lr, target_kl"),
    ("dqn", {"batch_size": 64}, "extras.algo_params.batch_size: 64 is not allowed: cleanrl.dqn (checkout files-"),
    ("dqn", {"buffer_size": 2.5}, "extras.algo_params.buffer_size: 2.5 is not allowed: a whole number is needed"),
    ("dqn", {"buffer_size": True}, "a whole number is needed, as in 10000"),
    ("dqn", {"learning_rate": "high"}, "'high' is not allowed: a number is needed, as in 0.00025"),
    ("dqn", {"learning_rate": None}, "a number is needed"),
    ("dqn", {"anneal_lr": 1}, "true or false is needed, as in False"),
    ("dqn", {"seed": 3}, "extras.algo_params.seed: 3 is not allowed: give it as seed"),
    ("ppo", {"cuda": True}, "extras.algo_params.cuda: True is not allowed: give it as extras.cuda"),
    ("ppo", {"num_env": 2}, "did you mean 'num_envs'"),
]


def test_schema_and_worker_agree_on_hyperparameters(make_cleanrl, checkout):
    worker = make_cleanrl()
    description, _ = described(worker, checkout)
    validator = Draft202012Validator(description["config_schema"])
    common = {"env_id": "CartPole-v1", "total_timesteps": 100}
    for given in ACCEPTED:
        config = {**common, "algo": given["algo"], "extras": {"algo_params": given["algo_params"]}}
        assert list(validator.iter_errors(config)) == [], given
        assert worker.dry_run(**config)[0] == 0, given
    for algo, parameters, said in REFUSED:
        config = {**common, "algo": algo, "extras": {"algo_params": parameters}}
        assert not validator.is_valid(config), parameters
        code, answer = worker.dry_run(**config)
        assert code == 2, parameters
        assert any(said in problem for problem in answer["problems"]), answer["problems"]


def test_schema_and_worker_agree_on_what_each_mode_needs(make_cleanrl):
    worker = make_cleanrl()
    description, _ = described(worker)
    assert "raw" not in description["config_schema"]["properties"]
    validator = Draft202012Validator(description["config_schema"])
    stages = [{"env_id": "CartPole-v1", "steps": 10}, {"env_id": "CartPole-v1"}]
    whole = [
        {"env_id": "CartPole-v1", "total_timesteps": 1},
        {"total_timesteps": 1, "extras": {"curriculum_schedule": stages}},
        {"total_timesteps": 1, "extras": {"mode": "resume_training", "checkpoint_path": "x"}},
        {"algo": "dqn", "extras": {"mode": "policy_eval", "policy_path": "x"}},
        {"extras": {"mode": "script", "script": "x.sh"}},
        {"extras": {"mode": "interactive"}},
    ]
    for config in whole:
        assert list(validator.iter_errors(config)) == [], config
        assert worker.dry_run(**config)[0] == 0, config
    for config in whole[:-1]:
        for name in ("env_id", "total_timesteps", "checkpoint_path", "policy_path", "script"):
            extras = {key: value for key, value in config.get("extras", {}).items() if key != name}
            less = {**{key: value for key, value in config.items() if key != name}, "extras": extras}
            if name in config or name in config.get("extras", {}):
                assert not validator.is_valid(less), less
                assert worker.dry_run(**less)[0] == 2, less


def test_algorithm_that_cannot_run_here_is_refused_before_anything_starts(make_cleanrl):
    worker = make_cleanrl()
    code, answer = worker.dry_run(algo="dqn", env_id="CartPole-v1", total_timesteps=10)
    assert code == 2
    assert answer["problems"][0].startswith("dqn runs in profile legacy (mosaic submit --profile legacy …), or here")
    code, answer = worker.dry_run(algo="dqnn", env_id="CartPole-v1", total_timesteps=10)
    assert answer["problems"] == ["algo: 'dqnn' is not allowed: no such algorithm; did you mean 'dqn'?"]
    stages = [{"env_id": "CartPole-v1", "steps": 10}, {"env_id": "CartPole-v1"}]
    code, answer = worker.dry_run(algo="sac_atari", total_timesteps=10, extras={"curriculum_schedule": stages})
    assert answer["problems"] == ["algo: 'sac_atari' is not allowed: curriculum is done by ppo"]


def test_a_real_checkout_runs_what_it_is_known_to_run(make_cleanrl):
    checkout = os.environ.get("MOSAIC_CLEANRL_CHECKOUT")
    if not checkout:
        pytest.skip("MOSAIC_CLEANRL_CHECKOUT is not set: there is no checkout of CleanRL to describe")
    _, cards = described(make_cleanrl(), Path(checkout))
    print({name: card["needs"] for name, card in cards.items() if not card["runs"]})
    classic = ("ppo", "dqn", "c51", "pqn", "ppo_continuous_action", "rpo_continuous_action")
    continuous = ("sac_continuous_action", "ddpg_continuous_action", "td3_continuous_action")
    atari = (
        "ppo_atari",
        "ppo_atari_lstm",
        "ppo_atari_multigpu",
        "dqn_atari",
        "c51_atari",
        "sac_atari",
        "rainbow_atari",
    )
    assert {name for name, card in cards.items() if card["runs"]} == {*classic, *continuous, *atari}
    assert all(len(card["parameters"]) >= 10 for card in cards.values() if card["runs"])
    for name, packages in {"dqn_jax": ("flax", "jax", "optax"), "ppo_atari_envpool": ("envpool", "gym")}.items():
        assert cards[name]["needs"] == f"{name} needs {', '.join(packages)}, which no profile of this worker has"
    assert "procgen" in cards["ppg_procgen"]["needs"]
