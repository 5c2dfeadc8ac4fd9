"""Shell completion of names: runs, groups, hosts, workers and metrics of the stack."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from mosaic_bus import Bus

__all__ = ["COMPLETIONS"]

# Short, because the user waits at the prompt. A silent service offers nothing.
_ANSWER_S = 1.0
_MOST = 200


def _runs(bus: Bus, _: dict[str, Any]) -> Iterable[str]:
    from mosaic_bus.commands import Runs  # noqa: PLC0415 - start-up time
    from mosaic_services.cli.display.output import short  # noqa: PLC0415 - start-up time

    found = bus.request("scheduler", Runs(limit=_MOST), timeout=_ANSWER_S).runs
    return [*(each.name for each in found), *(short(each.run) for each in found)]


def _groups(bus: Bus, _: dict[str, Any]) -> Iterable[str]:
    from mosaic_bus.commands import Groups  # noqa: PLC0415 - start-up time

    return [each.group for each in bus.request("scheduler", Groups(), timeout=_ANSWER_S).groups]


def _hosts(bus: Bus, _: dict[str, Any]) -> Iterable[str]:
    from mosaic_bus.commands import Hosts  # noqa: PLC0415 - start-up time

    return [each.host for each in bus.request("scheduler", Hosts(), timeout=_ANSWER_S).hosts]


def _metrics(bus: Bus, given: dict[str, Any]) -> Iterable[str]:
    from mosaic_bus.commands import Metrics, Runs  # noqa: PLC0415 - start-up time

    named = given.get("words") or _runs(bus, given)
    (run, *_) = bus.request("scheduler", Runs(runs=list(named)[:1]), timeout=_ANSWER_S).runs
    return bus.request("telemetry", Metrics(run=run.run), timeout=_ANSWER_S).metrics


def _runs_then_metrics(bus: Bus, given: dict[str, Any]) -> Iterable[str]:
    return [*(_metrics(bus, given) if given.get("words") else []), *_runs(bus, given)]


def _runs_and_groups(bus: Bus, given: dict[str, Any]) -> Iterable[str]:
    return [*_groups(bus, given), *_runs(bus, given)]


def _from_stack(find: Callable[[Bus, dict[str, Any]], Iterable[str]]) -> Callable[..., list[str]]:
    def complete(ctx: Any, incomplete: str) -> list[str]:
        from mosaic_services.cli.options import current  # noqa: PLC0415 - start-up time

        _take_options(ctx)
        try:
            with current.connect() as bus:
                offered = dict.fromkeys(find(bus, ctx.params))
        except Exception:
            return []  # no stack, or no answer: an error would be printed into the prompt
        return [name for name in offered if name.startswith(incomplete)]

    return complete


def _workers(ctx: Any, incomplete: str) -> list[str]:
    from mosaic_services.cli.options import current  # noqa: PLC0415 - start-up time
    from mosaic_services.environments import find_recipes  # noqa: PLC0415 - start-up time

    _take_options(ctx)
    try:
        return [each.worker for each in find_recipes(current.home) if each.worker.startswith(incomplete)]
    except Exception:
        return []


def _take_options(ctx: Any) -> None:
    """Take --home and --bus from the line that is being completed."""
    from mosaic_services.cli.options import current  # noqa: PLC0415 - start-up time

    for each in (ctx.find_root(), ctx):
        current.take(each.params.get("home"), each.params.get("bus"), verbose=False)


# By the metavar of an argument or an option.
COMPLETIONS = {
    "RUN": _from_stack(_runs),
    "[RUN] N": _from_stack(_runs),
    "GROUP": _from_stack(_groups),
    "HOST": _from_stack(_hosts),
    "METRIC": _from_stack(_metrics),
    "RUN… METRIC": _from_stack(_runs_then_metrics),
    "RUN|GROUP…": _from_stack(_runs_and_groups),
    "WORKER": _workers,
}
