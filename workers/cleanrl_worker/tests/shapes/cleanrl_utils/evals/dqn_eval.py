"""Plays a few episodes with a saved network."""

import gymnasium as gym
import torch


def evaluate(model_path, make_env, env_id, episodes, run_name, Model):  # noqa: N803 - as CleanRL calls it
    envs = gym.vector.SyncVectorEnv([make_env(env_id, 0, 0, False, run_name)])
    model = Model(envs)
    model.load_state_dict(torch.load(model_path))
    observation, _ = envs.reset()
    returns = []
    while len(returns) < episodes:
        actions = model(torch.Tensor(observation)).argmax(dim=1).numpy()
        observation, _, _, _, infos = envs.step(actions)
        returns += [info["episode"]["r"] for info in infos.get("final_info", []) if info]
    return returns
