"""Decides when `mosaic watch --until-done` ends."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from mosaic_services.cli.wait.runs import Watched

if TYPE_CHECKING:
    from mosaic_services.cli.watch.feed import Feed, View

__all__ = ["Endings"]


class Endings:
    """Recognises that nothing more will happen, by the same rule as `mosaic submit --wait`."""

    def __init__(self) -> None:
        self._watched: dict[str, Watched] = {}

    def reached(self, feed: Feed) -> bool:
        """Whether it is over now; raises `NoAnswerError` if the stack is gone."""
        if feed.gone is not None:
            raise feed.gone
        return self.is_over(feed.view, feed.focus, time.monotonic())

    def is_over(self, view: View, run: str | None, now: float) -> bool:
        """Whether the run, or every run, is final and its telemetry is stored or has stalled."""
        if not view.loaded:
            return False
        wanted = [each for each in view.runs if run in (None, each.run)]
        watched = [self._watched.setdefault(each.run, Watched(each.run)) for each in wanted]
        for each, state in zip(watched, wanted, strict=True):
            each.update(state, view.summaries.get(state.run), now)
            if view.trouble:
                each.heard_nothing(now)
        return bool(watched or run is None) and all(each.done(now) for each in watched)
