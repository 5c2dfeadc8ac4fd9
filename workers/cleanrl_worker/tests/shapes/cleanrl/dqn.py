"""Q-learning with replay in one file, in the shape of CleanRL's scripts, for tests and benches."""

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
from torch.utils.tensorboard import SummaryWriter


@dataclass
class Args:
    exp_name: str = Path(__file__).stem
    """the name of this experiment"""
    seed: int = 1
    """where randomness starts"""
    cuda: bool = True
    """use a GPU if there is one"""
    track: bool = False
    """log to Weights & Biases"""
    wandb_project_name: str = "cleanRL"
    """the project there"""
    wandb_entity: str = None
    """the team there"""
    capture_video: bool = False
    """record videos"""
    save_model: bool = False
    """keep the trained network, and evaluate it"""
    env_id: str = "CartPole-v1"
    """the environment"""
    total_timesteps: int = 10000
    """steps to train for"""
    learning_rate: float = 1e-3
    """of the optimizer"""
    buffer_size: int = 10000
    """transitions to remember"""
    gamma: float = 0.99
    """discount"""
    batch_size: int = 64
    """transitions of one update"""
    exploration_fraction: float = 0.5
    """part of the training in which random actions become rare"""
    learning_starts: int = 200
    """steps before the first update"""
    train_frequency: int = 4
    """steps between updates"""
    target_frequency: int = 250
    """steps between copies to the target network"""
    v_min: float = -10.0
    """not used; its default is negative"""


def make_env(env_id, seed, idx, capture_video, run_name):
    def thunk():
        if capture_video and idx == 0:
            env = gym.make(env_id, render_mode="rgb_array")
            env = gym.wrappers.RecordVideo(env, f"videos/{run_name}")
        else:
            env = gym.make(env_id)
        env = gym.wrappers.RecordEpisodeStatistics(env)
        env.action_space.seed(seed)
        return env

    return thunk


class QNetwork(nn.Module):
    def __init__(self, envs):
        super().__init__()
        inputs = int(np.prod(envs.single_observation_space.shape))
        self.layers = nn.Sequential(
            nn.Linear(inputs, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, envs.single_action_space.n)
        )

    def forward(self, x):
        return self.layers(x)


class Memory:
    """The last transitions, in arrays."""

    def __init__(self, size, shape):
        self.observations = np.zeros((size, *shape), np.float32)
        self.next_observations = np.zeros((size, *shape), np.float32)
        self.actions = np.zeros(size, np.int64)
        self.rewards = np.zeros(size, np.float32)
        self.ends = np.zeros(size, np.float32)
        self.size, self.count = size, 0

    def add(self, observation, next_observation, action, reward, end):
        place = self.count % self.size
        self.observations[place], self.next_observations[place] = observation, next_observation
        self.actions[place], self.rewards[place], self.ends[place] = action, reward, end
        self.count += 1

    def sample(self, count):
        places = np.random.randint(0, min(self.count, self.size), count)
        arrays = (self.observations, self.next_observations, self.actions, self.rewards, self.ends)
        return [torch.from_numpy(array[places]) for array in arrays]


if __name__ == "__main__":
    args = tyro.cli(Args)
    run_name = f"{args.env_id}__{args.exp_name}__{args.seed}__{int(time.time())}"
    if args.track:
        import wandb

        wandb.init(project=args.wandb_project_name, entity=args.wandb_entity, name=run_name, sync_tensorboard=True)
    writer = SummaryWriter(f"runs/{run_name}")
    random.seed(args.seed)
    np.random.seed(args.seed)
    torch.manual_seed(args.seed)
    device = torch.device("cuda" if torch.cuda.is_available() and args.cuda else "cpu")
    envs = gym.vector.SyncVectorEnv([make_env(args.env_id, args.seed, 0, args.capture_video, run_name)])
    network, target = QNetwork(envs).to(device), QNetwork(envs).to(device)
    target.load_state_dict(network.state_dict())
    optimizer = optim.Adam(network.parameters(), lr=args.learning_rate)
    memory = Memory(args.buffer_size, envs.single_observation_space.shape)
    began = time.time()

    observation, _ = envs.reset(seed=args.seed)
    pace = Pace(torch.no_grad()(lambda: network(torch.Tensor(observation)).argmax(dim=1)))
    for global_step in range(args.total_timesteps):
        if global_step >= args.total_timesteps // 5 and global_step % 500 == 0:  # from here on, it runs as it will
            pace.lap(global_step)
        epsilon = max(0.05, 1 - global_step / (args.exploration_fraction * args.total_timesteps))
        if random.random() < epsilon:
            actions = np.array([envs.single_action_space.sample()])
        else:
            with torch.no_grad():
                actions = network(torch.Tensor(observation).to(device)).argmax(dim=1).cpu().numpy()
        following, rewards, terminations, truncations, infos = envs.step(actions)
        for info in infos.get("final_info", []):
            if info and "episode" in info:
                print(f"global_step={global_step}, episodic_return={info['episode']['r']}")
                writer.add_scalar("charts/episodic_return", info["episode"]["r"], global_step)
                writer.add_scalar("charts/episodic_length", info["episode"]["l"], global_step)
        real_following = infos["final_observation"][0] if truncations[0] else following[0]
        memory.add(observation[0], real_following, actions[0], rewards[0], terminations[0])
        observation = following
        if global_step > args.learning_starts and global_step % args.train_frequency == 0:
            old, new, taken, gained, ends = memory.sample(args.batch_size)
            with torch.no_grad():
                wanted = gained + args.gamma * target(new).max(dim=1).values * (1 - ends)
            values = network(old).gather(1, taken[:, None]).squeeze()
            loss = nn.functional.mse_loss(values, wanted)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if global_step % 100 == 0:
                writer.add_scalar("losses/td_loss", loss, global_step)
                writer.add_scalar("losses/q_values", values.mean().item(), global_step)
                writer.add_scalar("charts/SPS", int(global_step / (time.time() - began)), global_step)
            if global_step % args.target_frequency == 0:
                target.load_state_dict(network.state_dict())
    if args.save_model:
        model_path = f"runs/{run_name}/{args.exp_name}.cleanrl_model"
        torch.save(network.state_dict(), model_path)
        from cleanrl_utils.evals.dqn_eval import evaluate

        for number, result in enumerate(evaluate(model_path, make_env, args.env_id, 3, f"{run_name}-eval", QNetwork)):
            writer.add_scalar("eval/episodic_return", result, number)
    print(pace)
    envs.close()
    writer.close()
