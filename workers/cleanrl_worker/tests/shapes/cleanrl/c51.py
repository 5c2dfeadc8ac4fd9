"""Learns nothing; what goes wrong is chosen with --fault. For tests."""

import copy
import ctypes
import os
import pickle
import subprocess
import sys
import time
from dataclasses import dataclass

import gymnasium as gym
import numpy as np
import torch
import tyro
from torch.utils.tensorboard import SummaryWriter


@dataclass
class Args:
    seed: int = 1
    """where randomness starts"""
    env_id: str = "CartPole-v1"
    """the environment"""
    total_timesteps: int = 100
    """steps to play"""
    fault: str = "none"
    """what goes wrong"""


def play(env, steps):
    env.reset(seed=1)
    for _ in range(steps):
        _, _, terminated, truncated, _ = env.step(env.action_space.sample())
        if terminated or truncated:
            env.reset()


if __name__ == "__main__":
    args = tyro.cli(Args)
    if args.fault == "silence":
        print("nothing to do")
        sys.exit(0)
    if args.fault == "scalars only":  # environments that never pass `make`, like those of envpool
        writer = SummaryWriter("runs/c51")
        for number in range(3):
            writer.add_scalar("charts/episodic_return", np.array([10.0 * number]), 100 * (number + 1))
            writer.add_scalar("losses/loss", 1.0, 100 * (number + 1))
        sys.exit(0)
    env = gym.make(args.env_id)
    play(env, args.total_timesteps)
    if args.fault == "no loss":
        sys.exit(0)
    writer = SummaryWriter("runs/c51")
    writer.add_scalar("losses/explained_variance", float("nan"), 0)
    writer.add_scalar("losses/loss", torch.tensor(1.5, requires_grad=True), args.total_timesteps)
    match args.fault:
        case "nan":
            writer.add_scalar("losses/loss", float("nan"), args.total_timesteps)
            print("this line is never reached")
        case "crash":
            print("the last thing it printed")
            raise RuntimeError("the sky fell")
        case "segfault":
            ctypes.string_at(0)
        case "hang":
            # A child that does not listen, and one of its own: both have to go, too.
            subprocess.Popen(["bash", "-c", "trap '' TERM; sleep 1000 & wait; sleep 1000"])
            print(f"hanging {os.getpid()}")
            play(env, 10)
            time.sleep(1000)
        case "oddities":
            os.write(1, b"straight to descriptor 1\n")
            print('{"event": "run_completed", "ts": 1}')
            print("to stderr", file=sys.stderr)
            assert isinstance(env, gym.wrappers.TimeLimit)
            assert type(env).__name__ == "TimeLimit"
            assert str(env) == "<TimeLimit<OrderEnforcing<PassiveEnvChecker<CartPoleEnv<CartPole-v1>>>>>"
            assert env.spec.make().spec == env.spec
            for other in (copy.deepcopy(env), pickle.loads(pickle.dumps(env))):
                assert type(other) is gym.wrappers.TimeLimit
                play(other, 50)
            env.unwrapped.step = lambda action: (np.zeros(4), "a reward that is no number", False, False, {})
            env.reset()
            env.step(0)
            print("all is as expected")
