"""Trained models that act: checkpoints of our ppo, and models that CleanRL's scripts save with `--save-model`.

A script's model is loaded with the script's own network and environment: its module is imported from the checkout,
unchanged (it trains only as `__main__`).
"""

import inspect
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from gymnasium.wrappers.normalize import NormalizeObservation, RunningMeanStd

from cleanrl_worker import checkpoints
from cleanrl_worker.agents import AGENTS, Agent
from cleanrl_worker.checks import text_of
from cleanrl_worker.config import CleanRLWorkerConfig
from cleanrl_worker.environments import EpisodeTap, fit_to_agent, make
from cleanrl_worker.model_files import find_model
from cleanrl_worker.registry import DEFAULT_ALGO_REGISTRY
from mosaic_worker.errors import ConfigError, RequestError
from mosaic_worker.frames.fastlane import FastLane
from mosaic_worker.spaces import space_from_json

__all__ = ["OurPolicy", "Policy", "ScriptPolicy", "load_policy"]

_FIELD = "extras.policy_path"
_UPSTREAM = "MOSAIC_UPSTREAM"
_SCRIPTS = {
    "dqn": "QNetwork",
    "dqn_atari": "QNetwork",
    "c51": "QNetwork",
    "c51_atari": "QNetwork",
    "ddpg_continuous_action": "Actor",
    "td3_continuous_action": "Actor",
    "ppo_continuous_action": "Agent",
}
"""Scripts that save a torch model, and the class of the acting network."""
_WARM_UP_EPISODES = 20
_WARM_UP_SEED = 2_000_000_000
"""Far from usual seeds, so that these episodes differ from the counted ones."""


class Policy:
    """A trained model that acts in an environment that it makes."""

    env_id: str
    observation_space: spaces.Space[Any]
    action_space: spaces.Space[Any]
    path: Path | None = None
    """The file that it was loaded from; `step` is the training step of that file, if known."""
    step: int | None = None
    normalizes = False
    """Whether its environment normalises observations."""

    def make_env(self, lane: FastLane, index: int, gamma: float = 1.0) -> tuple[gymnasium.Env[Any, Any], EpisodeTap]:
        """Make environment number `index`, and the tap that counts what it gives."""
        raise NotImplementedError

    def warm_up(self, check: Callable[[], None]) -> int:
        """Estimate what was not saved with the model; return the number of episodes played. `check` may raise."""
        return 0

    def act(
        self, observations: Sequence[Any], generators: Sequence[np.random.Generator] | None = None, masks: Any = None
    ) -> list[Any]:
        """Choose an action for each observation: the most likely or, with `generators`, a sample.

        `masks`, if given, has a row per observation, with a 0 for each illegal action.
        """
        raise NotImplementedError

    def probabilities(self) -> Any:
        """Return the action probabilities of the last `act`, a row per observation; None if there are none."""
        return None

    def require_same(self, observation_space: Any, action_space: Any, where: str) -> None:
        """Refuse an environment whose spaces differ from the model's; bounds may differ."""
        for mine, there in ((self.observation_space, observation_space), (self.action_space, action_space)):
            if (mine.shape, mine.dtype, getattr(mine, "n", 0)) != (there.shape, there.dtype, getattr(there, "n", 0)):
                raise ConfigError(f"{_FIELD}: the agent was trained with {text_of(mine)}, {where} has {text_of(there)}")


