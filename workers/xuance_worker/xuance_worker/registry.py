"""Every agent that XuanCe registers: how it learns, and why some do not run."""

from dataclasses import dataclass
from typing import Literal

from mosaic_worker.config import near
from mosaic_worker.errors import ConfigError

__all__ = ["AGENTS", "Agent", "find_agent"]

Actions = Literal["discrete", "continuous", "both"]


@dataclass(frozen=True)
class Agent:
    """One entry of XuanCe's REGISTRY_Agents."""

    name: str
    family: str
    actions: Actions
    is_multi: bool = True
    is_team: bool = False
    """It learns one value for the whole team, so that agents with opposed rewards cannot learn with it."""
    talks: bool = False
    """An agent's action depends on what the other agents see or do, so that it cannot be asked alone."""
    equal_only: bool = False
    """All agents have to see and do alike."""
    silent: Literal["", "episodes", "updates"] = ""
    """What its loop logs without calling back."""
    fails: str = ""
    """Why it does not run."""
    listed_as: str = ""
    """The name under which XuanCe's own settings list it, if that is another one."""


_SCATTER = "it needs torch_scatter, which has no build for this torch"
_LEGACY_GYM = "it needs the Platform environment of the old gym, which does not install here"
_NO_SETTINGS = "XuanCe ships no settings for it"
_BUFFER = "XuanCe 1.4.4 cannot make its replay buffer (two arguments are missing)"
_LEARNER = "its learner in XuanCe 1.4.4 fails in the first update ({} object has no attribute 'reshape')"

AGENTS: dict[str, Agent] = {
    agent.name: agent
    for agent in (
        # One value per agent.
        Agent("IQL", "independent Q-learning", "discrete"),
        Agent("IAC", "independent actor-critic", "both"),
        Agent("IPPO", "independent actor-critic", "both"),
        Agent("IDDPG", "independent actor-critic", "continuous"),
        Agent("ISAC", "independent actor-critic", "continuous"),
        Agent("ITD3", "independent actor-critic", "continuous"),
        # Actors that act alone, critics that see everything.
        Agent("MAPPO", "central critic", "both"),
        Agent("MADDPG", "central critic", "continuous"),
        Agent("MASAC", "central critic", "continuous"),
        Agent("MATD3", "central critic", "continuous"),
        Agent("COMA", "central critic", "discrete", is_team=True, equal_only=True),
        # One value for the team.
        Agent("VDN", "value decomposition", "discrete", is_team=True),
        Agent("QMIX", "value decomposition", "discrete", is_team=True),
        Agent("OWQMIX", "value decomposition", "discrete", is_team=True),
        Agent(
            "CWQMIX", "value decomposition", "discrete", is_team=True, fails=_LEARNER.format("dict"), listed_as="OWQMIX"
        ),
        Agent("QTRAN_base", "value decomposition", "discrete", is_team=True),
        Agent(
            "QTRAN_alt",
            "value decomposition",
            "discrete",
            is_team=True,
            fails=_LEARNER.format("tuple"),
            listed_as="QTRAN_base",
        ),
        Agent("VDAC", "value decomposition", "both", is_team=True),
        Agent("DCG", "value decomposition", "discrete", is_team=True, fails=_SCATTER),
        Agent("DCG_S", "value decomposition", "discrete", is_team=True, fails=_SCATTER, listed_as="DCG"),
        # Agents that see each other's actions or messages.
        Agent("MFQ", "mean field", "discrete", talks=True),
        Agent("MFAC", "mean field", "discrete", talks=True),
        Agent("CommNet", "communication", "discrete", talks=True, equal_only=True, silent="episodes"),
        Agent("IC3Net", "communication", "discrete", talks=True, equal_only=True, silent="episodes"),
        Agent("TarMAC", "communication", "discrete", talks=True, equal_only=True, silent="episodes"),
        Agent("RANDOM", "baseline", "both", fails="it does not train; use the baseline worker"),
        # A single agent.
        Agent("PG", "policy gradient", "both", is_multi=False),
        Agent("A2C", "policy gradient", "both", is_multi=False),
        Agent("PPO", "policy gradient", "both", is_multi=False),
        Agent("PPO_KL", "policy gradient", "both", is_multi=False, listed_as="PPO"),
        Agent("PPG", "policy gradient", "both", is_multi=False),
        Agent("NPG", "policy gradient", "both", is_multi=False, fails="it needs 22 GB of memory on CartPole"),
        Agent("SAC", "policy gradient", "both", is_multi=False),
        Agent("DDPG", "policy gradient", "continuous", is_multi=False),
        Agent("TD3", "policy gradient", "continuous", is_multi=False),
        Agent("DQN", "Q-learning", "discrete", is_multi=False),
        Agent("DDQN", "Q-learning", "discrete", is_multi=False),
        Agent("Duel_DQN", "Q-learning", "discrete", is_multi=False),
        Agent("NoisyDQN", "Q-learning", "discrete", is_multi=False),
        Agent("PerDQN", "Q-learning", "discrete", is_multi=False),
        Agent("C51DQN", "Q-learning", "discrete", is_multi=False),
        Agent("QRDQN", "Q-learning", "discrete", is_multi=False),
        Agent("DRQN", "Q-learning", "discrete", is_multi=False, silent="updates"),
        Agent("PDQN", "Q-learning", "both", is_multi=False, fails=_LEGACY_GYM),
        Agent("MPDQN", "Q-learning", "both", is_multi=False, fails=_LEGACY_GYM),
        Agent("SPDQN", "Q-learning", "both", is_multi=False, fails=_LEGACY_GYM),
        Agent("DreamerV2", "model-based", "both", is_multi=False, fails=_BUFFER),
        Agent("DreamerV3", "model-based", "both", is_multi=False, fails=_BUFFER),
        Agent("TD3BC", "offline", "continuous", is_multi=False, fails="it learns from recorded data, not by acting"),
        Agent("CURL", "contrastive", "discrete", is_multi=False, fails=_NO_SETTINGS),
        Agent("SPR", "contrastive", "discrete", is_multi=False, fails=_NO_SETTINGS),
        Agent("DrQ", "contrastive", "discrete", is_multi=False, fails=_NO_SETTINGS),
    )
}
"""By XuanCe's own names. `docs/xuance.md` has the table of what was run."""

_ALIASES = {
    "PPO_Clip": "PPO",
    "PPOKL": "PPO_KL",
    "C51": "C51DQN",
    "DuelDQN": "Duel_DQN",
    "Dueling_DQN": "Duel_DQN",
    "Double_DQN": "DDQN",
    "Noisy_DQN": "NoisyDQN",
    "PER_DQN": "PerDQN",
    "QR_DQN": "QRDQN",
    "WQMIX": "OWQMIX",
    "QTRAN": "QTRAN_base",
}
_BY_LOWER = {name.lower(): name for name in AGENTS} | {alias.lower(): name for alias, name in _ALIASES.items()}


def find_agent(name: str) -> Agent:
    """Return the agent of a name, in any case, or of an alias; ConfigError if there is none."""
    found = _BY_LOWER.get(name.strip().lower().replace("-", "_"))
    if found is None:
        raise ConfigError(f"algorithm: {name!r} is not one of XuanCe's {len(AGENTS)} agents{near(name, list(AGENTS))}")
    return AGENTS[found]
