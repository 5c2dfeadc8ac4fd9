"""A trained agent without its training: loaded from a checkpoint, asked for all actions or for one agent's."""

import inspect
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from xuance.torch.agents import REGISTRY_Agents

from mosaic_worker.errors import ConfigError, RequestError
from mosaic_worker.spaces import space_from_json
from xuance_worker.checkpoints import FOLDERS, About, load_weights
from xuance_worker.environments import Spaces
from xuance_worker.registry import AGENTS
from xuance_worker.task import Arguments, Task

__all__ = ["Policy", "load_policy", "task_of_checkpoint", "untrained_policy"]

_SMALLEST_BUFFER = 2
"""Transitions per environment: an agent that does not train still makes its buffer."""
_SAMPLES_ALWAYS = ("ISAC", "MASAC", "SAC", "MFQ", "MFAC", "IC3Net", "TarMAC")
"""Agents that draw when they act, also in XuanCe's own evaluation."""


@dataclass
class _Episode:
    """What a policy remembers of an episode."""

    hidden: Any = None
    """The recurrent state, with the batch in the second dimension."""
    mean: Any = None
    """Of mean-field algorithms: the mean action of the others in the last step."""
    draws: torch.Tensor | None = None
    """The state of torch's generator for sampled actions; None: they come from the process's own."""


class Policy:
    """Answers observations with actions, through XuanCe's own `get_actions`."""

    def __init__(self, task: Task, agent: Any, *, deterministic: bool = True, trained_steps: int = 0) -> None:
        """Take an agent that was made without environments."""
        self.task = task
        self.trained_steps = trained_steps
        self._agent = agent
        self._accepts = inspect.signature(agent.get_actions).parameters
        self._deterministic = deterministic
        if deterministic and task.agent.name == "NoisyDQN":
            agent.noise_scale = 0.0  # as in XuanCe's own evaluation
        agent.policy.eval()
        self._together = self._begin(None)
        self._alone: dict[tuple[str, int], _Episode] = {}

    @property
    def is_deterministic(self) -> bool:
        """Whether the same observation always gets the same action."""
        return self._deterministic and self.task.agent.name not in _SAMPLES_ALWAYS

    def begin_episode(self, seed: int | None = None) -> None:
        """Forget the last episode of all agents together; sampled actions come from the seed."""
        self._together = self._begin(seed)

    def begin_alone(self, seed: int | None, agent: str, lane: int = 0) -> None:
        """Begin an episode of one agent in a lane, of which it sees only its own part; samples come from the seed."""
        if self.task.agent.talks:
            raise RequestError(
                f"{self.task.agent.name}: agents act on what others see or do, so none can be asked alone"
            )
        self._alone[agent, lane] = self._begin(seed)

    def select_together(self, observations: Any) -> Any:
        """Choose the actions of all agents, or of the only one, for one observation each."""
        return self._act([observations], [self._together])[0]

    def select_alone(self, observations: Sequence[Any], agent: str, lanes: Sequence[int]) -> list[Any]:
        """Choose the actions of one agent in several lanes, knowing only what it sees there.

        The result equals, bit for bit, the agent's part of one call of `get_actions` with as many observations. That
        wants the observations of all agents: the others' are zeros here. Where agents do not talk, a row of a matrix
        product depends on its own values, its place and the shape of the batch, and on nothing else.
        """
        spaces = self.task.spaces
        for lane in lanes:
            if (agent, lane) not in self._alone:
                self.begin_alone(None, agent, lane)
        episodes = [self._alone[agent, lane] for lane in lanes]
        if not spaces.agents:
            return self._act(observations, episodes)
        nothing = {name: np.zeros(space.shape, space.dtype) for name, space in spaces.observations.items()}
        acts = self._act([{**nothing, agent: observation} for observation in observations], episodes)
        return [act[agent] for act in acts]

    def _begin(self, seed: int | None) -> _Episode:
        agent = self._agent
        draws = None if seed is None else torch.Generator().manual_seed(seed).get_state()
        hidden = None
        if hasattr(agent.policy, "init_hidden"):  # DRQN
            hidden = agent.policy.init_hidden(1)
        elif agent.use_rnn:
            hidden = agent.init_rnn_hidden(1)
            if getattr(agent, "on_policy", False):
                hidden = hidden[0]  # The critic's is not needed to act.
        return _Episode(hidden, draws=draws)

    def _act(self, observations: Sequence[Any], episodes: Sequence[_Episode]) -> list[Any]:
        with torch.no_grad():
            if self.is_deterministic:
                return self._forward(observations, episodes)
            # Each episode draws from its own stream, so that its actions do not depend on who else is asked.
            acts = []
            for observation, episode in zip(observations, episodes, strict=True):
                if episode.draws is not None:
                    torch.set_rng_state(episode.draws)
                acts += self._forward([observation], [episode])
                if episode.draws is not None:
                    episode.draws = torch.get_rng_state()
            return acts

    def _forward(self, observations: Sequence[Any], episodes: Sequence[_Episode]) -> list[Any]:
        hidden = _joined([episode.hidden for episode in episodes])
        act = self._forward_multi if self.task.spaces.agents else self._forward_single
        acts, changed = act(observations, episodes, hidden)
        if hidden is not None:  # A policy without memory may return an empty one.
            for index, episode in enumerate(episodes):
                episode.hidden = _part(changed, index, len(episodes))
        return acts

    def _forward_multi(
        self, observations: Sequence[Any], episodes: Sequence[_Episode], hidden: Any
    ) -> tuple[list[Any], Any]:
        agent, count = self._agent, len(observations)
        given: dict[str, Any] = {"obs_dict": list(observations), "test_mode": True}
        if getattr(agent, "on_policy", False):
            given |= {"deterministic": self._deterministic, "rnn_hidden_actor": hidden}
        else:
            given["rnn_hidden"] = hidden
        if agent.use_actions_mask:
            masks = {name: np.ones(space.n, np.bool_) for name, space in self.task.spaces.actions.items()}
            given["avail_actions_dict"] = [masks] * count
        everyone = dict.fromkeys(agent.agent_keys, True)
        if "info" in self._accepts:  # Communication goes to agents that are still there.
            given["info"] = [{"agent_mask": everyone}] * count
        if "agent_mask" in self._accepts:
            given["agent_mask"] = [everyone] * count
            given["act_mean_dict"] = [episode.mean or self._no_mean() for episode in episodes]
        out = agent.get_actions(**{name: value for name, value in given.items() if self._takes(name)})
        for episode, mean in zip(episodes, out.get("actions_mean") or [None] * count, strict=True):
            episode.mean = mean
        acts = [{name: np.array(action) for name, action in acts.items()} for acts in out["actions"]]
        return acts, out.get("rnn_hidden_actor", out.get("hidden_state"))

    def _no_mean(self) -> dict[str, Any]:
        return {name: np.zeros(space.n) for name, space in self.task.spaces.actions.items()}

    def _takes(self, name: str) -> bool:
        return name in self._accepts or any(each.kind is each.VAR_KEYWORD for each in self._accepts.values())

    def _forward_single(
        self, observations: Sequence[Any], _episodes: Sequence[_Episode], hidden: Any
    ) -> tuple[list[Any], Any]:
        agent = self._agent
        batch = agent._process_observation(np.stack(observations))  # noqa: SLF001 - as its own test loop does
        given: dict[str, Any] = {"test_mode": True, "deterministic": self._deterministic, "rnn_hidden": hidden}
        out = agent.get_actions(batch, **{name: value for name, value in given.items() if name in self._accepts})
        if not isinstance(out, dict):  # NoisyDQN returns the actions alone.
            out = {"actions": out}
        return list(np.asarray(out["actions"])), out.get("rnn_hidden_next", hidden)


