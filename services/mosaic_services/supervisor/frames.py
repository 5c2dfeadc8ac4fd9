"""Frames in shared memory, the supervisor's side: the folder of each attempt, and a message for each new frame.

The folder is made before the worker starts and removed when the attempt has ended. Of the rings in it only the headers
are read. What is published is a handle: where the frame is. The number of handles per second is bounded, however many
streams there are.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import shutil
import stat
from collections import Counter, deque
from typing import TYPE_CHECKING

from mosaic_bus import topics
from mosaic_bus.commands import FrameStream
from mosaic_bus.errors import BusError, FrameError
from mosaic_bus.frames import FrameFacts, FrameReader
from mosaic_bus.home import make_private
from mosaic_bus.logs import Logger
from mosaic_bus.messages import FrameHandle

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path
    from typing import Literal

    from mosaic_bus.messages import Model
    from mosaic_services.attempt_folder import AttemptKey

__all__ = ["FASTLANE_DIR", "LIST_S", "Frames", "Ring"]

_log = Logger()

FASTLANE_DIR = "MOSAIC_FASTLANE_DIR"
# Rings to look at in one turn (supervisor.frames_per_second). Of more streams, each is announced less often.
_RINGS_PER_TURN = 25
# Seconds between two listings of a folder, and what each attempt adds to that.
LIST_S = 0.5
_LIST_PER_ATTEMPT_S = 0.002
# Listings over which frames per second are measured.
_COUNTS_KEPT = 5
_STREAM = re.compile(r"[0-9A-Za-z_][0-9A-Za-z_.-]{0,63}")
_MOST_STREAMS = 256
# Tries to make a folder: a run host that ends may remove the folder above it at the same time.
_TRIES = 5


class Ring:
    """One stream of an attempt, and how far it has been announced."""

    def __init__(self, key: AttemptKey, path: str, stream: str) -> None:
        self.key = key
        self.path = path
        self.stream = stream
        self.reader = FrameReader(path)
        self.facts: FrameFacts | None = None
        self._published = 0
        self._is_closed = False
        self._seen: tuple[int, int] | None = None
        self._counts: deque[tuple[float, int]] = deque(maxlen=_COUNTS_KEPT)

    def look(self, *, final: bool = False) -> bool:
        """Read the header of the newest frame; return whether it is new. A final look does not need the file's name."""
        if not final:
            self.reader.refresh()
        found = self.reader.facts()
        if found is None or self._seen == (self.reader.inode, found.number):
            return False
        self._seen = (self.reader.inode, found.number)
        self.facts = found
        return True

    def count(self, now: float) -> None:
        """Note how many frames have been published by now."""
        self._note()
        if self._counts and self._published < self._counts[-1][1]:  # Another writer has begun anew.
            self._counts.clear()
        self._counts.append((now, self._published))

    def handle(self, host: str) -> FrameHandle | None:
        """Return the handle of the newest frame."""
        if (facts := self.facts) is None:
            return None
        return FrameHandle(
            host=host,
            run=self.key.run,
            attempt=self.key.attempt,
            stream=self.stream,
            file=self.path,
            epoch=facts.epoch,
            slot=facts.number % self.reader.slots,
            number=facts.number,
            shape=facts.shape,
            wall=facts.wall,
            step=facts.step,
            episode=facts.episode,
            last_reward=_known(facts.last_reward),
            rolling_return=_known(facts.rolling_return),
            step_rate_hz=_known(facts.step_rate_hz),
        )

    def state(self, host: str, *, ended: bool = False) -> FrameStream | None:
        """Describe the stream; None before its first frame."""
        handle = self.handle(host)
        if handle is None:
            return None
        self._note()
        fps = 0.0
        if len(self._counts) > 1 and not ended:
            (since, before), (now, after) = self._counts[0], self._counts[-1]
            fps = (after - before) / (now - since)
        writer: Literal["live", "closed", "dead", "ended"] = "live"
        if ended:
            writer = "ended"
        elif self._is_closed:
            writer = "closed"
        elif not self.reader.writer_is_alive:
            writer = "dead"
        return FrameStream(newest=handle, published=self._published, fps=fps, writer=writer)

    def _note(self) -> None:
        """Keep what the header says. If it cannot be read, the last values stay, and the next turn complains."""
        with contextlib.suppress(OSError, FrameError):
            self._published, self._is_closed = self.reader.published, self.reader.is_closed


