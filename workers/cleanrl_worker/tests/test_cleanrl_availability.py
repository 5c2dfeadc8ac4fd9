"""Real profiles: which algorithms run, what the others need, how hyperparameters are checked."""

import functools
import json
import os
import subprocess
import sys
import tempfile
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
    """A small checkout with the layout of CleanRL's."""
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


@functools.cache
def built(profile):
    """Build a profile as the platform does, cached by the hash of its lock; return its interpreter and its site."""
    with tempfile.TemporaryDirectory() as home:
        command = [sys.executable, "-m", "mosaic_services.environments", "cleanrl", profile, "--home", home]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=800)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1])


class Worker:
    """Queries the worker of one profile, in a separate process."""

    def __init__(self, profile, folder):
        found = built(profile)
        self.python, self.folder = found["python"], folder
        clean = {key: value for key, value in os.environ.items() if not key.startswith(("MOSAIC_", "PYTHON"))}
        self.environ = {**clean, "PYTHONPATH": found["site"]}

    def ask(self, *arguments):
        command = [self.python, *map(str, arguments)]
        return subprocess.run(
            command, cwd=self.folder, env=self.environ, capture_output=True, text=True, check=False, timeout=100
        )

    def dry_run(self, **config):
        path = self.folder / "worker.json"
        path.write_text(json.dumps({"run_id": "r1", **config}))
        done = self.ask("-m", "cleanrl_worker.cli", "--config", path, "--dry-run")
        return done.returncode, json.loads(done.stdout)


@pytest.fixture
def worker_of(tmp_path):
    return lambda profile="default": Worker(profile, tmp_path)


def described(worker, upstream=None):
    if upstream is not None:
        worker.environ["MOSAIC_UPSTREAM"] = str(upstream)
    done = worker.ask("-m", "cleanrl_worker.cli", "--describe")
    assert done.returncode == 0, done.stderr
    description = json.loads(done.stdout)
    return description, {card["name"]: card for card in description["algorithms"]}


def git(folder, *words):
    who = ["-c", "user.name=x", "-c", "user.email=x@example.org"]
    done = subprocess.run(["git", "-C", folder, *who, *words], check=True, capture_output=True, text=True)
    return done.stdout.strip()


def test_default_without_a_checkout_runs_ours_and_says_what_the_others_need(worker_of):
    description, cards = described(worker_of())
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
    # The worker knows these needs without a checkout, so that no user gets one in vain.
    assert (cards["dqn_jax"]["needs"], cards["dqn_jax"]["profiles"]) == (
        "dqn_jax needs jax, which no profile of this worker has",
        [],
    )
    assert cards["ppo_procgen"]["needs"].startswith("ppo_procgen needs procgen, ")


def test_default_with_a_checkout_runs_what_its_packages_allow_and_names_those_that_are_missing(worker_of, checkout):
    description, cards = described(worker_of(), checkout)
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


def test_version_of_a_checkout_is_its_commit_and_says_whether_it_was_edited(worker_of, checkout):
    worker = worker_of()
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
    # A folder inside an unrelated repository has no commit of its own.
    _, cards = described(worker, (checkout / ".git").rename(checkout.parent / ".git").parent / "checkout")
    assert cards["dqn"]["source"].startswith("checkout files-")


def test_legacy_runs_the_scripts_of_the_package_and_sends_the_others_to_default(worker_of):
    description, cards = described(worker_of("legacy"))
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
    assert cards["c51_jax"]["needs"] == "c51_jax needs jax, which no profile of this worker has"
    assert not description["capabilities"]["supports_resume"]
    assert cards["pqn"]["needs"] == (
        "pqn runs in profile default, with a checkout: mosaic workers install cleanrl --upstream PATH"
    )


