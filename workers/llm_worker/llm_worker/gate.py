"""The gate to an endpoint: admits as many calls at once as the endpoint keeps up with, over all processes of a host.

The number grows while calls succeed and others wait, and shrinks when the endpoint says that it has too many. Its state
is one small file, which `mosaic stats` shows. A call holds a lock on one byte of a second file, which the system takes
back from a process that dies.
"""

import asyncio
import fcntl
import json
import os
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

__all__ = ["Gate"]

_LOOK_S = 0.05
"""How old the known state may be."""
_POLL_S = 0.02
_FORGET_S = 600.0
"""A state that nobody has touched for so long says nothing about the endpoint any more."""
_GROWTH = 0.02
"""Share by which the number grows in a second, once the endpoint has refused a call."""
_CUT, _DEEP_CUT, _FAILED_CUT = 0.9, 0.7, 0.5
_SOON_S = 2.0
"""Refused again so soon after a cut, the endpoint needs a deeper one."""
_SHOWN = ("window", "calls", "throttled", "failed", "cuts")


class Gate:
    """Calls of this process wait here in line."""

    def __init__(self, folder: Path, name: str, start: int, most: int, own: Path | None = None) -> None:
        """Share the gate `name` with all that use the same folder; slots in an `own` folder are not shared."""
        counters, slots = folder / "counters", (own or folder) / "llm"
        for each in (counters, slots):
            each.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._state_fd = os.open(counters / f"llm-{name}.json", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._slots_fd = os.open(slots / f"{name}.slots", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._start, self._most = start, most
        self._held: set[int] = set()
        self._line: deque[asyncio.Future[int]] = deque()
        self._state: dict[str, float] = {}
        self._looked_at = 0.0
        self._good = 0
        self._was_full = False
        """Whether somebody could not enter since the last look: otherwise more calls at once would change nothing."""
        self._timer: asyncio.TimerHandle | None = None
        self._change(lambda _state: None)

    async def enter(self, deadline: float, *, first: bool = False) -> int:
        """Wait until a call may be made; return its slot. TimeoutError after the deadline, by the monotonic clock."""
        if time.monotonic() >= deadline:  # else a free slot would be given, and the call would have no time
            raise TimeoutError
        turn: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        if first:
            self._line.appendleft(turn)
        else:
            self._line.append(turn)
        self._admit()
        try:
            async with asyncio.timeout(max(0.0, deadline - time.monotonic())):
                return await turn
        except BaseException:
            if turn.done() and not turn.cancelled():
                self._free(turn.result())
            turn.cancel()
            raise

    def leave(self, slot: int, began: float, outcome: str, wait_s: float | None = None) -> None:
        """End a call: `good`, `throttled`, `failed` or `unused`; `began` is when it began, by the wall clock."""
        self._free(slot)
        if outcome == "good":
            self._good += 1
            if time.monotonic() - self._looked_at > _LOOK_S or not self._held:
                self._change(lambda _state: None)
        elif outcome != "unused":
            self._change(lambda state: _shrink(state, began, outcome, wait_s))
        self._admit()

    @property
    def state(self) -> dict[str, float]:
        """What is known about the endpoint."""
        return dict(self._state)

    def close(self) -> None:
        """Give all slots back."""
        if self._timer is not None:
            self._timer.cancel()
        os.close(self._slots_fd)
        os.close(self._state_fd)

    def _admit(self) -> None:
        """Let those in who may."""
        while self._line and self._line[0].done():
            self._line.popleft()
        if not self._line:
            return
        if time.monotonic() - self._looked_at > _LOOK_S:
            self._change(lambda _state: None)
        pause = self._state["paused_until"] - time.time()
        if pause > 0:
            self._later(pause)
            return
        while self._line:
            if self._line[0].done():
                self._line.popleft()
                continue
            slot = self._take()
            if slot is None:
                self._was_full = True
                self._later(_POLL_S)
                return
            self._line.popleft().set_result(slot)

    def _later(self, delay: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(delay, self._admit)

    def _take(self) -> int | None:
        limit = int(self._state["window"])
        if len(self._held) >= limit:
            return None
        for slot in range(limit):
            if slot not in self._held:
                try:
                    fcntl.lockf(self._slots_fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, slot)
                except OSError:
                    continue
                self._held.add(slot)
                return slot
        return None

    def _free(self, slot: int) -> None:
        self._held.discard(slot)
        fcntl.lockf(self._slots_fd, fcntl.LOCK_UN, 1, slot)

    def _change(self, change: Callable[[dict[str, float]], None]) -> None:
        """Read the state, change it, and write it, while no other process does."""
        self._looked_at = time.monotonic()
        fcntl.flock(self._state_fd, fcntl.LOCK_EX)
        try:
            state = _read(self._state_fd, self._start)
            _grow(state, self._good, self._most, is_full=self._was_full)
            self._good, self._was_full = 0, False
            change(state)
            state["updated_at"] = time.time()
            shown = {name: round(state[name], 1) for name in _SHOWN}  # numbers at the top are for `mosaic stats`
            os.pwrite(self._state_fd, line := json.dumps({**shown, "state": state}).encode() + b"\n", 0)
            os.ftruncate(self._state_fd, len(line))
        finally:
            fcntl.flock(self._state_fd, fcntl.LOCK_UN)
        self._state = state


def _read(fd: int, start: int) -> dict[str, float]:
    fresh = {"window": float(start), "is_new": 1.0, "paused_until": 0.0, "cut_at": 0.0, "grown_at": 0.0}
    counts = {"calls": 0.0, "throttled": 0.0, "failed": 0.0, "cuts": 0.0, "updated_at": 0.0}
    try:
        found: Any = json.loads(os.pread(fd, 4096, 0))["state"]
        known = {name: float(found[name]) for name in (*fresh, *counts)}
    except (ValueError, KeyError, TypeError):
        return {**fresh, **counts}
    if time.time() - max(known["updated_at"], known["paused_until"]) > _FORGET_S:
        return {**known, **fresh}
    return known


def _grow(state: dict[str, float], good: int, most: int, *, is_full: bool) -> None:
    """Allow more calls at once, if some had to wait: twice as many in a round trip at first, later a little more."""
    now = time.time()
    state["calls"] += good
    if is_full and good:
        passed = min(1.0, max(0.0, now - state["grown_at"]))
        state["window"] += good if state["is_new"] else state["window"] * _GROWTH * passed
        state["grown_at"] = now
    state["window"] = max(1.0, min(state["window"], float(most)))


def _shrink(state: dict[str, float], began: float, outcome: str, wait_s: float | None) -> None:
    """Allow fewer calls at once; not twice for calls that were already under way."""
    now = time.time()
    state[outcome] += 1
    soon = now - max(state["cut_at"], state["paused_until"]) < _SOON_S
    if wait_s:
        state["paused_until"] = max(state["paused_until"], now + wait_s)
    if began <= state["cut_at"]:
        return
    cut = _FAILED_CUT
    if outcome == "throttled":
        cut = _DEEP_CUT if state["is_new"] or soon else _CUT
    state["window"] = max(1.0, state["window"] * cut)
    state["cut_at"], state["is_new"], state["grown_at"] = now, 0.0, now
    state["cuts"] += 1
