"""REINFORCE with a tiny policy."""

from typing import Any

import gymnasium
import torch

from mosaic_worker.context import RunContext
from torch_worker.config import TorchConfig


def run(context: RunContext[TorchConfig]) -> dict[str, Any]:
    """Play an episode, update, and so on."""
    config, emitter = context.config, context.emitter
    env = gymnasium.make("CartPole-v1")
    emitter.run_started(
        config.run_id,
        "torch",
        seed=config.seed,
        total_episodes=config.updates,
        task="CartPole-v1",
        versions={"torch": torch.__version__, "gymnasium": gymnasium.__version__},
        threads=torch.get_num_threads(),
    )
    if config.seed is not None:
        torch.manual_seed(config.seed)
    policy = torch.nn.Sequential(torch.nn.Linear(4, 32), torch.nn.Tanh(), torch.nn.Linear(32, 2))
    optimizer = torch.optim.Adam(policy.parameters(), lr=1e-2)
    step = 0
    for update in range(config.updates):
        context.stop.check()
        seed = None if config.seed is None else config.seed + update
        observation, _ = env.reset(seed=seed)
        log_probabilities, rewards, ended = [], [], False
        while not ended:
            choice = torch.distributions.Categorical(logits=policy(torch.as_tensor(observation)))
            action = choice.sample()
            log_probabilities.append(choice.log_prob(action))
            observation, reward, terminated, truncated, _ = env.step(int(action))
            rewards.append(float(reward))
            ended = terminated or truncated
        step += len(rewards)
        to_go = torch.tensor(rewards).flip(0).cumsum(0).flip(0)
        loss = -(torch.stack(log_probabilities) * (to_go - to_go.mean())).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        emitter.episode(update, sum(rewards), length=len(rewards), step=step, seed=seed)
        emitter.scalars(step, {"loss": loss.item()})
    env.close()
    return {"weight": float(policy[0].weight.detach().sum())}
