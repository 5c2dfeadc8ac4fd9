"""Trainings in one process and on one Ray cluster, to be imported inside the worker's environment by the tests.

Starting Ray takes longer than these trainings.
"""

import json
import os
from contextlib import contextmanager
from pathlib import Path

from mosaic_worker.config import parse_config
from mosaic_worker.context import RunContext
from mosaic_worker.emitter import Emitter
from mosaic_worker.errors import ConfigError
from mosaic_worker.stop import Stop
from ray_worker import get_worker_metadata
from ray_worker.checkpoints import FOLDERS, module_path, read_about
from ray_worker.cluster import connect, set_variables
from ray_worker.config import RayWorkerConfig, ResourceConfig

set_variables("", os.environ)

from ray_worker.runtime import preflight, training_config  # noqa: E402 - Ray reads its variables when it is imported

QUICK = {"train_batch_size_per_learner": 100, "minibatch_size": 50, "num_epochs": 1}
SMALL = {"fcnet_hiddens": [16]}
SEED = 3


@contextmanager
def cluster():
    """One cluster for everything in the block."""
    with connect(ResourceConfig(), Path.cwd()) as found:
        yield found


def _context(name, given):
    folder = Path.cwd() / name
    folder.mkdir(exist_ok=True)
    config = parse_config(RayWorkerConfig, {"run_id": name, "num_workers": 0, "network": SMALL, **given}, {})
    journal = os.open(folder / "journal", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    return RunContext(get_worker_metadata(), config, Emitter(journal), Stop(), folder, plan=preflight(config))


def begin(name, **given):
    """Build a training from nothing."""
    from ray_worker.algorithms import task_of
    from ray_worker.training import Start, Training

    context = _context(name, given)
    return Training(context, task_of(context.config), SEED, Start(context.plan["total_steps"]), {"ray": "here"})


def go_on(name, steps, **given):
    """Build a training that continues from the last checkpoint of another one."""
    from ray_worker.algorithms import task_of
    from ray_worker.training import Start, Training

    path = FOLDERS.find(Path.cwd() / name, "checkpoint_path")
    about = read_about(path, "checkpoint_path")
    context = _context(f"{name}-2", {"env_id": about.env_id, "total_timesteps": steps, **given})
    task = task_of(training_config(context.config, about))
    return Training(context, task, about.seed, Start(about.step + steps, path, about, "checkpoint_path"), {})


def finish(training):
    """Train to the end, close, and return the events."""
    try:
        training.run()
    finally:
        training.close()
    return events(training)


def events(training):
    """What a training has reported."""
    text = (training._context.run_dir / "journal").read_text()
    return [json.loads(line) for line in text.splitlines()]


def weights(training):
    """Every module's weights as lists of numbers, by module and name."""
    return numbers(training.algorithm.learner_group.get_weights())


def has_weights(training, name):
    """Whether a training has the weights of another one's last checkpoint, apart from target networks.

    Not those of the other training itself: an asynchronous learner goes on learning after it was saved.
    """
    from ray.rllib.core.rl_module.rl_module import RLModule

    path = FOLDERS.find(Path.cwd() / name, "path")
    modules = read_about(path, "path").modules
    saved = {module: RLModule.from_checkpoint(str(module_path(path, module))).get_state() for module in modules}
    now = weights(training)
    return all(now[module][key] == each for module, state in numbers(saved).items() for key, each in state.items())


def numbers(states):
    """Weights as lists of numbers, by module and name."""
    return {module: {name: each.tolist() for name, each in state.items()} for module, state in states.items()}


def refusal(given):
    """Why a config is refused before it starts."""
    try:
        preflight(parse_config(RayWorkerConfig, {"run_id": "r", **given}, {}))
    except ConfigError as error:
        return str(error)
    return "accepted"