class OurPolicy(Policy):
    """An agent of our ppo."""

    def __init__(self, env_id: str, agent: Agent, observation_space: Any, action_space: Any) -> None:
        """Act in `env_id` with an agent for these spaces."""
        self.env_id = env_id
        self.observation_space = observation_space
        self.action_space = action_space
        self._agent = agent.eval()
        self._first_action = int(action_space.start)
        self._logits: Any = None

    @classmethod
    def untrained(cls, env_id: str, observation_space: Any, action_space: Any, kind: str, seed: int) -> "OurPolicy":
        """Return an untrained agent."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            agent = AGENTS[kind](observation_space.shape, int(action_space.n))
        return cls(env_id, agent, observation_space, action_space)

    @classmethod
    def load(cls, content: Any, path: Path, env_id: str) -> "OurPolicy":
        """Load the agent of a checkpoint; without `env_id` it acts where it was trained last."""
        saved = checkpoints.parse(content, path, _FIELD)
        about = saved.about
        if about.agent not in AGENTS:
            raise ConfigError(f"{_FIELD}: {str(path)!r} has an agent {about.agent!r}, which is unknown here")
        observation_space, action_space = map(space_from_json, (about.observation_space, about.action_space))
        agent = AGENTS[about.agent](observation_space.shape, int(action_space.n))
        try:
            agent.load_state_dict(saved.weights)
        except (RuntimeError, TypeError) as error:
            raise ConfigError(f"{_FIELD}: {str(path)!r} is damaged: {error}") from error
        course = about.curriculum
        trained_on = course["schedule"][course["stage"]]["env_id"] if course else about.env_id
        policy = cls(env_id or trained_on, agent, observation_space, action_space)
        policy.path, policy.step = path, about.step
        return policy

    def make_env(self, lane: FastLane, index: int, gamma: float = 1.0) -> tuple[gymnasium.Env[Any, Any], EpisodeTap]:
        """Make an environment and check that the agent fits."""
        tap = EpisodeTap(lane.wrap(make(self.env_id, render=lane.wants_frames), index), gamma=gamma)
        env, _ = fit_to_agent(tap, self.env_id)
        self.require_same(env.observation_space, env.action_space, self.env_id)
        return env, tap

    def act(
        self, observations: Sequence[Any], generators: Sequence[np.random.Generator] | None = None, masks: Any = None
    ) -> list[int]:
        """Choose actions."""
        views = observations if isinstance(observations, np.ndarray) else np.stack(observations)
        with torch.inference_mode():
            logits = self._agent.logits(torch.as_tensor(views).to(self._agent.dtype())).numpy()
        if masks is not None:
            logits = np.where(np.asarray(masks, bool), logits, -np.inf)
        self._logits = logits
        if generators is not None:
            logits = logits + np.stack([generator.gumbel(size=logits.shape[1]) for generator in generators])
        actions: list[int] = (logits.argmax(-1) + self._first_action).tolist()
        return actions

    def probabilities(self) -> Any:
        """Return the softmax of the last logits; an illegal action has probability 0."""
        if self._logits is None:
            return None
        scaled = np.exp(self._logits - self._logits.max(-1, keepdims=True))
        return scaled / scaled.sum(-1, keepdims=True)


class ScriptPolicy(Policy):
    """The network of an upstream script. Only ppo's can be sampled; the others are deterministic."""

    def __init__(self, module: Any, algo: str, env_id: str, content: Any, path: Path) -> None:
        """Build the network as the script does and load the saved weights."""
        self.env_id = env_id
        self.path = path
        self._module = module
        self._algo = algo
        self._settings = module.Args()
        self._statistics: list[_Frozen] = []
        vector = gymnasium.vector.SyncVectorEnv([self._thunk()])
        try:
            self.observation_space, self.action_space = vector.single_observation_space, vector.single_action_space
            self._require_actions()
            self.normalizes = bool(_normalizers(vector.envs[0]))
            weights, options = content, {}
            if isinstance(content, dict) and "model_weights" in content:  # c51 saves its settings, too
                weights = content["model_weights"]
                options = {name: content["args"][name] for name in ("n_atoms", "v_min", "v_max")}
            elif isinstance(content, tuple | list):  # actor first, then critics
                weights = content[0]
            self._network = getattr(module, _SCRIPTS[algo])(vector, **options)
            self._network.load_state_dict(weights)
        except ConfigError:
            raise
        except Exception as error:
            reason = str(error).partition("\n")[2].strip() or str(error)
            raise ConfigError(f"{_FIELD}: {str(path)!r} is no model of {algo} on {env_id}: {reason}") from error
        finally:
            vector.close()
        self._network.eval()

    def make_env(self, lane: FastLane, index: int, gamma: float = 1.0) -> tuple[gymnasium.Env[Any, Any], EpisodeTap]:
        """Make the script's environment; the tap is innermost, where rewards are what the environment gives."""
        with _made_with(lane, index, gamma) as taps:
            env = self._thunk()()
        for wrapper, known in zip(_normalizers(env), self._statistics, strict=False):
            wrapper.obs_rms = known
        return env, taps[0]

    def warm_up(self, check: Callable[[], None]) -> int:
        """Estimate the mean and deviation with which the script's environment normalises observations, and fix them.

        The script does not save them. If every environment started its own statistics, an episode would depend on
        those played before it.
        """
        if not self.normalizes:
            return 0
        env = self._thunk()()
        try:
            for seed in range(_WARM_UP_SEED, _WARM_UP_SEED + _WARM_UP_EPISODES):
                generators = [np.random.default_rng(seed)]  # the training sampled, too
                view, over = env.reset(seed=seed)[0], False
                while not over:
                    check()
                    view, _, terminated, truncated, _ = env.step(self.act([view], generators)[0])
                    over = terminated or truncated
        finally:
            env.close()
        self._statistics = [_Frozen(wrapper.obs_rms) for wrapper in _normalizers(env)]
        return _WARM_UP_EPISODES

    def act(
        self, observations: Sequence[Any], generators: Sequence[np.random.Generator] | None = None, masks: Any = None
    ) -> list[Any]:
        """Choose actions as the script does."""
        if masks is not None:
            raise RequestError(f"a model of {self._algo} does not know action masks")
        batch = torch.as_tensor(np.stack([np.asarray(each) for each in observations]), dtype=torch.float32)
        with torch.no_grad():
            if _SCRIPTS[self._algo] == "QNetwork":
                return list(self._best(batch).tolist())
            acts = self._network.actor_mean if _SCRIPTS[self._algo] == "Agent" else self._network
            # One by one: rounding depends on the batch size, and an episode must not.
            actions = torch.cat([acts(each) for each in batch.split(1)]).numpy()
            if generators is not None:
                deviation = self._network.actor_logstd.exp().numpy()[0]
                actions += [deviation * generator.standard_normal(deviation.shape) for generator in generators]
        space = self.action_space
        return list(np.clip(actions, space.low, space.high).astype(space.dtype))  # type: ignore[attr-defined]

    def _best(self, batch: Any) -> Any:
        if self._algo.startswith("c51"):
            return self._network.get_action(batch)[0]
        return self._network(batch).argmax(-1)

    def _thunk(self) -> Callable[[], gymnasium.Env[Any, Any]]:
        known = {"env_id": self.env_id, "seed": 0, "idx": 0, "capture_video": False, "run_name": "evaluation"}
        known["gamma"] = getattr(self._settings, "gamma", 0.99)
        names = inspect.signature(self._module.make_env).parameters
        thunk: Callable[[], gymnasium.Env[Any, Any]] = self._module.make_env(**{name: known[name] for name in names})
        return thunk

    def _require_actions(self) -> None:
        wanted = DEFAULT_ALGO_REGISTRY[self._algo].actions
        if wanted != ("discrete" if isinstance(self.action_space, spaces.Discrete) else "continuous"):
            has = text_of(self.action_space)
            raise ConfigError(f"{self._algo} needs a {wanted} action space; {self.env_id} has {has}.")


