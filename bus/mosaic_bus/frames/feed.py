"""A run's frames wherever it runs: from shared memory if that is this machine, else as JPEG off the bus."""

from __future__ import annotations

import io
import math
import time
from typing import TYPE_CHECKING, Protocol, Self

import numpy as np

from mosaic_bus import topics
from mosaic_bus.commands import FrameStreams, Runs, WatchFrames
from mosaic_bus.errors import CommandRefusedError, FrameError, NoAnswerError, PillowMissingError
from mosaic_bus.frames.reader import Frame, FrameReader
from mosaic_bus.messages import FrameHandle

if TYPE_CHECKING:
    from collections.abc import Iterator
    from concurrent.futures import Future

    from mosaic_bus.client.connection import Subscription
    from mosaic_bus.client.plain import Bus
    from mosaic_bus.commands import FrameStream, WatchFramesResult
    from mosaic_bus.messages import RunState

__all__ = ["FrameFeed", "is_here"]

# How often it is asked where the run is and which streams it has.
_ASK_S = 1.0
# How often shared memory is looked at, when there is nothing new in it.
_LOOK_S = 0.004
_RENEW_S = 2.0
_ANSWER_S = 5.0
# How long `frames` waits for services that are silent while no frame comes; a restart takes a few seconds.
_OUTAGE_S = 60.0
# Frames are for looking at: a slow reader sees fewer frames, not older ones.
_FRAMES_KEPT = 4


class FrameFeed:
    """The frames of one run, as long as it runs and through all its attempts. `state` and `streams` say how it is."""

    def __init__(
        self,
        bus: Bus,
        run: str,
        stream: str | None = None,
        *,
        remote: bool = False,
        max_dim: int = 640,
        quality: int = 80,
    ) -> None:
        self._bus = bus
        self._stream = stream
        self._remote = remote
        self._wanted = (max_dim, quality)
        self._source: _Source | None = None
        self._ask_at = 0.0
        self.streams: list[FrameStream] = []
        (self.state,) = bus.request("scheduler", Runs(runs=[run])).runs
        self.run = self.state.run
        self._view = bus.follow(runs=[self.run], hosts=False, summaries=False)
        # Asked meanwhile: what is in shared memory goes on while a service is restarted and does not answer.
        self._asked: Future[tuple[RunState, list[FrameStream] | None]] | None = bus.begin(self._ask())
        self._hear(self._asked)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def is_over(self) -> bool:
        """Whether no more can come."""
        return self.state.state.final and not self.streams

    @property
    def silent(self) -> dict[str, float]:
        """Services that would report the run's end but have not been heard for some seconds, with the seconds."""
        return self._view.silent

    def frames(self, timeout: float | None = None) -> Iterator[Frame]:
        """Yield frames until the run has ended, or until there was none for `timeout` seconds.

        Raise `NoAnswerError` if there was none for a minute and the services were silent as long.
        """
        silent_since = time.monotonic()
        while not self.is_over:
            frame = self.next(0.1)
            now = time.monotonic()
            if frame is not None:
                yield frame
                silent_since = time.monotonic()
            elif timeout is not None and now - silent_since >= timeout:
                return
            elif now - silent_since > _OUTAGE_S:
                for service, seconds in self.silent.items():
                    if seconds > _OUTAGE_S:
                        raise NoAnswerError(service, "heartbeat", seconds)

    def next(self, wait: float) -> Frame | None:
        """Wait at most so many seconds for a new frame."""
        deadline = time.monotonic() + wait
        while True:
            now = time.monotonic()
            if self._asked is None and now >= self._ask_at:
                self._asked = self._bus.begin(self._ask())
            elif self._asked is not None and self._asked.done():
                self._hear(self._asked)
            left = max(0.0, deadline - now)
            if self._source is None:
                time.sleep(min(left, _LOOK_S))
            elif (frame := self._source.next(min(left, 0.1))) is not None:
                return frame
            if time.monotonic() >= deadline:
                return None

    def close(self) -> None:
        """Let go of files and subscriptions."""
        if self._asked is not None:
            self._asked.cancel()
        self._view.close()
        self._leave_source()

    def _leave_source(self) -> None:
        if self._source is not None:
            self._source.close()
            self._source = None

    async def _ask(self) -> tuple[RunState, list[FrameStream] | None]:
        """Return the run's state, and its streams if its host answers; a run that has ended needs no answer."""
        request = self._bus.client.request
        state = self._view.runs.get(self.run, self.state)
        if not state.host:
            return state, []
        try:
            answer = await request(topics.supervisor(state.host), FrameStreams(run=self.run), _ANSWER_S)
        except CommandRefusedError:  # it is not there yet, or not any more
            return state, []
        except NoAnswerError:
            state = self._view.runs.get(self.run, state)
            return state, [] if state.state.final else None
        return state, answer.streams

    def _hear(self, asked: Future[tuple[RunState, list[FrameStream] | None]]) -> None:
        """Take the answer; without one, keep the last streams."""
        try:
            self.state, found = asked.result()
        finally:
            self._asked, self._ask_at = None, time.monotonic() + _ASK_S
        if found is None:
            return
        live = [each for each in found if each.writer != "ended"]
        self.streams = [each for each in live if self._stream in (None, each.newest.stream)]
        self._choose_source()

    def _choose_source(self) -> None:
        if not self.streams:
            return  # What was there may still have a frame that has not been taken.
        here = not self._remote and all(is_here(each.newest) for each in self.streams)
        if here:
            if not isinstance(self._source, _Local):
                self._leave_source()
                self._source = _Local()
            self._source.follow([each.newest.file for each in self.streams])
        elif not isinstance(self._source, _FromAfar) or self._source.host != self.streams[0].newest.host:
            self._leave_source()
            self._source = _FromAfar(self._bus, self.streams[0].newest.host, self.run, self._stream, self._wanted)


