"""A trained agent without its training: loaded from a checkpoint, asked for all actions or for one agent's."""

import inspect
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from xuance.torch.agents import REGISTRY_Agents

from mosaic_worker.errors import ConfigError, RequestError
from mosaic_worker.spaces import space_from_json
from xuance_worker.checkpoints import About, load_weights, read_about
from xuance_worker.environments import Spaces
from xuance_worker.registry import AGENTS
from xuance_worker.task import Arguments, Task

__all__ = ["Policy", "load_policy", "task_of_checkpoint", "untrained_policy"]

_SMALLEST_BUFFER = 2
"""Transitions per environment: an agent that does not train still makes its buffer."""
_SAMPLES_ALWAYS = ("ISAC", "MASAC", "SAC", "PG", "A2C")


@dataclass
class _Episode:
    """What a policy remembers of an episode."""

    hidden: Any = None
    mean: Any = None
    """Of mean-field algorithms: the mean action of the others in the last step."""


class Policy:
    """Answers observations with actions, through XuanCe's own `get_actions`."""

    def __init__(self, task: Task, agent: Any, *, deterministic: bool = True, trained_steps: int = 0) -> None:
        """Take an agent that was made without environments."""
        self.task = task
        self.trained_steps = trained_steps
        self._agent = agent
        self._accepts = inspect.signature(agent.get_actions).parameters
        self._deterministic = deterministic
        self._alone: dict[str, _Episode] = {}
        agent.policy.eval()
        self._episode = self._begin()

    @property
    def is_deterministic(self) -> bool:
        """Whether the same observation always gets the same action."""
        return self._deterministic and self.task.agent.name not in _SAMPLES_ALWAYS

    def begin_episode(self, seed: int | None = None, agent: str | None = None) -> None:
        """Forget the last episode, of all agents or of one; sampled actions come from the seed."""
        if seed is not None:
            torch.manual_seed(seed)
            np.random.seed(seed % 2**32)  # noqa: NPY002 - XuanCe draws from numpy's global generator
        if agent is None:
            self._episode = self._begin()
        else:
            self._alone[agent] = self._begin()

    def select_actions(self, observations: Any) -> Any:
        """Choose the actions of all agents, or of the only one, for one observation each."""
        return self._act(observations, self._episode)

    def select_action(self, observation: Any, agent: str) -> Any:
        """Choose the action of one agent, knowing only what it sees.

        `get_actions` wants the observations of all. The others' are zeros here: where agents do not talk, an action
        depends on the agent's own observation alone.
        """
        if self.task.agent.talks:
            raise RequestError(
                f"{self.task.agent.name}: agents act on what others see or do, so none can be asked alone"
            )
        if agent not in self.task.spaces.agents:
            raise RequestError(f"agent {agent!r} is none of {', '.join(self.task.spaces.agents)}")
        if agent not in self._alone:
            self.begin_episode(agent=agent)
        spaces = self.task.spaces.observations
        nothing = {name: np.zeros(space.shape, space.dtype) for name, space in spaces.items()}
        return self._act({**nothing, agent: observation}, self._alone[agent])[agent]

    def _begin(self) -> _Episode:
        agent = self._agent
        if not agent.use_rnn:
            return _Episode()
        if hasattr(agent, "init_rnn_hidden"):
            return _Episode(agent.init_rnn_hidden(1))
        return _Episode(agent.policy.init_hidden(1))

    def _act(self, observations: Any, episode: _Episode) -> Any:
        with torch.no_grad():
            if self.task.spaces.agents:
                return self._act_together(observations, episode)
            return self._act_single(observations, episode)

    def _act_together(self, observations: dict[str, Any], episode: _Episode) -> dict[str, Any]:
        agent, given = self._agent, {"obs_dict": [observations], "test_mode": True}
        if getattr(agent, "on_policy", False):
            given["deterministic"] = self._deterministic
            if episode.hidden is not None:
                given["rnn_hidden_actor"], given["rnn_hidden_critic"] = episode.hidden
        elif episode.hidden is not None:
            given["rnn_hidden"] = episode.hidden
        if agent.use_actions_mask:
            masks = {name: np.ones(space.n, np.bool_) for name, space in self.task.spaces.actions.items()}
            given["avail_actions_dict"] = [masks]
        everyone = dict.fromkeys(agent.agent_keys, True)
        if "info" in self._accepts:  # Communication goes to agents that are still there.
            given["info"] = [{"agent_mask": everyone}]
        if "agent_mask" in self._accepts:
            given["agent_mask"] = [everyone]
            given["act_mean_dict"] = episode.mean or self._no_mean()
        out = agent.get_actions(**{name: value for name, value in given.items() if self._takes(name)})
        if episode.hidden is not None:
            is_pair = "rnn_hidden_actor" in out
            episode.hidden = (out["rnn_hidden_actor"], out["rnn_hidden_critic"]) if is_pair else out["hidden_state"]
        episode.mean = out.get("actions_mean")
        return {name: np.array(action) for name, action in out["actions"][0].items()}

    def _no_mean(self) -> list[dict[str, Any]]:
        return [{name: np.zeros(space.n) for name, space in self.task.spaces.actions.items()}]

    def _takes(self, name: str) -> bool:
        return name in self._accepts or any(each.kind is each.VAR_KEYWORD for each in self._accepts.values())

    def _act_single(self, observation: Any, episode: _Episode) -> Any:
        agent = self._agent
        batch = agent._process_observation(np.asarray(observation)[None])  # noqa: SLF001 - as its own test loop does
        given: dict[str, Any] = {"test_mode": True, "deterministic": self._deterministic, "rnn_hidden": episode.hidden}
        out = agent.get_actions(batch, **{name: value for name, value in given.items() if name in self._accepts})
        if not isinstance(out, dict):  # NoisyDQN returns the actions alone.
            out = {"actions": out}
        episode.hidden = out.get("rnn_hidden_next", episode.hidden)
        return np.asarray(out["actions"])[0]


