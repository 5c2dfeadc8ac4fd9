"""Evaluation of a checkpoint: episodes with fixed seeds, one after the other, so that results can be compared."""

import statistics
from pathlib import Path
from typing import Any

from xuance.environment import XuanCeAtariEnvWrapper, XuanCeEnvWrapper, XuanCeMultiAgentEnvWrapper

from mosaic_worker.frames.fastlane import FastLane
from xuance_worker.checkpoints import FOLDERS
from xuance_worker.policies import Policy, load_policy
from xuance_worker.task import Task
from xuance_worker.training import Context, make_lane, use_threads
from xuance_worker.wrappers import begin_episode, make_raw, wrapper_of

__all__ = ["evaluate", "make_env", "play_episode", "step_env"]


def evaluate(context: Context, seed: int) -> dict[str, Any]:
    """Play `eval_episodes` episodes; episode i is reset with seed + i."""
    use_threads()
    config, emitter = context.config, context.emitter
    path = FOLDERS.find(config.policy_path or "", "policy_path")
    policy, about = load_policy(path, "policy_path", deterministic=config.deterministic)
    emitter.checkpoint_loaded(str(path), trained_steps=about.step)
    if config.deterministic and not policy.is_deterministic:
        emitter.log("warning", f"{about.agent} samples its actions in XuanCe, also when it is evaluated")
    lane = make_lane(context)
    env = make_env(policy.task, lane, seed)
    returns, steps = [], 0
    try:
        for index in range(config.eval_episodes):
            total, each, length = play_episode(env, policy, seed + index, context.stop.check)
            steps += length
            emitter.episode(index, total, length=length, step=steps, seed=seed + index, returns=each)
            returns.append(total)
    finally:
        env.close()
    summary = {
        "algorithm": about.agent,
        "env_id": about.env_id,
        "trained_steps": about.step,
        "seed": seed,
        "episodes": len(returns),
        "steps": steps,
        "return_mean": statistics.fmean(returns),
        "return_std": statistics.pstdev(returns),
        "return_min": min(returns),
        "return_max": max(returns),
        "return_median": statistics.median(returns),
    }
    emitter.scalars(steps, {"eval/return_mean": summary["return_mean"]})
    return summary


def make_env(task: Task, lane: FastLane, seed: int) -> Any:
    """Make one environment as XuanCe wraps it for training."""
    arguments = task.arguments(seed, 1, "cpu", Path())
    arguments.render_mode = "rgb_array" if lane.wants_frames else None
    name = task.spaces.wrapper
    raw = make_raw(wrapper_of(name), arguments, lane)
    if task.spaces.agents:
        return XuanCeMultiAgentEnvWrapper(raw)
    return XuanCeAtariEnvWrapper(raw) if name == "Atari" else XuanCeEnvWrapper(raw)


def play_episode(env: Any, policy: Policy, seed: int, check: Any) -> tuple[float, dict[str, float] | None, int]:
    """Play one episode; return its mean return, that of each agent, and its length. `check` may raise between steps."""
    seen = begin_episode(env, seed)
    policy.begin_episode(seed)
    is_over, info = False, {}
    while not is_over:
        check()
        seen, _, is_over, info = step_env(env, policy.select_together(seen))
    score = info["episode_score"]
    if not policy.task.spaces.agents:
        return float(score), None, int(info["episode_step"])
    each = {agent: float(value) for agent, value in score.items()}
    return statistics.fmean(each.values()), each, int(info["episode_step"])


def step_env(env: Any, actions: Any) -> tuple[Any, Any, bool, dict[str, Any]]:
    """Take a step; return what is seen, the rewards, whether the episode is over, and the info."""
    seen, rewards, terminated, truncated, info = env.step(actions)
    is_over = all(terminated.values()) if isinstance(terminated, dict) else bool(terminated)
    return seen, rewards, is_over or bool(truncated), info
