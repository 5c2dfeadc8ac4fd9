"""Pictures in shared memory, the supervisor's side: the folder of each attempt, and a word for each new picture.

The folder is made before the worker starts and removed when the attempt has ended. Rings in it are followed by their
headers only; what is published is where the picture is, at a pace that does not grow with the number of streams.
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
# Rings that are looked at in one turn (supervisor.frames_per_second): up to this many streams, each is announced in
# every turn; of more, each less often.
_RINGS_PER_TURN = 25
# How often a folder is listed; with many attempts less often, for every one of them by this much.
LIST_S = 0.5
_LIST_PER_ATTEMPT_S = 0.002
# Pictures per second are taken over so many listings.
_COUNTS_KEPT = 5
_STREAM = re.compile(r"[0-9A-Za-z_][0-9A-Za-z_.-]{0,63}")
_MOST_STREAMS = 256
# The run host's folder may be made, by us, while the last run host of others removes the one above it.
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
        """Read the newest picture's figures; whether it is a new one. At the end the file may be gone already."""
        if not final:
            self.reader.refresh()
        found = self.reader.facts()
        if found is None or self._seen == (self.reader.inode, found.number):
            return False
        self._seen = (self.reader.inode, found.number)
        self.facts = found
        return True

    def count(self, now: float) -> None:
        """Note how many pictures there have been by now."""
        self._note()
        if self._counts and self._published < self._counts[-1][1]:  # Another writer has begun anew.
            self._counts.clear()
        self._counts.append((now, self._published))

    def handle(self, host: str) -> FrameHandle | None:
        """What is said of the newest picture."""
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
        """Describe the stream; None before its first picture."""
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
        """Keep what the header says; of a ring that has gone bad, which its next turn will tell, what it last said."""
        with contextlib.suppress(OSError, FrameError):
            self._published, self._is_closed = self.reader.published, self.reader.is_closed


class _Followed:
    """An attempt whose folder is looked into."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.rings: dict[str, Ring] = {}
        # What is not looked at again, by its number of file: another file of that name is.
        self.bad: dict[str, int] = {}
        # Those that were gone when last looked at: with their folder, as is usual at the end, or alone. They stay open,
        # since what they came to is still to be said.
        self.missing: dict[str, Ring] = {}
        self.list_at = 0.0


class Frames:
    """The pictures of all attempts of a host."""

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
        """Make the folder of an attempt and follow what appears in it; None, said once, if there cannot be one."""
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
        """Look for pictures of an attempt, whoever made its folder."""
        self._followed.setdefault(key, _Followed(str(self._root / str(key))))

    def end(self, key: AttemptKey) -> list[FrameStream]:
        """Remove an attempt's folder; return what its streams came to."""
        followed = self._followed.pop(key, None)
        states: list[FrameStream] = []
        for ring in (*followed.missing.values(), *followed.rings.values()) if followed else ():
            with contextlib.suppress(Exception):  # A ring that is broken has been complained about.
                ring.look(final=True)
            if state := ring.state(self._host, ended=True):
                states.append(state)
            ring.reader.close()
        self._turns = deque(ring for ring in self._turns if ring.key != key)
        self._complained = {each for each in self._complained if each[0] != key}
        self._remove(self._root / str(key))
        return states

    def sweep(self, live: Iterable[AttemptKey]) -> None:
        """Remove what belongs to no live attempt: an earlier supervisor was killed before it could."""
        wanted = {str(key) for key in live}
        with contextlib.suppress(OSError):  # It is not there, or not ours: `make` says so when there is a need for it.
            found = self._root.lstat()
            if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
                return  # Anybody may have made it, or a link to something of ours that is not to be removed.
            for each in list(self._root.iterdir()):
                if each.name not in wanted:
                    self._remove(each)
                    _log.info("swept pictures", folder=str(each))
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
            _log.warning("no pictures from runs on this host", reason=reason)

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
        """What is said of a ring's newest picture."""
        return ring.handle(self._host)

    # ── following ───────────────────────────────────────────────────────────────────────────────

    @property
    def is_idle(self) -> bool:
        """Whether there is no ring: then it is enough to look for new ones."""
        return not self._turns

    def turn(self, now: float) -> None:
        """Look for new rings where it is time, then at those whose turn it is, and announce what is new."""
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
            except Exception as error:  # Whatever a worker wrote there, it is its own loss.
                self._drop(ring)
                self.complain(ring.key, ring.stream, str(error))
                continue
            if new and (handle := self.handle(ring)) is not None:
                self._publish(topics.frame(ring.key.run), handle, ())
                self.counters["frames_published"] += 1

    def complain(self, key: AttemptKey, stream: str, reason: str) -> None:
        """Count a ring that cannot be read, and say so once."""
        if (key, stream) in self._complained or key not in self._followed:
            return
        self._complained.add((key, stream))
        self.counters["bad_rings"] += 1
        _log.warning("pictures cannot be read", attempt=str(key), stream=stream, reason=reason)

    def _list(self, key: AttemptKey, followed: _Followed) -> None:
        try:
            found = dict(_rings_in(followed.folder))
        except OSError:
            return  # The attempt is ending, or its folder was taken away: there is nothing to follow.
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
    """Names of streams in a folder, each with the number of its file. What is no plain file is left alone."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.endswith(".ring") and entry.is_file(follow_symlinks=False):
                yield entry.name.removesuffix(".ring"), entry.inode()


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value
