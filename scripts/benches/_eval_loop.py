"""The other side of `bench eval`: the same policies in one process, in a plain loop. Runs in cleanrl's environment."""

import json
import sys
import time
from typing import Any

import gymnasium
from benches import _eval_game
from cleanrl_worker.config import CleanRLWorkerConfig
from cleanrl_worker.policies import OurPolicy, load_policy

_WARM_UP = 200


def alone(checkpoint: str, steps: int) -> float:
    """Steps per second of CartPole with a model."""
    extras = {"mode": "interactive", "policy_path": checkpoint}
    policy = load_policy(CleanRLWorkerConfig(run_id="loop", extras=extras))  # type: ignore[arg-type]
    env = gymnasium.make("CartPole-v1")
    seen, _ = env.reset(seed=0)
    began = 0.0
    for step in range(steps + _WARM_UP):
        if step == _WARM_UP:
            began = time.perf_counter()
        seen, _, terminated, truncated, _ = env.step(policy.act([seen])[0])
        if terminated or truncated:
            seen, _ = env.reset(seed=step)
    return steps / (time.perf_counter() - began)


def two(kind: str, steps: int) -> float:
    """Moves per second of the game of two, each with a policy of its own."""
    game: Any = _eval_game.env() if kind == "turn" else _eval_game.parallel_env()
    space, actions = game.observation_space(""), game.action_space("")
    policies = {name: OurPolicy.untrained("", space, actions, "mlp", 1) for name in _eval_game.AGENTS}
    game.reset(seed=0)
    seen: Any = game.state
    began = 0.0
    for step in range(steps + _WARM_UP):
        if step == _WARM_UP:
            began = time.perf_counter()
        if kind == "turn":
            seen, _, over, _, _ = game.last()
            game.step(policies[game.agent_selection].act([seen])[0])
        else:
            found, _, ended, _, _ = game.step({name: policies[name].act([seen])[0] for name in policies})
            seen, over = found["first"], ended["first"]
        if over:
            game.reset(seed=step)
            seen = game.state
    return steps / (time.perf_counter() - began)


if __name__ == "__main__":
    what, count = sys.argv[1], int(sys.argv[2])
    rate = alone(sys.argv[3], count) if what == "alone" else two(what, count)
    print(json.dumps(rate))
