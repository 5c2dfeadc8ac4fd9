"""A tap follows one environment: it counts steps and rewards, reports episodes, and passes frames on.

What `make` returns gets a subclass of its own class, so that a program which asks for its type finds what it expects.
An episode's return is the sum of the raw rewards.
"""

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from mosaic_worker.hooks.counters import STEPS

if TYPE_CHECKING:
    from mosaic_worker.hooks.reporter import Reporter

__all__ = ["Tap", "as_number", "called_from", "tapped"]

_NEW_STEP = 5
"""A step returns five values, or four in old gym: observation, reward, done, info."""


class Tap:
    """Follows one environment, and passes everything on to the watch of its frames, if there is one."""

    def __init__(self, reporter: "Reporter", index: int, *, is_evaluation: bool) -> None:
        """Count for `reporter`."""
        self.index = index
        self.is_evaluation = is_evaluation
        self.seed: int | None = None
        self.length = 0
        self.watch: Any = None
        self._return: Any = 0.0
        self._next_seed: int | None = None
        self._reporter = reporter
        self._untouched = True
        self._is_broken = False

    def began(self, seed: int | None) -> None:
        """The environment was reset."""
        self.seed = seed if seed is not None else self._next_seed
        self._next_seed = None
        self.length, self._return, self._untouched = 0, 0.0, False
        if self.watch is not None:
            self.watch.began(self.seed)

    def seeded(self, seed: Any) -> None:
        """The environment was seeded as in old gym; the seed belongs to the next episode."""
        self._next_seed = seed

    def stepped(self, reward: Any, over: Any) -> None:
        """The environment took a step. This is the hot path."""
        try:
            if not self.is_evaluation:
                self._reporter.counts[STEPS] += 1
            self.length += 1
            self._return += reward
            if self.watch is not None:
                self.watch.stepped(reward, over)
            if over:
                self._end()
        except Exception as error:
            self.give_up(error)

    def _end(self) -> None:
        if not self._is_broken:
            self._reporter.episode(self, as_number(self._return))
        self.length, self._return, self.seed = 0, 0.0, None

    def give_up(self, error: Exception) -> None:
        """Stop reporting episodes, and only count steps."""
        self._is_broken, self._return, self.watch = True, 0.0, None
        self._reporter.say_once(f"no more episodes of environment {self.index}", error)

    def close(self) -> None:
        """The environment is about to be closed."""
        if self.watch is not None:
            self.watch.close()
        if self._untouched:
            self._reporter.counters.return_environment(self.index)


def tapped(env: Any, tap: Tap) -> Any:
    """Return an environment that tells `tap` what happens to it."""
    try:
        env.__class__ = _tapped_class(type(env), tap)
    except TypeError:  # its class cannot be derived from
        from mosaic_worker.frames.wrappers import wrapper_of  # noqa: PLC0415 - hardly ever needed

        env = wrapper_of(env, tap)
    return env


def _tapped_class(base: Any, tap: Tap) -> type:
    """Derive a class for one environment. A copy of the environment has the base class, and is not followed."""
    base_step, stepped = base.step, tap.stepped

    def step(self: Any, action: Any) -> Any:
        result = base_step(self, action)
        stepped(result[1], result[2] or result[3] if len(result) == _NEW_STEP else result[2])
        return result

    def reset(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = base.reset(self, *args, **kwargs)
        tap.began(kwargs.get("seed", args[0] if args else None))
        return result

    def seed(self: Any, *args: Any, **kwargs: Any) -> Any:
        tap.seeded(kwargs.get("seed", args[0] if args else None))
        return base.seed(self, *args, **kwargs)

    def close(self: Any, *args: Any, **kwargs: Any) -> Any:
        tap.close()
        return base.close(self, *args, **kwargs)

    def reduce(self: Any, protocol: Any) -> Any:
        _, _, *state = base.__reduce_ex__(self, protocol)
        return (_blank, (base,), *state)

    methods = {"step": step, "reset": reset, "close": close, "__reduce_ex__": reduce}
    if hasattr(base, "seed"):
        methods["seed"] = seed
    names = {name: getattr(base, name, None) for name in ("__module__", "__qualname__", "__doc__")}
    return type(base.__name__, (base,), {**methods, **names})


def _blank(kind: Any) -> Any:
    """Create an empty instance, for the copy of an environment."""
    return kind.__new__(kind)


def called_from(paths: Sequence[str]) -> bool:
    """Whether any caller's source file has one of `paths` in its path."""
    frame = sys._getframe(1) if paths else None  # noqa: SLF001 - the documented way to look at one's callers
    while frame is not None:
        if any(path in frame.f_code.co_filename for path in paths):
            return True
        frame = frame.f_back
    return False


def as_number(value: Any) -> float:
    """Return a logged value (number, tensor, array of one element) as a float."""
    if hasattr(value, "detach"):
        value = value.detach()
    if hasattr(value, "reshape"):
        value = value.reshape(-1)[0]
    return float(value)
