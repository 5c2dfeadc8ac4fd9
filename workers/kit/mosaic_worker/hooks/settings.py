"""Settings of the hooks: the conventions of a library, given by its worker, and where a process reports to."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass

__all__ = ["VARIABLE", "HookSettings", "Link"]

VARIABLE = "MOSAIC_HOOKS"
"""The variable that holds a `Link` as JSON. A process without it is not hooked."""


@dataclass(frozen=True)
class HookSettings:
    """The conventions of a library that the hooks cannot see."""

    episode_tags: tuple[str, ...] = ()
    """Scalars that are returns of episodes. They count only if no environment of the program was seen to step."""
    foreign_step_tags: tuple[str, ...] = ()
    """Prefixes of scalars whose step is not a step of the training, such as the number of an evaluation episode."""
    nan_tags: tuple[str, ...] = ("explained_variance",)
    """Parts of the names of losses that may be NaN; any other loss that is NaN or infinite ends the training."""
    evaluation_paths: tuple[str, ...] = ()
    """Parts of the paths of source files that evaluate a trained model: steps below them are not training."""
    env_modules: tuple[str, ...] = ()
    """Modules to import when an environment is not registered, since they register more."""


@dataclass(frozen=True)
class Link:
    """Where a hooked process reports to."""

    counters: str
    """The folder of the shared counters."""
    journal: str
    """The journal: device, inode and a path by which a process that did not inherit it can open it."""
    settings: HookSettings = HookSettings()

    def to_variable(self) -> str:
        """Write it as the value of MOSAIC_HOOKS."""
        return json.dumps(asdict(self))

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> "Link":
        """Read MOSAIC_HOOKS."""
        found = json.loads(environ[VARIABLE])
        settings = {name: tuple(values) for name, values in found["settings"].items()}
        return cls(found["counters"], found["journal"], HookSettings(**settings))