@pytest.mark.parametrize("profile", ["default", "legacy"])
def test_describing_imports_no_torch_and_its_example_is_accepted(worker_of, profile):
    worker = worker_of(profile)
    program = (
        "import json, sys; from cleanrl_worker import get_worker_metadata as ask; print(json.dumps(ask().describe()));"
        "assert not {'torch', 'cleanrl'} & set(sys.modules)"
    )
    done = subprocess.run(
        [worker.python, "-c", program], env=worker.environ, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    description = json.loads(done.stdout.splitlines()[-1])  # pygame prints before it
    validator = Draft202012Validator(description["config_schema"])
    assert list(validator.iter_errors(description["example_config"])) == []
    code, answer = worker.dry_run(**description["example_config"])
    assert (code, answer["ok"]) == (0, True), answer


ACCEPTED = [
    ("dqn", {"learning_rate": 1, "buffer_size": 2e3, "anneal_lr": True, "target_kl": None}),
    ("ppo", {"num_envs": 2}),
]
REFUSED = [
    ("dqn", "learning_rat", 0.1, "has no such hyperparameter; did you mean 'learning_rate'?"),
    ("dqn", "zzz", 1, "there are learning_rate, buffer_size, anneal_lr, target_kl"),
    ("dqn", "batch_size", 64, "cleanrl.dqn (checkout files-"),
    ("dqn", "buffer_size", 2.5, "2.5 is not allowed: a whole number is needed, as in 10000"),
    ("dqn", "buffer_size", True, "a whole number is needed"),
    ("dqn", "learning_rate", "high", "'high' is not allowed: a number is needed, as in 0.00025"),
    ("dqn", "learning_rate", None, "a number is needed"),
    ("dqn", "anneal_lr", 1, "true or false is needed, as in False"),
    ("dqn", "seed", 3, "3 is not allowed: give it as seed"),
    ("ppo", "cuda", True, "True is not allowed: give it as extras.cuda"),
    ("ppo", "num_env", 2, "did you mean 'num_envs'"),
]


def test_schema_and_worker_agree_on_hyperparameters(worker_of, checkout):
    worker = worker_of()
    description, _ = described(worker, checkout)
    validator = Draft202012Validator(description["config_schema"])

    def config(algo, parameters):
        common = {"env_id": "CartPole-v1", "total_timesteps": 100}
        return {**common, "algo": algo, "extras": {"algo_params": parameters}}

    for algo, parameters in ACCEPTED:
        assert list(validator.iter_errors(config(algo, parameters))) == [], parameters
        assert worker.dry_run(**config(algo, parameters))[0] == 0, parameters
    for algo, name, value, _ in REFUSED:
        assert not validator.is_valid(config(algo, {name: value})), name
    # A dry run lists all problems, so one call checks several parameters.
    for algo, names in [("dqn", REFUSED[:4]), ("dqn", REFUSED[5:6]), ("dqn", REFUSED[6:9]), ("ppo", REFUSED[9:])]:
        code, answer = worker.dry_run(**config(algo, {name: value for _, name, value, _ in names}))
        assert (code, len(answer["problems"])) == (2, len(names)), answer
        for problem, (_, name, _, said) in zip(answer["problems"], names, strict=True):
            assert problem.startswith(f"extras.algo_params.{name}: "), problem
            assert said in problem


def test_schema_and_worker_agree_on_what_each_mode_needs(worker_of):
    worker = worker_of()
    description, _ = described(worker)
    assert "raw" not in description["config_schema"]["properties"]
    validator = Draft202012Validator(description["config_schema"])
    stages = [{"env_id": "CartPole-v1", "steps": 10}, {"env_id": "CartPole-v1"}]
    needs = [
        ({"env_id": "CartPole-v1", "total_timesteps": 1}, {}),
        ({"total_timesteps": 1}, {"curriculum_schedule": stages}),
        ({"total_timesteps": 1}, {"mode": "resume_training", "checkpoint_path": "x"}),
        ({"algo": "dqn"}, {"mode": "policy_eval", "policy_path": "x"}),
        ({}, {"mode": "script", "script": "x.sh"}),
    ]
    assert validator.is_valid({"extras": {"mode": "interactive"}})
    for top, extras in needs:
        assert list(validator.iter_errors({**top, "extras": extras})) == []
        for name in ("env_id", "total_timesteps", "checkpoint_path", "policy_path", "script"):
            if name not in top and name not in extras:
                continue
            less = {key: value for key, value in top.items() if key != name}
            less["extras"] = {key: value for key, value in extras.items() if key != name}
            assert not validator.is_valid(less), less
            code, answer = worker.dry_run(**less)
            assert code == 2
            assert answer["problems"][0].partition(": ")[0].endswith(name), answer
            assert answer["problems"][0].endswith(" needs it"), answer
    fields = description["config_schema"]["$defs"]["CleanRLExtras"]["properties"]
    for name in ("checkpoint_path", "policy_path", "script"):
        assert fields[name]["anyOf"][0] == {"type": "string", "format": "absolute-path"}, "the scheduler refuses others"
    resumed = {"algo": "ppo", "total_timesteps": 1, "extras": {"mode": "resume_training", "policy_path": "x"}}
    assert validator.is_valid(resumed), "it may stand in for checkpoint_path"
    assert worker.dry_run(**resumed)[1]["problems"] == ["extras.policy_path: 'x': no such file"]
    resumed["extras"]["curriculum_schedule"] = stages
    assert not validator.is_valid(resumed)
    assert worker.dry_run(**resumed)[1]["problems"][0].startswith("extras.curriculum_schedule: ")


def test_algorithm_that_cannot_run_here_is_refused_before_anything_starts(worker_of):
    worker = worker_of()
    code, answer = worker.dry_run(algo="dqn", env_id="CartPole-v1", total_timesteps=10)
    assert code == 2
    assert answer["problems"][0].startswith("dqn runs in profile legacy (mosaic submit --profile legacy …), or here")
    code, answer = worker.dry_run(algo="dqnn", env_id="CartPole-v1", total_timesteps=10)
    assert answer["problems"] == ["algo: 'dqnn' is not allowed: no such algorithm; did you mean 'dqn'?"]
    stages = [{"env_id": "CartPole-v1", "steps": 10}, {"env_id": "CartPole-v1"}]
    code, answer = worker.dry_run(algo="sac_atari", total_timesteps=10, extras={"curriculum_schedule": stages})
    assert answer["problems"] == ["algo: 'sac_atari' is not allowed: curriculum is done by ppo"]


def test_a_real_checkout_runs_what_it_is_known_to_run(worker_of):
    checkout = os.environ.get("MOSAIC_CLEANRL_CHECKOUT")
    if not checkout:
        pytest.skip("MOSAIC_CLEANRL_CHECKOUT is not set: there is no checkout of CleanRL to describe")
    _, cards = described(worker_of(), Path(checkout))
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
