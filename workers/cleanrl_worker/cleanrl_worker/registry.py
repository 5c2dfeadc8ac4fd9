"""All algorithms by name: their upstreams and action spaces."""

from dataclasses import dataclass
from typing import Literal

__all__ = ["DEFAULT_ALGO_REGISTRY", "OURS", "Algorithm", "Upstream"]

Upstream = Literal["ours", "checkout", "legacy"]
OURS = "cleanrl_worker.algorithms.ppo_with_save"
_MODULES: dict[Upstream, str] = {"checkout": "cleanrl", "legacy": "cleanrl"}


@dataclass(frozen=True)
class Algorithm:
    """One entry of the registry."""

    name: str
    family: str
    actions: Literal["discrete", "continuous"]
    upstreams: tuple[Upstream, ...] = ("checkout",)

    def module(self, upstream: Upstream) -> str:
        """Return the module to run: ours, or the script in a checkout or in the package from PyPI."""
        return OURS if upstream == "ours" else f"{_MODULES[upstream]}.{self.name}"


def _family(family: str, actions: Literal["discrete", "continuous"], *names: str) -> list[Algorithm]:
    return [Algorithm(name, family, actions, _UPSTREAMS.get(name, ("checkout",))) for name in names]


_UPSTREAMS: dict[str, tuple[Upstream, ...]] = {
    "ppo": ("ours", "legacy"),
    **dict.fromkeys(
        (
            "ppo_continuous_action",
            "dqn",
            "c51",
            "ddpg_continuous_action",
            "td3_continuous_action",
            "sac_continuous_action",
        ),
        ("checkout", "legacy"),
    ),
}

DEFAULT_ALGO_REGISTRY: dict[str, Algorithm] = {
    algorithm.name: algorithm
    for algorithm in [
        *_family(
            "PPO",
            "discrete",
            "ppo",
            "ppo_atari",
            "ppo_atari_multigpu",
            "ppo_atari_lstm",
            "ppo_atari_envpool",
            "ppo_atari_envpool_xla_jax",
            "ppo_atari_envpool_xla_jax_scan",
            "ppo_procgen",
            "ppo_rnd_envpool",
            "ppo_pettingzoo_ma_atari",
        ),
        *_family("PPO", "continuous", "ppo_continuous_action"),
        *_family(
            "Policy optimization variants",
            "discrete",
            "ppg_procgen",
            "pqn",
            "pqn_atari_envpool",
            "pqn_atari_envpool_lstm",
        ),
        *_family("Policy optimization variants", "continuous", "rpo_continuous_action"),
        *_family(
            "Q-learning",
            "discrete",
            "dqn",
            "dqn_atari",
            "dqn_jax",
            "dqn_atari_jax",
            "rainbow_atari",
            "qdagger_dqn_atari_impalacnn",
            "qdagger_dqn_atari_jax_impalacnn",
        ),
        *_family("Distributional", "discrete", "c51", "c51_jax", "c51_atari", "c51_atari_jax"),
        *_family(
            "Continuous control",
            "continuous",
            "ddpg_continuous_action",
            "ddpg_continuous_action_jax",
            "td3_continuous_action",
            "td3_continuous_action_jax",
            "sac_continuous_action",
        ),
        *_family("Continuous control", "discrete", "sac_atari"),
    ]
}
"""Valid values of `algo`; `availability.py` finds which of them run here."""
