"""RLModules for observations that are dicts: with an action mask, or with a global state for a central critic.

They are RLlib's own networks. What is added: they see `observations` only, illegal actions get no probability, and for
SHARED_VALUE_FUNCTION all actors ask one critic, which sees the global state.
"""

import itertools
from typing import Any

import torch
from gymnasium import spaces
from ray.rllib.algorithms.appo.torch.default_appo_torch_rl_module import DefaultAPPOTorchRLModule
from ray.rllib.algorithms.dqn.default_dqn_rl_module import QF_PREDS
from ray.rllib.algorithms.dqn.torch.default_dqn_torch_rl_module import DefaultDQNTorchRLModule
from ray.rllib.algorithms.ppo.torch.default_ppo_torch_rl_module import DefaultPPOTorchRLModule
from ray.rllib.core.columns import Columns
from ray.rllib.core.models.base import ACTOR, ENCODER_OUT
from ray.rllib.core.rl_module.apis import TARGET_NETWORK_ACTION_DIST_INPUTS
from ray.rllib.core.rl_module.multi_rl_module import MultiRLModule
from ray.rllib.core.rl_module.torch import TorchRLModule
from ray.rllib.utils.torch_utils import FLOAT_MIN

from ray_worker.views import MASK, OBSERVATIONS, STATE

__all__ = [
    "CRITIC",
    "CentralCritic",
    "CentralCriticActor",
    "CentralCriticModules",
    "MaskedAPPO",
    "MaskedDQN",
    "MaskedPPO",
]

CRITIC = "central_critic"
"""The id of the critic of SHARED_VALUE_FUNCTION."""
_HIDDEN = (64, 64)

Batch = dict[str, Any]


class _DictObservations:
    """Builds a network for `observations` alone."""

    def __init__(self, *args: Any, observation_space: Any = None, **kwargs: Any) -> None:
        """Build the network, and remember the whole space for the checkpoint."""
        inner = observation_space[OBSERVATIONS] if isinstance(observation_space, spaces.Dict) else observation_space
        super().__init__(*args, observation_space=inner, **kwargs)
        self.observation_space = observation_space


def _plain(batch: Batch) -> Batch:
    """The batch as RLlib's own networks take it."""
    seen = batch[Columns.OBS]
    return {**batch, Columns.OBS: seen[OBSERVATIONS]} if isinstance(seen, dict) else batch


def _masked(batch: Batch, out: Batch, key: str) -> Batch:
    """Give illegal actions no probability."""
    seen = batch[Columns.OBS]
    if isinstance(seen, dict) and MASK in seen:
        out[key] = out[key] + torch.clamp(torch.log(seen[MASK]), min=FLOAT_MIN)
    return out


class _MaskedActor(_DictObservations):
    """An actor with its own critic."""

    def _forward(self, batch: Batch, **kwargs: Any) -> Batch:
        return _masked(batch, super()._forward(_plain(batch), **kwargs), Columns.ACTION_DIST_INPUTS)  # type: ignore[misc]

    def _forward_train(self, batch: Batch, **kwargs: Any) -> Batch:
        return _masked(batch, super()._forward_train(_plain(batch), **kwargs), Columns.ACTION_DIST_INPUTS)  # type: ignore[misc]

    def compute_values(self, batch: Batch, embeddings: Any = None) -> Any:
        """Return the critic's values."""
        return super().compute_values(_plain(batch), embeddings)  # type: ignore[misc]


class MaskedPPO(_MaskedActor, DefaultPPOTorchRLModule):  # type: ignore[misc]
    """The network of PPO, A2C and IMPALA with an action mask."""


class MaskedAPPO(_MaskedActor, DefaultAPPOTorchRLModule):  # type: ignore[misc]
    """The network of APPO with an action mask."""

    def forward_target(self, batch: Batch) -> Batch:
        """Return what the target network would do."""
        return _masked(batch, super().forward_target(_plain(batch)), TARGET_NETWORK_ACTION_DIST_INPUTS)


class MaskedDQN(_DictObservations, DefaultDQNTorchRLModule):  # type: ignore[misc]
    """The network of DQN with an action mask: illegal actions are worth minus infinity, as RLlib's DQN expects."""

    def _qf_forward_helper(self, batch: Batch, encoder: Any, head: Any) -> Batch:
        out = super()._qf_forward_helper(_plain(batch), encoder, head)
        mask = batch[Columns.OBS][MASK] > 0
        # At the end of an episode no action may be legal. Its value is multiplied by 0, and infinity would not vanish.
        keep = mask | ~mask.any(dim=-1, keepdim=True)
        out[QF_PREDS] = torch.where(keep, out[QF_PREDS], torch.full_like(out[QF_PREDS], -torch.inf))
        return out


class CentralCriticActor(_DictObservations, DefaultPPOTorchRLModule):  # type: ignore[misc]
    """An actor whose values come from the critic that all agents share. It acts without the critic."""

    def setup(self) -> None:
        """Build the actor's networks alone."""
        self.catalog.actor_critic_encoder_config.inference_only = True
        self.encoder = self.catalog.build_actor_critic_encoder(framework=self.framework)
        self.pi = self.catalog.build_pi_head(framework=self.framework)
        self._critic: list[Any] = []
        """In a list, so that torch does not count its weights among the actor's."""
        self._number, self._count = 0, 0

    def ask(self, critic: "CentralCritic", number: int, count: int) -> None:
        """Use a critic, as agent `number` of `count`."""
        self._critic, self._number, self._count = [critic], number, count

    def get_non_inference_attributes(self) -> list[str]:
        """Everything here is needed to act."""
        return []

    def _forward(self, batch: Batch, **_: Any) -> Batch:
        logits = self.pi(self.encoder(_plain(batch))[ENCODER_OUT][ACTOR])
        return _masked(batch, {Columns.ACTION_DIST_INPUTS: logits}, Columns.ACTION_DIST_INPUTS)

    def _forward_train(self, batch: Batch, **_: Any) -> Batch:
        return self._forward(batch)

    def compute_values(self, batch: Batch, embeddings: Any = None) -> Any:
        """Ask the critic what the global state is worth for this agent."""
        state = batch[Columns.OBS][STATE]
        who = torch.zeros((*state.shape[:-1], self._count), device=state.device)
        who[..., self._number] = 1.0
        return self._critic[0].values(torch.cat([state, who], dim=-1))


class CentralCritic(TorchRLModule):  # type: ignore[misc]
    """One critic for all agents: it sees the global state, and which agent asks."""

    def setup(self) -> None:
        """Build the network."""
        hidden = self.model_config.get("fcnet_hiddens") or _HIDDEN
        sizes = (*self.observation_space.shape, *hidden)
        layers = [part for pair in itertools.pairwise(sizes) for part in (torch.nn.Linear(*pair), torch.nn.Tanh())]
        self._net = torch.nn.Sequential(*layers, torch.nn.Linear(sizes[-1], 1))

    def values(self, inputs: Any) -> Any:
        """Return one value per row."""
        return self._net(inputs).squeeze(-1)

    def _forward(self, batch: Batch, **_: Any) -> Batch:
        return {}


class CentralCriticModules(MultiRLModule):  # type: ignore[misc]
    """All actors, and in the learner the critic that they ask."""

    def setup(self) -> None:
        """Build all modules and introduce the critic to the actors."""
        super().setup()
        critic = self._rl_modules.get(CRITIC)
        actors = {name: module for name, module in self._rl_modules.items() if name != CRITIC}
        if critic is not None:
            for number, actor in enumerate(actors.values()):
                actor.ask(critic, number, len(actors))
