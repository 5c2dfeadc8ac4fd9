"""Pictures, JPEGs of frames, for readers on other machines: encoded once for all, and only while somebody asks."""

from __future__ import annotations

import asyncio
import io
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from mosaic_bus import topics
from mosaic_bus.frames import FrameReader

if TYPE_CHECKING:
    from collections.abc import Iterable

    from mosaic_bus.frames import Frame
    from mosaic_bus.messages import FrameHandle
    from mosaic_services.attempt_folder import AttemptKey
    from mosaic_services.supervisor.frames import Frames

__all__ = ["LEASE_S", "Encoded", "Job", "Pictures"]

# Seconds for which pictures are encoded after a reader has asked for them.
LEASE_S = 5.0
# Least seconds until the same picture is sent again, for readers who have asked since.
_AGAIN_S = 1.0


class Lease(NamedTuple):
    """What a reader wants to see. Readers who want the same share a lease."""

    run: str
    stream: str | None
    max_dim: int
    quality: int


class Kind(NamedTuple):
    """What is encoded once: the newest frame of a file, in one size and quality."""

    path: str
    max_dim: int
    quality: int


@dataclass(frozen=True, slots=True)
class Job:
    """One frame to encode, unless it was encoded last time."""

    kind: Kind
    key: AttemptKey
    handle: FrameHandle
    # Inode of the file and number of the frame that was encoded last.
    done: tuple[int, int] | None


@dataclass(frozen=True, slots=True)
class Encoded:
    """The result of a job: a picture, or an error."""

    job: Job
    handle: FrameHandle
    picture: bytes
    done: tuple[int, int] | None
    error: str = ""


@dataclass(slots=True)
class _Sent:
    """The last picture of a kind."""

    encoded: Encoded
    at: float
    again: bool = False


class Pictures:
    """Knows who wants which pictures. `plan` and `take` belong to the event loop, `encode` to a thread."""

    def __init__(self, frames: Frames) -> None:
        self.counters: Counter[str] = Counter({"pictures_encoded": 0, "picture_bytes": 0})
        self.asked = asyncio.Event()
        self._frames = frames
        self._leases: dict[Lease, float] = {}
        self._sent: dict[Kind, _Sent] = {}
        self._readers: dict[str, FrameReader] = {}

    def watch(self, lease: Lease, now: float) -> str:
        """Start or extend a lease; return the topic on which the pictures arrive."""
        self._leases[lease] = now + LEASE_S
        for kind in self._kinds(lease):
            if kind in self._sent:
                self._sent[kind].again = True
        self.asked.set()
        return topics.picture(lease.run, lease.max_dim, lease.quality)

    def plan(self, now: float) -> list[Job]:
        """Return the frames to encode now; none once every lease has run out."""
        self._leases = {lease: until for lease, until in self._leases.items() if until > now}
        if not self._leases:
            self.asked.clear()
        wanted = {kind: job for lease in self._leases for kind, job in self._kinds(lease).items()}
        self._sent = {kind: sent for kind, sent in self._sent.items() if kind in wanted}
        return list(wanted.values())

    def take(self, encoded: Iterable[Encoded], now: float) -> list[tuple[str, FrameHandle, bytes]]:
        """Note what was encoded; return what to publish: new pictures, and old ones that a new reader has not seen."""
        for each in encoded:
            if each.error:
                self._frames.complain(each.job.key, each.job.handle.stream, each.error)
                continue
            self.counters["pictures_encoded"] += 1
            self.counters["picture_bytes"] += len(each.picture)
            self._sent[each.job.kind] = _Sent(each, at=0.0, again=True)
        due = []
        for kind, sent in self._sent.items():
            if sent.again and now - sent.at >= _AGAIN_S:
                sent.again, sent.at = False, now
                topic = topics.picture(sent.encoded.handle.run, kind.max_dim, kind.quality)
                due.append((topic, sent.encoded.handle, sent.encoded.picture))
        return due

    def _kinds(self, lease: Lease) -> dict[Kind, Job]:
        found = {}
        for ring in self._frames.rings(lease.run) or []:
            handle = self._frames.handle(ring)
            if handle is not None and lease.stream in (None, ring.stream):
                kind = Kind(ring.path, lease.max_dim, lease.quality)
                sent = self._sent.get(kind)
                found[kind] = Job(kind, ring.key, handle, sent.encoded.done if sent else None)
        return found

    # ── in a thread ─────────────────────────────────────────────────────────────────────────────

    def encode(self, jobs: list[Job]) -> list[Encoded]:
        """Encode the newest frames; each file is read once."""
        paths = {job.kind.path for job in jobs}
        for path in set(self._readers) - paths:
            self._readers.pop(path).close()
        results = []
        for path in sorted(paths):
            mine = [job for job in jobs if job.kind.path == path]
            try:
                results += self._encode_file(path, mine)
            except FileNotFoundError:
                continue  # The attempt has just ended.
            except Exception as error:  # A worker can write anything there.
                if reader := self._readers.pop(path, None):
                    reader.close()
                results.append(Encoded(mine[0], mine[0].handle, b"", None, str(error)))
        return results

    def _encode_file(self, path: str, jobs: list[Job]) -> list[Encoded]:
        reader = self._readers.get(path)
        if reader is None:
            reader = self._readers[path] = FrameReader(path)
        reader.refresh()
        newest = (reader.inode, reader.published - 1)
        if all(job.done == newest for job in jobs):
            return []
        frame = reader.latest()
        if frame is None:
            return []
        done = (reader.inode, frame.number)
        return [
            Encoded(job, _describe(job.handle, frame, reader.slots), to_jpeg(frame, job.kind), done)
            for job in jobs
            if job.done != done
        ]


def to_jpeg(frame: Frame, kind: Kind) -> bytes:
    """Encode a frame as JPEG, scaled down to the wanted size."""
    from PIL import Image  # noqa: PLC0415 - start-up time

    image = Image.fromarray(frame.pixels)
    image = image if image.mode in {"L", "RGB"} else image.convert("RGB")
    image.thumbnail((kind.max_dim, kind.max_dim), Image.Resampling.BILINEAR)
    written = io.BytesIO()
    image.save(written, "JPEG", quality=kind.quality)
    return written.getvalue()


def _describe(handle: FrameHandle, frame: Frame, slots: int) -> FrameHandle:
    """Return the handle of the frame that was encoded, which may be newer than the one in `handle`."""
    figures = ("last_reward", "rolling_return", "step_rate_hz")
    known = {name: None if (value := getattr(frame, name)) != value else value for name in figures}
    return handle.model_copy(
        update={
            "epoch": frame.epoch,
            "slot": frame.number % slots,
            "number": frame.number,
            "shape": frame.pixels.shape,
            "wall": frame.wall,
            "step": frame.step,
            "episode": frame.episode,
            "encoding": "jpeg",
            **known,
        }
    )
