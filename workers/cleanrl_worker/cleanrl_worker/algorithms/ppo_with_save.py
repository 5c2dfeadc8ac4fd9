"""PPO in one file, in the style of CleanRL, with checkpoints, clean stops and resume."""

import math
import random
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import gymnasium
import numpy as np
import torch
from torch import Tensor, nn

from cleanrl_worker.agents import AGENTS, Agent
from cleanrl_worker.algorithms.evaluator import Evaluator
from cleanrl_worker.algorithms.plan import Plan, plan_of, use_threads
from cleanrl_worker.algorithms.reporting import Reporter
from cleanrl_worker.algorithms.saver import Saver
from cleanrl_worker.algorithms.state import TrainingState
from cleanrl_worker.config import CleanRLWorkerConfig
from cleanrl_worker.environments import EpisodeTap, fit_to_agent, make, make_lane
from mosaic_worker.context import RunContext

__all__ = ["Args", "run_training", "train"]

VIDEOS = "every=50"
"""What capture_video records; keeping the best episode would mean rendering every one."""


@dataclass
class Args:
    """All settings; `extras.algo_params` may set those that are not fields of the config."""

    exp_name: str = "ppo"
    """the name of the experiment"""
    seed: int = 1
    """seed of all random numbers"""
    torch_deterministic: bool = True
    """use only deterministic algorithms of cuDNN"""
    cuda: bool = False
    """train on a GPU if there is one"""
    track: bool = False
    """also log to Weights & Biases"""
    wandb_project_name: str = "cleanRL"
    """the project at W&B"""
    wandb_entity: str | None = None
    """the user or team at W&B"""
    capture_video: bool = False
    """keep videos of episodes"""

    env_id: str = "CartPole-v1"
    """the environment"""
    total_timesteps: int = 500000
    """total number of environment steps"""
    learning_rate: float = 2.5e-4
    """initial learning rate of the optimizer"""
    num_envs: int = 4
    """number of parallel environments"""
    num_steps: int = 128
    """rollout length: steps per environment between two updates"""
    anneal_lr: bool = True
    """anneal the learning rate linearly to zero"""
    gamma: float = 0.99
    """discount factor"""
    gae_lambda: float = 0.95
    """lambda of generalised advantage estimation"""
    num_minibatches: int = 4
    """number of minibatches per epoch"""
    update_epochs: int = 4
    """number of epochs per update"""
    norm_adv: bool = True
    """normalise the advantages of each minibatch"""
    clip_coef: float = 0.2
    """clipping coefficient of the surrogate objective"""
    clip_vloss: bool = True
    """also clip the value loss"""
    ent_coef: float = 0.01
    """entropy bonus coefficient"""
    vf_coef: float = 0.5
    """value loss coefficient"""
    max_grad_norm: float = 0.5
    """gradient-norm clip"""
    norm_reward: bool = True
    """divide rewards by the running standard deviation of the discounted return; reported returns are not scaled"""
    target_kl: float | None = None
    """approximate KL divergence at which an update stops early"""


class Course(Protocol):
    """A curriculum: state to save and to restore."""

    def state(self) -> dict[str, Any]:
        """Return the state, as plain JSON."""

    def attach(self, reporter: Reporter, state: dict[str, Any] | None) -> None:
        """Start, or restore `state`, and report through `reporter`."""


OnEnd = Callable[[EpisodeTap, dict[str, Any]], None]
MakeEnv = Callable[[int, OnEnd], tuple[gymnasium.Env[Any, Any], str]]


@dataclass
class Rollout:
    """The transitions between two updates: arrays of (step, environment)."""

    observations: Any
    actions: Any
    rewards: Any
    ends: Any
    cut: list[tuple[int, int, Any]]
    """Truncated episodes: step, environment and final observation."""


def run_training(context: RunContext[CleanRLWorkerConfig]) -> dict[str, Any]:
    """Train from the beginning or from a checkpoint; return a summary."""
    plan = plan_of(context, Args)
    if plan.checkpoint is not None and plan.checkpoint.about.curriculum is not None:
        from cleanrl_worker.wrappers.curriculum import continue_curriculum  # noqa: PLC0415 - it imports this module

        return continue_curriculum(context, plan)
    lane = make_lane(context, VIDEOS)

    def make_env(index: int, on_end: OnEnd) -> tuple[gymnasium.Env[Any, Any], str]:
        env = lane.wrap(make(plan.env_id, render=lane.wants_frames), index)
        return fit_to_agent(EpisodeTap(env, on_end), plan.env_id)

    return train(context, plan, make_env)


