"""Follows an experiment to its end, with a line of progress for each shard."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

from pydantic import ValidationError
from rich.live import Live
from rich.table import Table

from mosaic_bus import topics
from mosaic_bus.commands import ShowExperiment
from mosaic_bus.messages import ExperimentState
from mosaic_services.cli.display.output import console, number, plain, say, short, state_text, styled
from mosaic_services.cli.display.plot import bar
from mosaic_services.cli.wait.silence import SilenceLimit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rich.console import RenderableType

    from mosaic_bus import Bus

__all__ = ["follow"]

_BAR = 20
_QUIET_S = 2.0
# Without a terminal, a line is printed for each step of this many percent.
_TOLD_EVERY = 10
_SHARDS_SHOWN = 30


def follow(bus: Bus, experiment: str, *, quiet: bool) -> ExperimentState:
    """Show the progress of an experiment until it is over; return its last state."""
    if quiet:
        return _last(_states(bus, experiment), lambda _: None)
    if not sys.stdout.isatty():
        return _last(_states(bus, experiment), _Teller().tell)
    with Live("", console=console(), transient=True, auto_refresh=False) as live:
        return _last(_states(bus, experiment), lambda state: live.update(_picture(state), refresh=True))


def _last(states: Iterator[ExperimentState], show: Callable[[ExperimentState], None]) -> ExperimentState:
    for state in states:
        show(state)
        if state.state.final:
            return state
    raise AssertionError("states come until one is final")


def _states(bus: Bus, experiment: str) -> Iterator[ExperimentState]:
    """Yield states as they change. If nothing comes for a while, ask: a message may be lost."""
    subscription = bus.subscribe(topics.experiment_state(experiment), max_queue=100)
    limit, version, asked_at = SilenceLimit(), -1, 0.0
    try:
        while True:
            state = None
            if time.monotonic() - asked_at > _QUIET_S:
                with limit:
                    state = bus.request("operator", ShowExperiment(experiment=experiment))
                asked_at = time.monotonic()
            else:
                state = _read(bus, subscription)
            if state is not None and state.version > version:
                version = state.version
                yield state
    finally:
        bus.unsubscribe(subscription)


def _read(bus: Bus, subscription: object) -> ExperimentState | None:
    message = bus.wait_for(subscription, 0.5)  # type: ignore[arg-type]
    if message is None:
        return None
    try:
        return ExperimentState.model_validate(message.payload)
    except ValidationError:
        return None


def _picture(state: ExperimentState) -> RenderableType:
    grid = Table.grid(padding=(0, 2))
    done = state.done / state.wanted if state.wanted else 1.0
    head = styled((bar(done, _BAR), "cyan"), f" {int(done * 100)} %  {state.done:,} of {state.wanted:,} episodes")
    grid.add_row("", state_text(state.state.value), head)
    for each in [shard for shard in state.shards if shard.done < shard.total][:_SHARDS_SHOWN]:
        part = each.done / each.total if each.total else 1.0
        where = f" on {each.host}" if each.host else ""
        said = styled((bar(part, _BAR), "cyan"), f" {each.done:,}/{each.total:,}{where}  ", plain(each.reason))
        grid.add_row(f"shard {each.number} {short(each.run)}", state_text(each.state), said)
    for lineup in state.lineups:
        mean = f"mean return {number(lineup.mean_return)}" if lineup.mean_return is not None else ""
        grid.add_row(lineup.lineup, f"{lineup.done:,}/{lineup.wanted:,}", f"{mean}  {lineup.given_up}")
    return grid


class _Teller:
    """Prints a line whenever a shard changes, and when the whole has moved by some percent."""

    def __init__(self) -> None:
        self._told: dict[int, str] = {}
        self._step = -1

    def tell(self, state: ExperimentState) -> None:
        for each in state.shards:
            if each.state != self._told.get(each.number):
                self._told[each.number] = each.state
                where = f" on {each.host}" if each.host and each.state == "running" else ""
                why = f": {each.reason}" if each.state in {"failed", "lost", "cancelled", "refused"} else ""
                say(f"shard {each.number} {short(each.run)} {each.state}{where}, {each.done}/{each.total}{why}")
        step = state.done * 100 // max(1, state.wanted) // _TOLD_EVERY
        if step != self._step:
            self._step = step
            say(f"{state.experiment}: {state.done:,} of {state.wanted:,} episodes")
        sys.stdout.flush()
