"""The reporter: lives in the processes of an upstream script and writes what happens there to the run's journal.

Environments are tapped: what `make` returns gets a subclass of its own class, so that a script which asks for its type
finds what it expects. An episode is counted from the raw rewards. Scalars are forwarded as the script writes them.
Nothing that goes wrong in here reaches the script: it is said once, and then there are no more reports of that kind.
"""

import contextlib
import math
import multiprocessing
import os
import sys
from collections.abc import Mapping, MutableMapping
from pathlib import Path
from typing import Any

from cleanrl_worker.counters import EPISODES, LOSSES, SCALAR_STEP, SCALARS, STEPS, VECTOR_STEPS, Counters
from mosaic_worker.emitter import Emitter
from mosaic_worker.stdout import JOURNAL_FD

__all__ = ["COUNTERS", "JOURNAL", "Reporter", "Tap", "called_by_an_evaluation", "describe_journal"]

COUNTERS = "MOSAIC_CLEANRL_COUNTERS"
JOURNAL = "MOSAIC_CLEANRL_JOURNAL"
_PROGRAM = "MOSAIC_CLEANRL_PROGRAM"
_EPISODE_TAGS = ("charts/episodic_return", "charts/episode_reward")
_MAY_BE_NAN = "explained_variance"
_EVALUATIONS = str(Path("cleanrl_utils", "evals"))
_NEW_STEP = 5


def describe_journal(fd: int) -> str:
    """Say which file the journal is, and how a process that did not inherit it can open it."""
    found = os.fstat(fd)
    return f"{found.st_dev}:{found.st_ino}:/proc/{os.getpid()}/fd/{fd}"


def _open_journal(environ: Mapping[str, str]) -> int:
    """Return a descriptor of the journal: the inherited one, if that number is still the journal, or one of our own."""
    device, inode, path = environ[JOURNAL].split(":", 2)
    with contextlib.suppress(KeyError, ValueError, OSError):
        fd = int(environ[JOURNAL_FD])
        found = os.fstat(fd)
        if (found.st_dev, found.st_ino) == (int(device), int(inode)):
            return fd
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)