def _joined(states: list[Any]) -> Any:
    """Make one recurrent state of those of several episodes: tensors in tuples, in dicts by network, or None."""
    first = states[0]
    if isinstance(first, torch.Tensor):
        return torch.cat(states, dim=1)
    if isinstance(first, dict):
        return {key: _joined([state[key] for state in states]) for key in first}
    if isinstance(first, tuple | list):
        return tuple(_joined(list(parts)) for parts in zip(*states, strict=True))
    return None


def _part(state: Any, index: int, count: int) -> Any:
    """Take one episode's part of a recurrent state of several."""
    if isinstance(state, torch.Tensor):
        return state.chunk(count, dim=1)[index]
    if isinstance(state, dict):
        return {key: _part(each, index, count) for key, each in state.items()}
    if isinstance(state, tuple | list):
        return tuple(_part(each, index, count) for each in state)
    return None


def untrained_policy(task: Task, seed: int, *, deterministic: bool = True) -> Policy:
    """Make a policy with the weights that a training with this seed begins with."""
    return Policy(task, _make_agent(task, seed), deterministic=deterministic)


def load_policy(path: Path, field: str, *, deterministic: bool = True) -> tuple[Policy, About]:
    """Load a policy from a checkpoint."""
    about = FOLDERS.read(path, field)
    try:
        task = task_of_checkpoint(about, field)
        agent = _make_agent(task, about.seed)
    except (KeyError, AttributeError, TypeError, ValueError) as error:
        why = f"its settings do not make an agent: {type(error).__name__}: {error}"
        raise ConfigError(f"{field}: {str(path)!r} is damaged: {why}") from error
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