def train(
    context: RunContext[CleanRLWorkerConfig],
    plan: Plan[Args],
    make_env: MakeEnv,
    course: Course | None = None,
    eval_env_id: str = "",
) -> dict[str, Any]:
    """Run the loop: play, learn, report, evaluate, save.

    `course` is the curriculum behind the environments, if there is one, and `eval_env_id` the environment in which the
    agent is evaluated, if that is another one than the plan's.
    """
    use_threads()
    args, saved = plan.args, plan.checkpoint
    _seed(args)
    reporter = Reporter(context, asdict(args), plan.step, saved.about.episodes if saved else 0)
    envs: list[gymnasium.Env[Any, Any]] = []
    try:
        if course is not None:
            course.attach(reporter, saved.about.curriculum if saved else None)
        for index in range(args.num_envs):
            env, kind = make_env(index, reporter.on_end)
            envs.append(env)
        device = _device(args, reporter)
        spaces = envs[0].observation_space, envs[0].action_space
        agent = AGENTS[kind](envs[0].observation_space.shape, int(envs[0].action_space.n)).to(device)
        optimizer = torch.optim.Adam(agent.parameters(), lr=args.learning_rate, eps=1e-5, fused=True)
        state = TrainingState(plan, kind, envs, agent, optimizer)
        views = [env.reset(seed=args.seed + index)[0] for index, env in enumerate(envs)]
        if saved is not None:
            state.restore(saved)
            views = [env.reset()[0] for env in envs]
            context.emitter.checkpoint_loaded(plan.checkpoint_path, step=plan.step)

        best = saved.about.best_score if saved is not None and context.resume is not None else None
        evaluator = Evaluator(context, eval_env_id or plan.env_id, plan.step, best)
        saver = Saver(context, state, course.state if course is not None else None)
        every, began = context.config.extras.checkpoint_every, time.perf_counter()
        learned = plan.step
        while learned < plan.target:
            rate = (1.0 - learned / plan.target if args.anneal_lr else 1.0) * args.learning_rate
            optimizer.param_groups[0]["lr"] = rate
            length = min(args.num_steps, math.ceil((plan.target - learned) / args.num_envs))
            rollout = _play(envs, agent, views, length, reporter, context.stop)
            after = torch.as_tensor(np.stack(views))
            figures = rollout and _learn(state, rollout, after, args, context.stop)
            if figures is None:  # asked to stop: the unfinished update is discarded, and its steps are played again
                break
            learned = reporter.step
            speed = (learned - plan.step) / (time.perf_counter() - began)
            reporter.scalars({**figures, "charts/learning_rate": rate, "charts/SPS": int(speed)})
            is_best = evaluator.is_due(learned, plan.target) and evaluator.improves(agent, *spaces, reporter)
            if is_best or learned // every > max(saver.last_step, plan.step) // every:
                saver.save(learned, reporter.episodes, evaluator.best, is_best=is_best)
        seconds = time.perf_counter() - began
        if saver.last_step != learned:
            saver.save(learned, reporter.episodes, evaluator.best)
        if learned < plan.target:
            context.stop.check()
    finally:
        for env in envs:
            env.close()
        reporter.close()
    return {
        "steps": learned,
        "episodes": reporter.episodes,
        "return_mean": reporter.return_mean,
        "steps_per_s": round((learned - plan.step) / seconds, 1) if learned > plan.step else None,
        **saver.summary(evaluator.best),
    }


def _seed(args: Args) -> None:
    random.seed(args.seed)
    np.random.seed(args.seed)  # noqa: NPY002 - the global generator, which some libraries use
    torch.manual_seed(args.seed)
    torch.backends.cudnn.deterministic = args.torch_deterministic


def _play(
    envs: list[gymnasium.Env[Any, Any]],
    agent: Agent,
    views: list[Any],
    length: int,
    reporter: Reporter,
    stop: Any,
) -> Rollout | None:
    """Take `length` steps in each environment; `views` holds the current observations, before and after."""
    count, device = len(envs), next(agent.parameters()).device
    first_action = int(getattr(envs[0].action_space, "start", 0))
    form = np.uint8 if agent.dtype() == torch.uint8 else np.float32
    rollout = Rollout(
        observations=np.empty((length, count, *np.shape(views[0])), form),
        actions=np.empty((length, count), np.int64),
        rewards=np.empty((length, count), np.float32),
        ends=np.zeros((length, count), np.float32),
        cut=[],
    )
    for at in range(length):
        if stop.requested:
            return None
        rollout.observations[at] = views
        with torch.no_grad():
            logits = agent.logits(torch.from_numpy(rollout.observations[at]).to(device)).cpu()
        # The argmax of logits with Gumbel noise is a sample of their distribution, at a fraction of the cost.
        chosen = (logits - torch.empty_like(logits).exponential_().log()).argmax(-1)
        rollout.actions[at] = chosen
        for index, action in enumerate(chosen.tolist()):
            env = envs[index]
            reporter.step += 1
            view, reward, terminated, truncated, _ = env.step(first_action + action)
            rollout.rewards[at, index] = reward
            if terminated or truncated:
                rollout.ends[at, index] = 1.0
                if truncated and not terminated:
                    rollout.cut.append((at, index, np.array(view)))  # a reset may write to the same array
                view, _ = env.reset()
            views[index] = view
    return rollout