def untrained_policy(task: Task, seed: int, *, deterministic: bool = True) -> Policy:
    """Make a policy with the weights that a training with this seed begins with."""
    return Policy(task, _make_agent(task, seed), deterministic=deterministic)


def load_policy(path: Path, field: str, *, deterministic: bool = True) -> tuple[Policy, About]:
    """Load a policy from a checkpoint."""
    about = read_about(path, field)
    task = task_of_checkpoint(about, field)
    agent = _make_agent(task, about.seed)
    load_weights(path, agent.learner, field)
    restore_normalisation(agent, about)
    return Policy(task, agent, deterministic=deterministic, trained_steps=about.step), about


def restore_normalisation(agent: Any, about: About) -> None:
    """Give an agent the statistics by which it normalises observations."""
    if about.obs_rms is not None:
        for name, value in about.obs_rms.items():
            setattr(agent.obs_rms, name, np.asarray(value) if isinstance(value, list) else value)


def task_of_checkpoint(about: About, field: str) -> Task:
    """Rebuild the task from what the checkpoint says; no environment is needed."""
    if about.agent not in AGENTS:
        raise ConfigError(f"{field}: it was trained by {about.agent!r}, which is no agent of XuanCe")
    spaces = Spaces(
        about.env,
        about.settings["env_name"],
        tuple(about.agents),
        {name: space_from_json(space) for name, space in about.observation_spaces.items()},
        {name: space_from_json(space) for name, space in about.action_spaces.items()},
        None if about.state_space is None else space_from_json(about.state_space),
    )
    return Task(AGENTS[about.agent], about.env_id, spaces, about.settings, "the checkpoint")


def _make_agent(task: Task, seed: int) -> Any:
    """Make an agent without environments; its log goes to a folder that is removed at once."""
    with tempfile.TemporaryDirectory(prefix="mosaic-xuance-") as folder:
        arguments = task.arguments(seed, 1, "cpu", Path(folder))
        _shrink(arguments)
        agent = REGISTRY_Agents[task.agent.name](arguments, _NoEnvs(task.spaces))
        agent.writer.close()
    return agent


class _NoEnvs:
    """Stands for environments of which only the spaces are known.

    XuanCe's agents can be made without environments, but QMIX, COMA and others then look for a state space in them.
    """

    num_envs = 1
    max_episode_steps = 1

    def __init__(self, spaces: Spaces) -> None:
        self.agents = list(spaces.agents)
        self.num_agents = len(self.agents)
        self.state_space = spaces.state
        self.observation_space: Any = dict(spaces.observations) if self.agents else spaces.observations[""]
        self.action_space: Any = dict(spaces.actions) if self.agents else spaces.actions[""]

    def reset(self) -> None:
        """Do nothing: no episode is played here."""


def _shrink(arguments: Arguments) -> None:
    arguments.parallels = 1
    if hasattr(arguments, "buffer_size"):
        arguments.buffer_size = _SMALLEST_BUFFER
    if hasattr(arguments, "n_minibatch"):
        arguments.n_minibatch = 1