class Reporter:
    """Reports what the environments and the scalars of this process tell."""

    def __init__(self, environ: MutableMapping[str, str]) -> None:
        """Open the journal and the counters that the variables name."""
        self._environ = environ
        self._run_dir = Path(environ.get("MOSAIC_RUN_DIR") or Path.cwd())
        self.emitter = Emitter(_open_journal(environ))
        self.counters = Counters(environ[COUNTERS])
        # Scripts that run one after another continue one step axis.
        self._before = self.counters.step
        is_part = multiprocessing.parent_process() is not None and _PROGRAM in environ
        self._program, self.counts = self.counters.claim(int(environ[_PROGRAM]) if is_part else None)
        environ[_PROGRAM] = str(self._program)  # for processes that are spawned
        self._lane: Any = None
        self._said: set[str] = set()
        self._forked = False
        os.register_at_fork(after_in_child=self._after_fork)

    def _after_fork(self) -> None:
        """Count for nobody in a forked process, until it makes an environment or writes a scalar of its own."""
        self.emitter = Emitter(self.emitter.fd)
        self.counts = memoryview(bytearray(8 * len(self.counts))).cast("q")
        self._forked = True

    def _join(self) -> None:
        if self._forked:
            _, self.counts = self.counters.claim(self._program)
            self._forked = False

    def say_once(self, what: str, error: BaseException) -> None:
        """Tell people that something is not reported, and why."""
        message = f"{what}: {type(error).__name__}: {error}"
        if message in self._said:
            return
        self._said.add(message)
        with contextlib.suppress(OSError):
            self.emitter.log("warning", message)
        print(f"mosaic: {message}", file=sys.stderr, flush=True)

    # Environments.

    def tap(self, env: Any) -> Any:
        """Return an environment that reports its episodes, and shows itself if the run wants pictures."""
        self._join()
        tap = Tap(self, self.counters.next_environment(), is_evaluation=called_by_an_evaluation())
        if (lane := self.lane) is not None:
            tap.watch = lane.watch(env, tap.index)
        try:
            env.__class__ = _tapped_class(type(env), tap)
        except TypeError:  # its class cannot be derived from
            from mosaic_worker.frames.wrappers import wrapper_of  # noqa: PLC0415 - hardly ever needed

            env = wrapper_of(env, tap)
        return env

    @property
    def lane(self) -> Any:
        """What makes pictures, or None if the run wants none."""
        if self._lane is None:
            from cleanrl_worker.fastlane import lane_from  # noqa: PLC0415 - costs nothing while nobody watches

            try:
                self._lane = lane_from(self._environ, self._run_dir, self.emitter) or False
            except Exception as error:
                self.say_once("no pictures", error)
                self._lane = False
        return self._lane or None

    def vector_steps(self, count: int) -> None:
        """A vector environment of so many is about to take a step."""
        self.counts[VECTOR_STEPS] += count

    def episode(self, tap: "Tap", episode_return: float) -> None:
        """An environment finished an episode."""
        if tap.is_evaluation:
            self.emitter.emit(
                "evaluation_episode", **{"return": episode_return}, length=tap.length, step=self.counters.step
            )
            return
        number = self.counters.total(EPISODES)
        self.counts[EPISODES] += 1
        self.emitter.episode(number, episode_return, length=tap.length, step=self.counters.step, seed=tap.seed)

    # Scalars.

    def scalar(self, tag: str, value: Any, step: int | None) -> None:
        """The script wrote a scalar."""
        self._join()
        number = _number(value)
        at = self._before + int(step) if step is not None else self.counters.step
        counts = self.counts
        counts[SCALARS] += 1
        self.emitter.scalars(at, {tag: number})
        if tag.startswith("eval/"):  # its steps are numbers of episodes
            return
        counts[SCALAR_STEP] = max(counts[SCALAR_STEP], at)
        if "loss" in tag and _MAY_BE_NAN not in tag:
            self._loss(tag, number, at)
        elif tag in _EPISODE_TAGS and not self.counters.has_steps(self._program):
            # Environments that never pass `make`, such as those of envpool.
            episodes = self.counters.total(EPISODES)
            counts[EPISODES] += 1
            self.emitter.episode(episodes, number, step=at)

    def _loss(self, tag: str, value: float, step: int) -> None:
        if math.isfinite(value):
            self.counts[LOSSES] += value != 0
            return
        word = "NaN" if math.isnan(value) else "infinite"
        reason = f"loss is {word} at step {step} ({tag})"
        self.counters.set_reason(reason, step)
        raise SystemExit(f"mosaic: {reason}")


class Tap:
    """Follows one environment. It is told what happens like the kit's watches, and passes it on to one of them."""

    def __init__(self, reporter: Reporter, index: int, *, is_evaluation: bool) -> None:
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
        """The environment was seeded in the manner of old gym: the next episode is the one that it belongs to."""
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
            self._reporter.episode(self, _number(self._return))
        self.length, self._return, self.seed = 0, 0.0, None

    def give_up(self, error: Exception) -> None:
        """Go on counting steps only."""
        self._is_broken, self._return, self.watch = True, 0.0, None
        self._reporter.say_once(f"no more episodes of environment {self.index}", error)

    def close(self) -> None:
        """The environment is about to be closed."""
        if self.watch is not None:
            self.watch.close()
        if self._untouched:
            self._reporter.counters.return_environment(self.index)


def _tapped_class(base: Any, tap: Tap) -> type:
    """Derive a class for one environment. A copy of that environment is of the base class, and is not followed."""
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


def _blank(kind: type) -> Any:
    """Begin a copy of an environment."""
    return kind.__new__(kind)


def called_by_an_evaluation() -> bool:
    """Whether it is CleanRL's evaluation of a finished model that calls."""
    frame = sys._getframe(1)  # noqa: SLF001 - the documented way to look at one's callers
    while frame is not None:
        if _EVALUATIONS in frame.f_code.co_filename:
            return True
        frame = frame.f_back  # type: ignore[assignment]
    return False


def _number(value: Any) -> float:
    """Make a float of what scripts log: numbers, tensors, arrays of one element."""
    if hasattr(value, "detach"):
        value = value.detach()
    if hasattr(value, "reshape"):
        value = value.reshape(-1)[0]
    return float(value)
