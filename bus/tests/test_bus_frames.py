"""The frame feed of a run whose host or services no longer answer."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from mosaic_bus.errors import NoAnswerError
from mosaic_bus.frames import feed as module
from mosaic_bus.frames.feed import FrameFeed
from mosaic_bus.messages import RunState

if TYPE_CHECKING:
    from collections.abc import Coroutine


def state(name: str) -> RunState:
    known = {"run": "r", "name": "n", "worker": "w", "profile": "default", "state": name, "reason": "", "host": "h"}
    return RunState.model_validate({**known, "attempt": 1, "submitted_at": 0.0, "changed_at": 0.0})


class SilentBus:
    """A fake bus on which no supervisor answers. `view` holds the last state from the scheduler."""

    def __init__(self) -> None:
        self.view = SimpleNamespace(runs={"r": state("running")}, silent={}, close=lambda: None)
        self.client = SimpleNamespace(request=self._refuse)

    async def _refuse(self, *_: object) -> None:
        raise NoAnswerError("supervisor", "frame_streams", 5.0)

    def request(self, *_: object) -> SimpleNamespace:
        return SimpleNamespace(runs=[state("running")])

    def follow(self, **_: object) -> SimpleNamespace:
        return self.view

    def begin(self, work: Coroutine[object, object, object]) -> Future[object]:
        future: Future[object] = Future()
        future.set_result(asyncio.run(work))  # type: ignore[arg-type]
        return future


def test_frames_end_with_a_run_whose_host_is_lost(monkeypatch):
    monkeypatch.setattr(module, "_ASK_S", 0.0)
    bus = SilentBus()
    with FrameFeed(bus, "r") as feed:
        assert feed.next(0.0) is None
        assert not feed.is_over, "the host may come back"
        bus.view.runs = {"r": state("lost")}
        assert list(feed.frames(timeout=10)) == []
        assert (feed.state.state, feed.is_over) == ("lost", True)


def test_frames_raise_when_nobody_can_tell_the_end_of_the_run(monkeypatch):
    monkeypatch.setattr(module, "_OUTAGE_S", 0.0)
    bus = SilentBus()
    bus.view.silent = {"scheduler": 5.0}
    with FrameFeed(bus, "r") as feed, pytest.raises(NoAnswerError):
        list(feed.frames(timeout=10))
