"""Patches that let a program report without a change to it, applied as it imports Gymnasium, gym and TensorBoard.

`gymnasium.make` and `gym.make` return environments that report, SummaryWriters forward their scalars, and SIGTERM ends
the program as `sys.exit` would, so that its files are closed.
"""

import atexit
import functools
import importlib
import importlib.util
import inspect
import os
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType, ModuleType
from typing import Any
from weakref import WeakSet

from mosaic_worker.hooks.imports import AfterImport
from mosaic_worker.hooks.reporter import Reporter
from mosaic_worker.hooks.settings import HookSettings, Link
from mosaic_worker.hooks.tap import called_from
from mosaic_worker.stdout import log_stream, note

__all__ = ["install"]

_EXIT_STOPPED = 143


class Hooks:
    """The hooks of one process. The reporter is created on first use."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._reporter: Reporter | None = None
        self._is_deaf = False
        self._making = threading.local()
        self._writers: WeakSet[Any] = WeakSet()
        self._pid = os.getpid()

    @property
    def reporter(self) -> Reporter | None:
        """The reporter; None if it cannot be created, which is logged once."""
        if self._reporter is None and not self._is_deaf:
            try:
                self._reporter = Reporter(self._link, os.environ)
            except Exception as error:
                self._is_deaf = True
                note(f"nothing is reported: {type(error).__name__}: {error}")
        return self._reporter

    # Environments.

    def hook_gymnasium(self, gymnasium: ModuleType) -> None:
        """Patch both functions called `make` to return environments that report."""
        self._hook_vectors("gymnasium.vector")
        registration = importlib.import_module("gymnasium.envs.registration")
        make = registration.make
        registration.make = gymnasium.make = self._reporting(make, functools.partial(_make, make, self._link.settings))  # type: ignore[attr-defined]
        if hasattr(registration, "make_vec"):
            registration.make_vec = gymnasium.make_vec = self._reporting_vector(registration.make_vec)  # type: ignore[attr-defined]

    def _reporting_vector(self, make_vec: Callable[..., Any]) -> Callable[..., Any]:
        """As above, for `make_vec`, which does not call `make`: the tap is the innermost wrapper."""
        signature = inspect.signature(make_vec)

        @functools.wraps(make_vec)
        def reporting_make_vec(*args: Any, **kwargs: Any) -> Any:
            call = signature.bind(*args, **kwargs)
            if call.arguments.get("vectorization_mode") != "custom":  # such an environment makes itself
                call.arguments["wrappers"] = [self._tapped, *(call.arguments.get("wrappers") or ())]
            return make_vec(*call.args, **call.kwargs)

        return reporting_make_vec

    def _tapped(self, env: Any) -> Any:
        """Return an environment that reports; on failure, the environment itself."""
        reporter = self.reporter
        if reporter is None:
            return env
        try:
            return reporter.tap(env)
        except Exception as error:
            reporter.say_once("an environment does not report", error)
            return env

    def hook_gym(self, gym: ModuleType) -> None:
        """As above, for old gym, whose environments need no render mode."""
        self._hook_vectors("gym.vector")
        registration = importlib.import_module("gym.envs.registration")
        make = registration.make
        without_asking = lambda _wants_frames, *args, **kwargs: make(*args, **kwargs)  # noqa: E731
        registration.make = gym.make = self._reporting(make, without_asking)  # type: ignore[attr-defined]

    def _reporting(self, original: Callable[..., Any], make: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def reporting_make(*args: Any, **kwargs: Any) -> Any:
            # An environment that makes another in its constructor counts once.
            if getattr(self._making, "inside", False):
                return original(*args, **kwargs)
            reporter = self.reporter
            self._making.inside = True
            try:
                env = make(reporter is not None and reporter.lane is not None, *args, **kwargs)
            finally:
                self._making.inside = False
            return self._tapped(env)

        return reporting_make

    def _hook_vectors(self, name: str) -> None:
        """Let vector environments count their steps, except while a trained model is evaluated."""
        module = importlib.import_module(name)
        for vector_class in (module.SyncVectorEnv, module.AsyncVectorEnv):
            vector_class.reset = self._noticing(vector_class.reset)
            vector_class.step = self._counting(vector_class.step)

    def _noticing(self, reset: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(reset)
        def noticing_reset(envs: Any, *args: Any, **kwargs: Any) -> Any:
            envs.mosaic_is_evaluation = called_from(self._link.settings.evaluation_paths)
            return reset(envs, *args, **kwargs)

        return noticing_reset

    def _counting(self, step: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(step)
        def counting_step(envs: Any, *args: Any, **kwargs: Any) -> Any:
            # Before the step, so that an episode that ends in it is reported at the step that the program has reached.
            if self._reporter is not None and not getattr(envs, "mosaic_is_evaluation", False):
                self._reporter.vector_steps(envs.num_envs)
            return step(envs, *args, **kwargs)

        return counting_step

    # Scalars.

    def hook_writers(self, module: ModuleType) -> None:
        """Forward the scalars of every SummaryWriter of the module, and close the writers at exit."""
        writer_class: Any = module.SummaryWriter
        initialise, add_scalar = writer_class.__init__, writer_class.add_scalar

        @functools.wraps(initialise)
        def remembering_init(writer: Any, *args: Any, **kwargs: Any) -> None:
            initialise(writer, *args, **kwargs)
            self._writers.add(writer)

        @functools.wraps(add_scalar)
        def reporting_add_scalar(
            writer: Any, tag: str, scalar_value: Any, global_step: Any = None, *args: Any, **kwargs: Any
        ) -> Any:
            result = add_scalar(writer, tag, scalar_value, global_step, *args, **kwargs)
            reporter = self.reporter
            if reporter is not None:
                try:
                    reporter.scalar(tag, scalar_value, global_step)
                except Exception as error:
                    reporter.say_once(f"scalar {tag} is not reported", error)
            return result

        writer_class.__init__ = remembering_init
        writer_class.add_scalar = reporting_add_scalar

    def close_writers(self) -> None:
        """Flush what TensorBoard still buffers, which it does not do itself when a program is stopped."""
        if os.getpid() == self._pid:
            for writer in list(self._writers):
                writer.close()

    # Signals.

    def on_sigterm(self, number: int, _frame: FrameType | None) -> None:
        """End the program; further SIGTERMs are ignored."""
        signal.signal(number, signal.SIG_IGN)
        if self._reporter is None:
            raise SystemExit(_EXIT_STOPPED)
        self._reporter.emitter.interrupt(SystemExit(_EXIT_STOPPED))


def _make(make: Callable[..., Any], settings: HookSettings, wants_frames: bool, *args: Any, **kwargs: Any) -> Any:
    """Make an environment of Gymnasium, one that renders frames if they are wanted and possible."""
    if wants_frames and kwargs.get("render_mode") is None:
        try:
            return _make_registered(make, settings, *args, **{**kwargs, "render_mode": "rgb_array"})
        except Exception:  # noqa: S110 - one that cannot render is made without, and the lane says so
            pass
    return _make_registered(make, settings, *args, **kwargs)


def _make_registered(make: Callable[..., Any], settings: HookSettings, *args: Any, **kwargs: Any) -> Any:
    """Make an environment; if its id is unknown, import the modules that register more, and try again."""
    error_module = importlib.import_module("gymnasium.error")
    try:
        return make(*args, **kwargs)
    except error_module.UnregisteredEnv:
        missing = [name for name in settings.env_modules if name not in sys.modules and importlib.util.find_spec(name)]
        if not missing:
            raise
        for name in missing:
            importlib.import_module(name)
        return make(*args, **kwargs)


def install() -> None:
    """Set the hooks in this process."""
    sys.stdout, sys.stderr = log_stream(1), log_stream(2)
    hooks = Hooks(Link.from_environ(os.environ))
    functions = {
        "gymnasium": hooks.hook_gymnasium,
        "gym": hooks.hook_gym,
        "torch.utils.tensorboard": hooks.hook_writers,
        "tensorboardX": hooks.hook_writers,
    }
    sys.meta_path.insert(0, AfterImport(functions))
    atexit.register(hooks.close_writers)
    if signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
        signal.signal(signal.SIGTERM, hooks.on_sigterm)
        # A forked vector environment has nothing to close.
        os.register_at_fork(after_in_child=lambda: signal.signal(signal.SIGTERM, signal.SIG_DFL))