class _Frozen(RunningMeanStd):
    """Fixed statistics."""

    def __init__(self, found: RunningMeanStd) -> None:
        self.mean, self.var, self.count = found.mean.copy(), found.var.copy(), found.count

    def update(self, x: Any) -> None:
        """Ignore new observations."""


def _normalizers(env: gymnasium.Env[Any, Any]) -> list[Any]:
    """Return the wrappers of an environment that normalise observations."""
    found = []
    while isinstance(env, gymnasium.Wrapper):
        found += [env] if isinstance(env, NormalizeObservation) else []
        env = env.env
    return found


@contextmanager
def _made_with(lane: FastLane, index: int, gamma: float) -> Iterator[list[EpisodeTap]]:
    """Patch `gymnasium.make` to return tapped environments, for the duration of the block."""
    original, taps = gymnasium.make, []

    def tapped(given: str, **options: Any) -> EpisodeTap:
        if lane.wants_frames:
            options.setdefault("render_mode", "rgb_array")
        tap = EpisodeTap(lane.wrap(original(given, **options), index), gamma=gamma)
        taps.append(tap)
        return tap

    gymnasium.make = tapped  # type: ignore[assignment]
    try:
        yield taps
    finally:
        gymnasium.make = original


def load_policy(config: CleanRLWorkerConfig) -> Policy:
    """Load the model that the config names; ConfigError says why it cannot be used."""
    if not config.extras.policy_path:
        raise ConfigError(f"{_FIELD}: missing; give the path of a trained model")
    path = find_model(Path(config.extras.policy_path), _FIELD)
    content = checkpoints.read(path, _FIELD)
    algo = config.algo
    if checkpoints.is_ours(content):
        if algo != "ppo":
            raise ConfigError(
                f"{_FIELD}: {str(path)!r} was saved by ppo, but algo is {algo}: give ppo, or leave it out"
            )
        return OurPolicy.load(content, path, config.env_id)
    if not config.extras.deterministic and _SCRIPTS.get(algo) in {"QNetwork", "Actor"}:
        raise ConfigError(
            f"extras.deterministic: False is not allowed: a model of {algo} gives one action and no distribution to"
            " sample from; leave it out"
        )
    if algo not in _SCRIPTS:
        which = ", ".join(_SCRIPTS)
        raise ConfigError(
            f"{_FIELD}: {str(path)!r} was not saved by this worker's ppo; if an upstream script saved it, give its name"
            f" as algo: {which}"
        )
    if not config.env_id:
        raise ConfigError(f"env_id: missing; a model of {algo} does not say where it was trained")
    module = _script(algo)
    make(config.env_id, render=False).close()  # an unknown environment is refused in our own words
    return ScriptPolicy(module, algo, config.env_id, content, path)


def _script(algo: str) -> Any:
    """Import a script of the checkout."""
    checkout = os.environ.get(_UPSTREAM, "")
    if not (Path(checkout) / "cleanrl" / f"{algo}.py").is_file() or not checkout:
        where = f"{checkout!r} has no cleanrl/{algo}.py" if checkout else "there is none"
        raise ConfigError(
            f"algo: a model of {algo} needs a checkout of CleanRL, and {where}: mosaic workers install cleanrl"
            " --upstream PATH"
        )
    if checkout not in sys.path:
        sys.path.insert(0, checkout)
    try:
        return import_module(f"cleanrl.{algo}")
    except Exception as error:
        raise ConfigError(f"algo: {algo} of {checkout!r} cannot be imported: {error}") from error
