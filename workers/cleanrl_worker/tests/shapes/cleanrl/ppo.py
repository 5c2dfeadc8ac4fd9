"""Proximal policy optimization in one file, in the shape of CleanRL's scripts, for tests and benches."""

# ruff: noqa: NPY002 - numpy is seeded as CleanRL's scripts do it

import random
import time
from dataclasses import dataclass
from pathlib import Path

import gymnasium as gym
import numpy as np
import torch
import tyro
from cleanrl_utils.pace import Pace
from torch import nn, optim
from torch.distributions.categorical import Categorical
from torch.utils.tensorboard import SummaryWriter


@dataclass
class Args:
    exp_name: str = Path(__file__).stem
    """the name of this experiment"""
    seed: int = 1
    """where randomness starts"""
    torch_deterministic: bool = True
    """not used"""
    cuda: bool = True
    """use a GPU if there is one"""
    capture_video: bool = False
    """record videos"""
    env_id: str = "CartPole-v1"
    """the environment"""
    total_timesteps: int = 20000
    """steps to train for"""
    learning_rate: float = 1e-3
    """of the optimizer"""
    num_envs: int = 4
    """environments side by side"""
    num_steps: int = 128
    """steps of each between updates"""
    gamma: float = 0.99
    """discount"""
    gae_lambda: float = 0.95
    """of the advantages"""
    num_minibatches: int = 4
    """parts of a batch"""
    update_epochs: int = 4
    """how often each is used"""
    clip_coef: float = 0.2
    """how far the policy may move"""
    asynchronous: bool = False
    """each environment in a process of its own"""


def make_env(env_id, idx, capture_video, run_name):
    def thunk():
        if capture_video and idx == 0:
            env = gym.make(env_id, render_mode="rgb_array")
            env = gym.wrappers.RecordVideo(env, f"videos/{run_name}")
        else:
            env = gym.make(env_id)
        return gym.wrappers.RecordEpisodeStatistics(env)

    return thunk


class Agent(nn.Module):
    def __init__(self, envs):
        super().__init__()
        inputs, actions = int(np.prod(envs.single_observation_space.shape)), envs.single_action_space.n
        self.actor = nn.Sequential(
            nn.Linear(inputs, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, actions)
        )
        self.critic = nn.Sequential(nn.Linear(inputs, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))

    def act(self, observations, actions=None):
        chances = Categorical(logits=self.actor(observations))
        actions = chances.sample() if actions is None else actions
        return actions, chances.log_prob(actions), chances.entropy(), self.critic(observations).squeeze(-1)


if __name__ == "__main__":
    args = tyro.cli(Args)
    run_name = f"{args.env_id}__{args.exp_name}__{args.seed}__{int(time.time())}"
    writer = SummaryWriter(f"runs/{run_name}")
    random.seed(args.seed)
    np.random.seed(args.seed)
    torch.manual_seed(args.seed)
    device = torch.device("cuda" if torch.cuda.is_available() and args.cuda else "cpu")
    vector = gym.vector.AsyncVectorEnv if args.asynchronous else gym.vector.SyncVectorEnv
    envs = vector([make_env(args.env_id, i, args.capture_video, run_name) for i in range(args.num_envs)])
    agent = Agent(envs).to(device)
    optimizer = optim.Adam(agent.parameters(), lr=args.learning_rate, eps=1e-5)
    steps, width = args.num_steps, args.num_envs
    seen = torch.zeros((steps, width, *envs.single_observation_space.shape))
    taken, chances, gained, ends, values = (torch.zeros((steps, width)) for _ in range(5))
    began, global_step = time.time(), 0

    observation = torch.Tensor(envs.reset(seed=args.seed)[0])
    end = torch.zeros(width)
    pace = Pace(torch.no_grad()(lambda: agent.act(observation)))
    updates = args.total_timesteps // (steps * width)
    for update in range(updates):
        if update >= updates // 5:  # from here on, it runs as it will
            pace.lap(global_step)
        for step in range(steps):
            global_step += width
            seen[step], ends[step] = observation, end
            with torch.no_grad():
                action, chances[step], _, values[step] = agent.act(observation)
            taken[step] = action
            following, reward, terminations, truncations, infos = envs.step(action.numpy())
            gained[step] = torch.Tensor(reward)
            observation, end = torch.Tensor(following), torch.Tensor(np.logical_or(terminations, truncations))
            for info in infos.get("final_info", []):
                if info and "episode" in info:
                    print(f"global_step={global_step}, episodic_return={info['episode']['r']}")
                    writer.add_scalar("charts/episodic_return", info["episode"]["r"], global_step)
                    writer.add_scalar("charts/episodic_length", info["episode"]["l"], global_step)
        with torch.no_grad():
            following_value = agent.act(observation)[3]
            advantages, last = torch.zeros_like(gained), 0
            for t in reversed(range(steps)):
                goes_on = 1 - (end if t == steps - 1 else ends[t + 1])
                next_value = following_value if t == steps - 1 else values[t + 1]
                delta = gained[t] + args.gamma * next_value * goes_on - values[t]
                advantages[t] = last = delta + args.gamma * args.gae_lambda * goes_on * last
            returns = advantages + values
        flat = [each.reshape(-1, *each.shape[2:]) for each in (seen, taken, chances, advantages, returns)]
        places = np.arange(steps * width)
        for _ in range(args.update_epochs):
            np.random.shuffle(places)
            for part in np.array_split(places, args.num_minibatches):
                b_seen, b_taken, b_chances, b_advantages, b_returns = (each[part] for each in flat)
                _, new_chances, entropy, new_values = agent.act(b_seen, b_taken)
                ratio = (new_chances - b_chances).exp()
                b_advantages = (b_advantages - b_advantages.mean()) / (b_advantages.std() + 1e-8)
                clipped = torch.clamp(ratio, 1 - args.clip_coef, 1 + args.clip_coef)
                policy_loss = torch.max(-b_advantages * ratio, -b_advantages * clipped).mean()
                value_loss = 0.5 * ((new_values - b_returns) ** 2).mean()
                optimizer.zero_grad()
                (policy_loss + 0.5 * value_loss - 0.01 * entropy.mean()).backward()
                nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
                optimizer.step()
        writer.add_scalar("losses/value_loss", value_loss.item(), global_step)
        writer.add_scalar("losses/policy_loss", policy_loss.item(), global_step)
        writer.add_scalar("losses/entropy", entropy.mean().item(), global_step)
        writer.add_scalar("losses/explained_variance", np.nan, global_step)
        writer.add_scalar("charts/SPS", int(global_step / (time.time() - began)), global_step)
    pace.lap(global_step)
    print(pace)
    envs.close()
    writer.close()
