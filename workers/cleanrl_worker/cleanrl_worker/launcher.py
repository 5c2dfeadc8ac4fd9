"""Runs an upstream script as it is: `python -m cleanrl_worker.launcher MODULE_OR_PATH ARGS…`.

The script runs as under Python itself, with its arguments, `__main__`, and its own folder on the path. One script has
a bug: `ddpg_continuous_action` of cleanrl 0.4.8 calls `Actor()` without the required environment. The launcher gives
that argument a default.
"""

import builtins
import runpy
import sys
from pathlib import Path
from typing import Any

__all__ = ["main"]

_FORGETFUL = "cleanrl.ddpg_continuous_action"


def _give_actor_its_environment(build: Any) -> Any:
    """Return a `__build_class__` that gives the constructor of a class named Actor a default."""

    def build_class(body: Any, name: str, *bases: Any, **kwargs: Any) -> Any:
        made = build(body, name, *bases, **kwargs)
        if name == "Actor" and made.__init__.__defaults__ is None:
            made.__init__.__defaults__ = (made.__init__.__globals__["env"],)
        return made

    return build_class


def main(argv: list[str]) -> None:
    """Run the script that the first argument names; the others are its own."""
    name, *arguments = argv
    if sys.stdout is not None and hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(line_buffering=True)  # so that the log can be followed
    if name.endswith(".py"):
        sys.path.insert(0, str(Path(name).resolve().parent))
        sys.argv = [name, *arguments]
        runpy.run_path(name, run_name="__main__")
        return
    sys.argv = [name, *arguments]
    if name == _FORGETFUL:
        builtins.__build_class__ = _give_actor_its_environment(builtins.__build_class__)
    runpy.run_module(name, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(sys.argv[1:])
