"""Counters that all processes of one training share, in a small memory-mapped file.

A training may have several processes: a program and the vector environments that it forks, or one program after
another. Each process has its own slot, so that none waits for another, and the worker reads all slots. The folder of
the file also holds the reason for which a hook ended the training.
"""

import fcntl
import json
import mmap
import os
from pathlib import Path
from typing import Any

__all__ = ["EPISODES", "LOSSES", "SCALARS", "SCALAR_STEP", "STEPS", "VECTOR_STEPS", "Counters"]

_WORD = 8
_SLOT_WORDS = 8
_SLOTS = 1023
# The first eight words of the file.
_CLAIMED, _MADE, _PROGRAMS = 0, 1, 2
# The words of a slot.
STEPS, VECTOR_STEPS, EPISODES, LOSSES, SCALARS, SCALAR_STEP, _PROGRAM = range(7)
"""Steps of training environments, the same as counted by vector environments, episodes, losses other than zero,
scalars, the highest step of a scalar, and the program that the process belongs to."""


class Counters:
    """The counters of one training: created by the worker, shared with its child processes."""

    def __init__(self, folder: str | os.PathLike[str], *, create: bool = False) -> None:
        """Map the file of a folder; with `create`, create it."""
        self.folder = Path(folder)
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        self._file = os.open(self.folder / "counters", flags, 0o600)
        size = (1 + _SLOTS) * _SLOT_WORDS * _WORD
        if create:
            os.ftruncate(self._file, size)
        self._words = memoryview(mmap.mmap(self._file, size)).cast("q")

    def claim(self, program: int | None) -> tuple[int, memoryview]:
        """Take a slot for a process of `program`, or with None of a new program; return program and slot."""
        fcntl.flock(self._file, fcntl.LOCK_EX)
        try:
            number = self._words[_CLAIMED]
            if number >= _SLOTS:
                raise OSError(f"more than {_SLOTS} processes train at once")
            self._words[_CLAIMED] = number + 1
            self._words[_PROGRAMS] += program is None
        finally:
            fcntl.flock(self._file, fcntl.LOCK_UN)
        start = (1 + number) * _SLOT_WORDS
        slot = self._words[start : start + _SLOT_WORDS]
        slot[_PROGRAM] = number if program is None else program
        return slot[_PROGRAM], slot

    def total(self, word: int) -> int:
        """Return the sum over all slots."""
        if self._words[_CLAIMED] == 1:  # the usual case; this runs at the end of every episode
            return self._words[_SLOT_WORDS + word]
        return sum(slot[word] for slot in self._slots())

    @property
    def programs(self) -> int:
        """The number of programs that have begun to train."""
        return self._words[_PROGRAMS]

    @property
    def step(self) -> int:
        """The step of the training, over all programs.

        For a program with a vector environment, that one's count holds: wrappers inside may take several steps for
        one. For a program whose environments are not tapped, the steps of its scalars hold.
        """
        if self._words[_CLAIMED] == 1:
            return self.total(VECTOR_STEPS) or self.total(STEPS) or self.total(SCALAR_STEP)
        steps, seen_by_scalars = 0, 0
        for program in {slot[_PROGRAM] for slot in self._slots()}:
            slots = [slot for slot in self._slots() if slot[_PROGRAM] == program]
            taken = sum(slot[VECTOR_STEPS] for slot in slots) or sum(slot[STEPS] for slot in slots)
            steps += taken
            if not taken:
                seen_by_scalars = max(seen_by_scalars, *(slot[SCALAR_STEP] for slot in slots))
        return max(steps, seen_by_scalars)

    def has_steps(self, program: int) -> bool:
        """Whether tapped environments of a program have taken steps."""
        return any(slot[STEPS] for slot in self._slots() if slot[_PROGRAM] == program)

    def _slots(self) -> list[memoryview]:
        starts = range(_SLOT_WORDS, (1 + self._words[_CLAIMED]) * _SLOT_WORDS, _SLOT_WORDS)
        return [self._words[start : start + _SLOT_WORDS] for start in starts]

    # Environments are numbered in order of creation.

    def next_environment(self) -> int:
        """Return the number for a new environment."""
        fcntl.flock(self._file, fcntl.LOCK_EX)
        try:
            self._words[_MADE] += 1
            return self._words[_MADE] - 1
        finally:
            fcntl.flock(self._file, fcntl.LOCK_UN)

    def return_environment(self, number: int) -> None:
        """Return the last number: a vector environment makes one environment only to read its spaces."""
        fcntl.flock(self._file, fcntl.LOCK_EX)
        try:
            if self._words[_MADE] == number + 1:
                self._words[_MADE] = number
        finally:
            fcntl.flock(self._file, fcntl.LOCK_UN)

    # The reason for which a hook ended the training.

    def set_reason(self, reason: str, step: int) -> None:
        """Set the reason, unless there is one."""
        draft = self.folder / f"reason.{os.getpid()}"
        draft.write_text(json.dumps({"reason": reason, "step": step}))
        try:
            os.link(draft, self.folder / "reason")
        except FileExistsError:
            pass
        finally:
            draft.unlink()

    @property
    def reason(self) -> dict[str, Any] | None:
        """The reason for which a hook ended the training, if one did."""
        try:
            found: dict[str, Any] = json.loads((self.folder / "reason").read_text())
        except FileNotFoundError:
            return None
        return found
