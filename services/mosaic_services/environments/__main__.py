"""Build an environment and print progress as JSON lines. The supervisor runs this as a process that it can kill."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys

from mosaic_services.environments import DescriptionError, EnvironmentsError, build, recipe_for
from mosaic_services.home import StackHome

_LONGEST_ERROR = 4000


def main() -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="python -m mosaic_services.environments")
    parser.add_argument("worker")
    parser.add_argument("profile")
    parser.add_argument("--home")
    arguments = parser.parse_args()

    def say(**fields: object) -> None:
        # The supervisor was killed. The build is still worth finishing.
        with contextlib.suppress(BrokenPipeError):
            sys.stdout.write(json.dumps(fields) + "\n")
            sys.stdout.flush()

    try:
        recipe = recipe_for(arguments.worker, StackHome.find(arguments.home))
        environment = build(recipe, arguments.profile, lambda step, percent: say(step=step, percent=percent))
    except EnvironmentsError as error:
        say(error=str(error)[:_LONGEST_ERROR], caused_by_worker=isinstance(error, DescriptionError))
        return 1
    except OSError as error:
        say(error=f"cannot build: {error}")
        return 1
    say(step="installed", percent=100.0, done=True, python=str(environment.python), site=str(environment.site))
    return 0


if __name__ == "__main__":
    code = main()
    with contextlib.suppress(BrokenPipeError):
        sys.stdout.close()
    sys.exit(code)
