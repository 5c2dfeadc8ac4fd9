"""Wrappers for environments of Gymnasium, old gym and PettingZoo, none of which has to be installed.

Gymnasium and old gym get a subclass of their own `Wrapper`, created for the first such environment, so that other
wrappers work on top. PettingZoo, and objects that only look like an environment, get a proxy that forwards everything.
"""

import sys
from functools import cache
from typing import Any, Protocol

from mosaic_worker.errors import FrameError, RunCancelled

__all__ = ["Blind", "FastLaneTelemetryWrapper", "render", "wrapper_of"]

_NEW_STEP = 5
"""A step returns five values, or four in old gym: observation, reward, done, info."""


class Watcher(Protocol):
    """Is told what happens to an environment."""

    def began(self, seed: int | None) -> None:
        """The environment was reset."""

    def stepped(self, reward: Any, over: Any) -> None:
        """The environment took a step."""

    def give_up(self, error: Exception) -> None:
        """The result of a step could not be interpreted."""

    def close(self) -> None:
        """The environment is about to be closed."""


class Blind:
    """The watch of a copied environment: does nothing."""

    def began(self, seed: int | None) -> None:
        """Do nothing."""

    def stepped(self, reward: Any, over: Any) -> None:
        """Do nothing."""

    def give_up(self, error: Exception) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


class FastLaneTelemetryWrapper:
    """Tells the watch what happens. This class fits Gymnasium; subclasses fit other libraries."""

    env: Any
    watch: Watcher

    def step(self, action: Any) -> Any:
        """Take a step."""
        result = self.env.step(action)
        try:
            self.watch.stepped(result[1], result[2] or result[3])
        except RunCancelled:
            raise
        except Exception as error:
            self.watch.give_up(error)
        return result

    def reset(self, *args: Any, **kwargs: Any) -> Any:
        """Begin an episode."""
        result = self.env.reset(*args, **kwargs)
        self.watch.began(kwargs.get("seed", args[0] if args else None))
        return result

    def close(self) -> Any:
        """Close the environment and its watch."""
        self.watch.close()
        return self.env.close()


class _OldGym(FastLaneTelemetryWrapper):
    """A step returns four values, or five; the seed may be set before the reset."""

    _seed: Any = None

    def step(self, action: Any) -> Any:
        """Take a step."""
        result = self.env.step(action)
        try:
            over = result[2] or result[3] if len(result) == _NEW_STEP else result[2]
            self.watch.stepped(result[1], over)
        except RunCancelled:
            raise
        except Exception as error:
            self.watch.give_up(error)
        return result

    def reset(self, *args: Any, **kwargs: Any) -> Any:
        """Begin an episode."""
        result = self.env.reset(*args, **kwargs)
        self.watch.began(kwargs.get("seed", self._seed))
        self._seed = None
        return result

    def seed(self, seed: Any = None) -> Any:
        """Seed the environment; the seed belongs to the next episode."""
        self._seed = seed
        return self.env.seed(seed)


class _Proxy:
    """Forwards everything to the environment, and has its class."""

    _OWN = frozenset({"env", "watch", "_seed", "_over"})

    def __init__(self, env: Any) -> None:
        self.env = env

    def __getattr__(self, name: str) -> Any:
        if name in self._OWN or name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.env, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self._OWN:
            object.__setattr__(self, name, value)
        else:
            setattr(self.env, name, value)

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return type(self.env)

    def __str__(self) -> str:
        return str(self.env)

    def __repr__(self) -> str:
        return f"<FastLaneTelemetryWrapper of {self.env!r}>"


class _OldGymProxy(_OldGym, _Proxy):
    """For objects that only look like an environment of gym."""


class _Parallel(FastLaneTelemetryWrapper, _Proxy):
    """All agents act at once: rewards are added, and the episode ends with the last agent."""

    def step(self, actions: Any) -> Any:
        """Take a step."""
        result = self.env.step(actions)
        try:
            rewards, *ends = result[1:-1]
            over = all(any(end.get(agent) for end in ends) for agent in rewards)
            self.watch.stepped(sum(rewards.values()), over)
        except RunCancelled:
            raise
        except Exception as error:
            self.watch.give_up(error)
        return result


class _Aec(FastLaneTelemetryWrapper, _Proxy):
    """Agents act in turn. After the end, each agent is stepped once more with None; these steps do not count."""

    _over = False

    def step(self, action: Any) -> Any:
        """Let the agent whose turn it is act."""
        env = self.env
        env.step(action)
        if self._over:
            return
        try:
            # An agent that left is in neither: the episode is over when no remaining agent continues.
            ends = env.terminations, env.truncations
            self._over = all(any(end.get(agent) for end in ends) for agent in env.agents)
            self.watch.stepped(sum(env.rewards.values()), self._over)
        except RunCancelled:
            raise
        except Exception as error:
            self.watch.give_up(error)

    def reset(self, *args: Any, **kwargs: Any) -> Any:
        """Begin an episode."""
        self._over = False
        return super().reset(*args, **kwargs)


def wrapper_of(env: Any, watch: Watcher) -> Any:
    """Wrap an environment in the wrapper for its library."""
    wrapper = _class_for(env)(env)
    wrapper.watch = watch
    return wrapper


def render(env: Any) -> Any:
    """Render an environment of any library."""
    mode = getattr(env, "render_mode", None)
    if mode == "rgb_array":
        return env.render()
    try:
        return env.render(mode="rgb_array")
    except TypeError as error:
        raise FrameError(
            f'its render_mode is {mode!r}; make it with render_mode="rgb_array" to get frames ({error})'
        ) from error


def _class_for(env: Any) -> Any:
    for library, kind in (("gymnasium", FastLaneTelemetryWrapper), ("gym", _OldGym)):
        module = sys.modules.get(library)
        base = getattr(module, "Env", None)
        if base is not None and isinstance(env, base):
            return _subclass(kind, module.Wrapper)  # type: ignore[union-attr]
    if hasattr(env, "possible_agents") or hasattr(env, "agents"):
        return _Aec if hasattr(env, "agent_iter") else _Parallel
    return _OldGymProxy


@cache
def _subclass(kind: type, library_wrapper: type) -> type:
    """Make a wrapper that is also the library's; its name appears in `print(env)`."""
    return type("FastLaneTelemetryWrapper", (kind, library_wrapper), {})
