"""The errors of the environments library."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mosaic_bus.wording import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

__all__ = [
    "BuildError",
    "DescriptionError",
    "EnvironmentsError",
    "InUseError",
    "RecipeError",
    "UnknownProfileError",
    "UnknownWorkerError",
    "UpstreamError",
]


class EnvironmentsError(Exception):
    """Base of all errors raised by `mosaic_services.environments`."""


class RecipeError(EnvironmentsError):
    """A folder is not a valid worker folder."""


class UnknownWorkerError(EnvironmentsError):
    """There is no worker of that name."""

    def __init__(self, name: str, known: Iterable[str]) -> None:
        super().__init__(f"worker {name!r} is unknown{_near(name, known)}")


class UnknownProfileError(EnvironmentsError):
    """The worker has no profile of that name."""

    def __init__(self, worker: str, profile: str, known: Iterable[str]) -> None:
        super().__init__(f"worker {worker} has no profile {profile!r}{_near(profile, known)}")


class UpstreamError(EnvironmentsError):
    """A worker cannot use the checkout that it was given."""

    def __init__(self, worker: str, why: str) -> None:
        super().__init__(f"{why}  (mosaic workers install {worker} --upstream PATH, or --no-upstream)")


class InUseError(EnvironmentsError):
    """An environment cannot be removed, because processes use it or it is being built."""

    def __init__(self, what: str, processes: Collection[int] = ()) -> None:
        if not processes:
            super().__init__(f"{what} is being built")
            return
        more = f" and {len(processes) - 1} more" if len(processes) > 1 else ""
        super().__init__(f"{what} is in use by process {min(processes)}{more}")


class BuildError(EnvironmentsError):
    """An environment could not be built; `output` has the last lines that the failed command printed."""

    def __init__(self, step: str, output: list[str]) -> None:
        last = next((line for line in reversed(output) if line.strip()), "it printed nothing")
        super().__init__(f"{step} failed: {last.strip()}")
        self.step = step
        self.output = output


def _near(name: str, known: Iterable[str]) -> str:
    known = sorted(known)
    if near := did_you_mean(name, known):
        return f"; {near}"
    return f"; known are {', '.join(known)}" if known else "; none is known"


class DescriptionError(BuildError):
    """A worker cannot describe itself; its own code is at fault, not its packages."""