class _Followed:
    """An attempt whose folder is listed."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.rings: dict[str, Ring] = {}
        # Files that are not opened again: stream -> inode. Another file of the same name is.
        self.bad: dict[str, int] = {}
        # Rings whose files are gone, usually with their folder at the end. They stay open for a final look.
        self.missing: dict[str, Ring] = {}
        self.list_at = 0.0


class Frames:
    """The frames of all attempts of a host."""

    def __init__(self, root: Path, host: str, publish: Callable[[str, Model, Iterable[bytes]], bool]) -> None:
        self.counters: Counter[str] = Counter({"frames_published": 0, "bad_rings": 0})
        self._root = root
        self._host = host
        self._publish = publish
        self._followed: dict[AttemptKey, _Followed] = {}
        # Rings in the order of their turns.
        self._turns: deque[Ring] = deque()
        self._complained: set[tuple[AttemptKey, str]] = set()
        self._unavailable = False

    # ── folders ─────────────────────────────────────────────────────────────────────────────────

    def make(self, key: AttemptKey) -> str | None:
        """Make the folder of an attempt and follow the rings in it; return None if it cannot be made."""
        folder = self._root / str(key)
        for left in reversed(range(_TRIES)):
            try:
                make_private(self._root)
                make_private(folder)
            except FileNotFoundError:
                if left and self._root.parent.is_dir():
                    continue
                self._go_without(f"{self._root.parent} is not there")
                return None
            except (OSError, BusError) as error:
                self._go_without(str(error))
                return None
            break
        self.follow(key)
        return str(folder)

    def follow(self, key: AttemptKey) -> None:
        """Follow the rings of an attempt, whoever made its folder."""
        self._followed.setdefault(key, _Followed(str(self._root / str(key))))

    def end(self, key: AttemptKey) -> list[FrameStream]:
        """Remove an attempt's folder; return the final state of its streams."""
        followed = self._followed.pop(key, None)
        states: list[FrameStream] = []
        for ring in (*followed.missing.values(), *followed.rings.values()) if followed else ():
            with contextlib.suppress(Exception):  # A broken ring was reported when it was found.
                ring.look(final=True)
            if state := ring.state(self._host, ended=True):
                states.append(state)
            ring.reader.close()
        self._turns = deque(ring for ring in self._turns if ring.key != key)
        self._complained = {each for each in self._complained if each[0] != key}
        self._remove(self._root / str(key))
        return states

    def sweep(self, live: Iterable[AttemptKey]) -> None:
        """Remove folders of attempts that are not live, left by a supervisor that was killed."""
        wanted = {str(key) for key in live}
        with contextlib.suppress(OSError):  # If the folder cannot be used, `make` says so.
            found = self._root.lstat()
            if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
                return  # Another user may have made it, or a link to a folder of ours.
            for each in list(self._root.iterdir()):
                if each.name not in wanted:
                    self._remove(each)
                    _log.info("removed frames of an ended attempt", folder=str(each))
        self._remove_empty_root()

    def _remove(self, folder: Path) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        self._remove_empty_root()

    def _remove_empty_root(self) -> None:
        with contextlib.suppress(OSError):
            self._root.rmdir()

    def _go_without(self, reason: str) -> None:
        if not self._unavailable:
            self._unavailable = True
            _log.warning("no frames from runs on this host", reason=reason)

    # ── what there is ───────────────────────────────────────────────────────────────────────────

    def rings(self, run: str) -> list[Ring] | None:
        """The streams of a run's live attempt, by name; None if it has none here."""
        keys = [key for key in self._followed if key.run == run]
        return [ring for _, ring in sorted(self._followed[max(keys)].rings.items())] if keys else None

    def states(self, run: str) -> list[FrameStream] | None:
        """The streams of a run's live attempt, described; None if it has none here."""
        rings = self.rings(run)
        if rings is None:
            return None
        return [state for ring in rings if (state := ring.state(self._host)) is not None]

    def handle(self, ring: Ring) -> FrameHandle | None:
        """Return the handle of a ring's newest frame."""
        return ring.handle(self._host)

    # ── following ───────────────────────────────────────────────────────────────────────────────

    @property
    def is_idle(self) -> bool:
        """Whether there is no ring to look at."""
        return not self._turns

    def turn(self, now: float) -> None:
        """List folders that are due, look at the rings whose turn it is, and announce new frames."""
        pause = max(LIST_S, _LIST_PER_ATTEMPT_S * len(self._followed))
        for key, followed in list(self._followed.items()):
            if now >= followed.list_at:
                followed.list_at = now + pause
                self._list(key, followed)
                for ring in followed.rings.values():
                    ring.count(now)
        for _ in range(min(_RINGS_PER_TURN, len(self._turns))):
            ring = self._turns[0]
            self._turns.rotate(-1)
            try:
                new = ring.look()
            except FileNotFoundError:
                self._drop(ring, missing=True)
                continue
            except Exception as error:  # A worker can write anything there.
                self._drop(ring)
                self.complain(ring.key, ring.stream, str(error))
                continue
            if new and (handle := self.handle(ring)) is not None:
                self._publish(topics.frame(ring.key.run), handle, ())
                self.counters["frames_published"] += 1

    def complain(self, key: AttemptKey, stream: str, reason: str) -> None:
        """Count a ring that cannot be read, and log it once."""
        if (key, stream) in self._complained or key not in self._followed:
            return
        self._complained.add((key, stream))
        self.counters["bad_rings"] += 1
        _log.warning("frames cannot be read", attempt=str(key), stream=stream, reason=reason)

    def _list(self, key: AttemptKey, followed: _Followed) -> None:
        try:
            found = dict(_rings_in(followed.folder))
        except OSError:
            return  # The attempt is ending, or its folder was removed.
        for stream, ring in followed.missing.items():
            if stream not in found:
                self.complain(key, stream, "the file has gone")
            ring.reader.close()
        followed.missing.clear()
        for stream, inode in found.items():
            if stream in followed.rings or followed.bad.get(stream) == inode:
                continue
            if len(followed.rings) >= _MOST_STREAMS:
                self.complain(key, "", f"there are more than {_MOST_STREAMS} streams: the others are not followed")
                return
            try:
                if not _STREAM.fullmatch(stream):
                    raise ValueError(f"{stream!r} cannot name a stream: use letters, digits, _, . and -")
                ring = Ring(key, f"{followed.folder}/{stream}.ring", stream)
            except FileNotFoundError:
                continue
            except Exception as error:
                followed.bad[stream] = inode
                self.complain(key, stream, str(error))
                continue
            followed.rings[stream] = ring
            self._turns.append(ring)

    def _drop(self, ring: Ring, *, missing: bool = False) -> None:
        followed = self._followed[ring.key]
        del followed.rings[ring.stream]
        self._turns.remove(ring)
        if missing:
            followed.missing[ring.stream] = ring
        else:
            followed.bad[ring.stream] = ring.reader.inode
            ring.reader.close()


def _rings_in(folder: str) -> Iterator[tuple[str, int]]:
    """Yield the streams in a folder, each with the inode of its file; skip what is not a regular file."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.endswith(".ring") and entry.is_file(follow_symlinks=False):
                yield entry.name.removesuffix(".ring"), entry.inode()


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value