def _learn(state: TrainingState, rollout: Rollout, after: Tensor, args: Args, stop: Any) -> dict[str, float] | None:
    """Update the agent with a rollout; `after` holds the observations that follow it.

    Return the figures; None if a stop was requested, since an update may take minutes.
    """
    agent, optimizer = state.agent, state.optimizer
    device = next(agent.parameters()).device
    if args.norm_reward:
        state.returns.scale(rollout.rewards, rollout.ends, args.gamma)
    observations = torch.from_numpy(rollout.observations).flatten(0, 1).to(device)
    actions = torch.from_numpy(rollout.actions).flatten().to(device)
    with torch.no_grad():
        logits, values = agent(observations)
        before = _log_probability(logits, actions)
        last = agent(after.to(device, agent.dtype()))[1].cpu().numpy()
        if rollout.cut:  # bootstrap from the value of the final observation
            ends = torch.as_tensor(np.stack([view for *_, view in rollout.cut])).to(device, agent.dtype())
            for (at, index, _), value in zip(rollout.cut, agent(ends)[1].tolist(), strict=True):
                rollout.rewards[at, index] += args.gamma * value
    advantages = _advantages(rollout, values.cpu().numpy().reshape(rollout.rewards.shape), last, args)
    advantage = torch.from_numpy(advantages).flatten().to(device)
    returns = advantage + values

    size = max(1, len(actions) // args.num_minibatches)
    figures: list[Tensor] = []
    for _ in range(args.update_epochs):
        order = torch.randperm(len(actions)).to(device)
        shuffled = (column[order].split(size) for column in (observations, actions, before, advantage, returns, values))
        for minibatch in zip(*shuffled, strict=True):
            if stop.requested:
                return None
            figures += [_step(agent, optimizer, args, *minibatch)]
        if args.target_kl is not None and float(figures[-1][4]) > args.target_kl:
            break
    means = torch.stack(figures).mean(0).tolist()
    names = ("policy_loss", "value_loss", "entropy", "old_approx_kl", "approx_kl", "clipfrac", "gradient_of_loss")
    spread = float(returns.var(correction=0))
    explained = 1.0 - float((returns - values).var(correction=0)) / spread if spread > 0 else float("nan")
    named = {f"losses/{name}": value for name, value in zip(names, means, strict=True)}
    return {**named, "losses/explained_variance": explained}


def _step(
    agent: Agent,
    optimizer: torch.optim.Optimizer,
    args: Args,
    observations: Tensor,
    actions: Tensor,
    before: Tensor,
    advantages: Tensor,
    returns: Tensor,
    values: Tensor,
) -> Tensor:
    """Take one optimizer step on a minibatch; return its figures."""
    logits, value = agent(observations)
    log_probabilities = torch.log_softmax(logits, -1)
    log_ratio = log_probabilities.gather(-1, actions.unsqueeze(-1)).squeeze(-1) - before
    ratio = log_ratio.exp()
    if args.norm_adv and len(advantages) > 1:
        advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
    clipped = ratio.clamp(1 - args.clip_coef, 1 + args.clip_coef)
    policy_loss = -torch.min(advantages * ratio, advantages * clipped).mean()
    error = (value - returns).square()
    if args.clip_vloss:
        near = values + (value - values).clamp(-args.clip_coef, args.clip_coef)
        error = torch.max(error, (near - returns).square())
    value_loss = 0.5 * error.mean()
    loss = policy_loss + args.vf_coef * value_loss
    with torch.set_grad_enabled(args.ent_coef != 0):  # with coefficient 0 the entropy is only reported
        entropy = -(log_probabilities.exp() * log_probabilities).sum(-1).mean()
        if args.ent_coef != 0:
            loss = loss - args.ent_coef * entropy
    optimizer.zero_grad()
    loss.backward()
    gradient = nn.utils.clip_grad_norm_(agent.parameters(), args.max_grad_norm)
    optimizer.step()
    with torch.no_grad():
        moved = ratio - 1
        far = (moved.abs() > args.clip_coef).float().mean()
        figures = policy_loss, value_loss, entropy, -log_ratio.mean(), (moved - log_ratio).mean(), far, gradient
        return torch.stack(figures)


def _log_probability(logits: Tensor, actions: Tensor) -> Tensor:
    return torch.log_softmax(logits, -1).gather(-1, actions.unsqueeze(-1)).squeeze(-1)


def _advantages(rollout: Rollout, values: Any, last: Any, args: Args) -> Any:
    """Return the advantages (generalised advantage estimation)."""
    advantages = np.zeros_like(rollout.rewards)
    ahead = np.zeros(len(last), np.float32)
    for at in reversed(range(len(advantages))):
        goes_on = 1.0 - rollout.ends[at]
        error = rollout.rewards[at] + args.gamma * last * goes_on - values[at]
        ahead = error + args.gamma * args.gae_lambda * goes_on * ahead
        advantages[at], last = ahead, values[at]
    return advantages


def _device(args: Args, reporter: Reporter) -> torch.device:
    if args.cuda and not torch.cuda.is_available():
        reporter.log(
            "cuda is asked for, but there is none for this run: it trains on the CPU (resources.gpus: 1)", "warning"
        )
        return torch.device("cpu")
    return torch.device("cuda" if args.cuda else "cpu")