def is_here(handle: FrameHandle) -> bool:
    """Whether a frame's file can be read from this machine's shared memory."""
    try:
        FrameReader(handle.file).close()
    except (OSError, FrameError):
        return False
    return True


class _Source(Protocol):
    """Where frames come from."""

    def next(self, wait: float) -> Frame | None: ...

    def close(self) -> None: ...


class _Local:
    """Frames from shared memory."""

    def __init__(self) -> None:
        self._readers: dict[str, FrameReader] = {}
        self._seen: dict[str, tuple[int, int]] = {}

    def follow(self, files: list[str]) -> None:
        """Read these files from now on, as they are now."""
        for file in set(self._readers) - set(files):
            self._drop(file)
        for file in files:
            try:
                if file in self._readers:
                    self._readers[file].refresh()
                else:
                    self._readers[file] = FrameReader(file)
            except (OSError, FrameError):
                self._drop(file)

    def next(self, wait: float) -> Frame | None:
        """Copy a frame that is new; of several streams, each has its turn."""
        deadline = time.monotonic() + wait
        while True:
            for file, reader in list(self._readers.items()):
                try:
                    published = reader.published
                    if self._seen.get(file) == (reader.inode, published):
                        continue
                    frame = reader.latest()
                except (OSError, FrameError):
                    self._drop(file)
                    continue
                if frame is not None:
                    self._seen[file] = (reader.inode, max(published, frame.number + 1))
                    self._readers[file] = self._readers.pop(file)
                    return frame
            if time.monotonic() >= deadline:
                return None
            time.sleep(_LOOK_S)

    def close(self) -> None:
        """Let go of the files."""
        for file in list(self._readers):
            self._drop(file)

    def _drop(self, file: str) -> None:
        reader = self._readers.pop(file, None)
        if reader is not None:
            reader.close()


class _FromAfar:
    """Frames that the supervisor of another machine encodes for us, and for whoever else wants them."""

    def __init__(self, bus: Bus, host: str, run: str, stream: str | None, wanted: tuple[int, int]) -> None:
        require_pillow()
        self.host = host
        self._bus = bus
        self._stream = stream
        max_dim, quality = wanted
        self._ask_for = WatchFrames(run=run, stream=stream, max_dim=max_dim, quality=quality)
        topic = topics.picture(run, max_dim, quality)
        self._subscription: Subscription = bus.subscribe(topic, max_queue=_FRAMES_KEPT)
        self._renew_at = 0.0
        self._renewal: Future[WatchFramesResult] | None = None
        self._seen: dict[str, tuple[int, int, float]] = {}

    def next(self, wait: float) -> Frame | None:
        """Wait for a frame that was not seen yet."""
        deadline = time.monotonic() + wait
        while (now := time.monotonic()) < deadline:
            if now >= self._renew_at and (self._renewal is None or self._renewal.done()):
                # What comes of it does not matter: if it was refused the run has ended, else frames come.
                self._renew_at = now + _RENEW_S
                watch = self._bus.client.request(topics.supervisor(self.host), self._ask_for, _ANSWER_S)
                self._renewal = self._bus.begin(watch)
            message = self._bus.wait_for(self._subscription, deadline - now)
            if message is None:
                continue
            try:
                handle = FrameHandle.model_validate(message.payload)
                this = (handle.attempt, handle.number, handle.wall)
                if self._stream in (None, handle.stream) and self._seen.get(handle.stream) != this:
                    self._seen[handle.stream] = this
                    (picture,) = message.buffers
                    return _decode(handle, picture)
            except (ValueError, OSError):  # anybody can send anything: that was no picture
                continue
        return None

    def close(self) -> None:
        """Ask no more; the frames stop when nobody does."""
        if self._renewal is not None:
            self._renewal.cancel()
        self._bus.unsubscribe(self._subscription)


def require_pillow() -> None:
    """Raise `PillowMissingError` if JPEG cannot be decoded here."""
    try:
        import PIL.Image  # noqa: F401, PLC0415 - only this needs it
    except ImportError:
        raise PillowMissingError from None


def _decode(handle: FrameHandle, picture: bytes) -> Frame:
    from PIL import Image  # noqa: PLC0415 - only this needs it

    with Image.open(io.BytesIO(picture)) as image:
        pixels = np.asarray(image)
    return Frame(
        pixels,
        handle.number,
        handle.epoch,
        handle.step,
        handle.episode,
        handle.wall,
        math.nan,
        _or_nan(handle.last_reward),
        _or_nan(handle.rolling_return),
        _or_nan(handle.step_rate_hz),
        handle.stream,
    )


def _or_nan(value: float | None) -> float:
    return math.nan if value is None else value
