"""Group commit: what is decided while a transaction is being written goes into the next one."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from mosaic_bus.commands import Decision
from mosaic_services.scheduler.errors import StoreError
from mosaic_services.scheduler.instructions import Instruction, Publish, SaveRun
from mosaic_services.scheduler.store import Unsaved

if TYPE_CHECKING:
    from collections.abc import Callable

    from mosaic_services.scheduler.store import Store

__all__ = ["Turn", "Writer"]


class Turn:
    """Decisions since the last commit began: what to save, and what to do once it is saved."""

    def __init__(self) -> None:
        self.unsaved = Unsaved()
        self.outputs: list[Instruction] = []
        self.submitted: list[str] = []
        self.ended = asyncio.Event()


class Writer:
    """Writes turns in order, and releases their outputs once they are on disk."""

    def __init__(
        self,
        store: Store,
        release: Callable[[Instruction], None],
        failed: Callable[[str, list[str]], None],
    ) -> None:
        self.turn = Turn()
        self.unsaved = Unsaved()
        self.failure = ""
        # Counters: transactions, and submitted runs that are on disk.
        self.commits = 0
        self.submitted = 0
        self._store = store
        self._release = release
        self._failed = failed
        self._held: dict[str, Publish] = {}
        self._dirty = asyncio.Event()
        self._lock = asyncio.Lock()

    def add(self, instruction: Instruction) -> None:
        """Add an instruction to the current turn."""
        if not self.turn.unsaved.add(instruction):
            self.turn.outputs.append(instruction)
        elif isinstance(instruction, SaveRun) and instruction.new:
            self.turn.submitted.append(instruction.run.id)
        self._dirty.set()

    async def settled(self, turn: Turn) -> None:
        """Wait until a turn was written or failed."""
        if turn is self.turn:
            self._dirty.set()
        await turn.ended.wait()

    def retry(self) -> None:
        """Write again after a failure."""
        if self.failure:
            self._dirty.set()

    async def work(self) -> None:
        """Write turns until cancelled."""
        while True:
            await self._dirty.wait()
            await self.flush()

    async def flush(self) -> None:
        """Write the current turn and release its outputs."""
        async with self._lock:
            self._dirty.clear()
            turn, self.turn = self.turn, Turn()
            try:
                await self._write(turn)
            finally:
                turn.ended.set()

    async def _write(self, turn: Turn) -> None:
        self.unsaved.merge(turn.unsaved)
        if self.unsaved or self.failure:
            try:
                await asyncio.to_thread(self._store.commit, self.unsaved)
            except StoreError as error:
                self._fail(turn, str(error))
                return
            self.commits += 1
            self.submitted += len(turn.submitted)
            self.unsaved = Unsaved()
            if self.failure:
                self.failure = ""
                self._failed("", [])
        held, self._held = self._held, {}
        for output in [*held.values(), *turn.outputs]:
            self._release(output)

    def _fail(self, turn: Turn, failure: str) -> None:
        """Keep states to publish later. Commands to hosts are dropped, since the machine repeats them."""
        self.failure = failure
        for output in turn.outputs:
            if isinstance(output, Publish):
                self._held[output.state.run] = output
        self._failed(failure, turn.submitted)
        for run in turn.submitted:
            self._held.pop(run, None)
            for unsaved in (self.unsaved, self.turn.unsaved):
                unsaved.drop(run)
        # Withdrawing a run cancels those of the same command that depend on it; neither exists any more.
        self.turn.outputs = [
            each for each in self.turn.outputs if not (isinstance(each, Publish) and each.state.run in turn.submitted)
        ]

    def decisions(self, run: str) -> list[Decision]:
        """All decisions about a run, written or not."""
        waiting = [*self.unsaved.decisions, *self.turn.unsaved.decisions]
        try:
            written = self._store.decisions(run)
        except StoreError:
            written = []
        fresh = [Decision(at=each.at, event=each.event, reason=each.reason) for each in waiting if each.run == run]
        return written + [each for each in fresh if each not in written]
