"""The message on the wire: topic, header, payload, buffers. Pure bytes, no sockets."""

from __future__ import annotations

import time
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

import msgpack
from ulid import ULID

from mosaic_bus.errors import BadMessageError, WrongVersionError

__all__ = ["MAX_MESSAGE_BYTES", "PROTOCOL_VERSION", "Header", "Message", "Stamper", "decode", "decode_header", "encode"]

PROTOCOL_VERSION = 1
MAX_MESSAGE_BYTES = 64 * 1024 * 1024
_TOPIC_LENGTH = 256
_PARTS_BEFORE_BUFFERS = 3


@dataclass(frozen=True, slots=True)
class Header:
    """Who sent a message, when, and as the how-manieth on its topic."""

    id: str
    src: str
    epoch: int
    seq: int
    wall: float
    mono: float
    cor: str | None = None
    v: int = PROTOCOL_VERSION

    def pack(self) -> bytes:
        """Encode for the wire; `cor` is left out when there is none."""
        fields: dict[str, Any] = {
            "v": self.v,
            "id": self.id,
            "src": self.src,
            "epoch": self.epoch,
            "seq": self.seq,
            "wall": self.wall,
            "mono": self.mono,
        }
        if self.cor is not None:
            fields["cor"] = self.cor
        packed: bytes = msgpack.packb(fields)
        return packed


@dataclass(frozen=True, slots=True)
class Message:
    """One decoded message."""

    topic: str
    header: Header
    payload: dict[str, Any]
    buffers: tuple[bytes, ...] = ()


_HEADER_TYPES: dict[str, tuple[type, ...]] = {
    "id": (str,),
    "src": (str,),
    "epoch": (int,),
    "seq": (int,),
    "wall": (float, int),
    "mono": (float, int),
    "cor": (str, type(None)),
}


def _unpack_map(what: str, data: bytes) -> dict[str, Any]:
    try:
        value = msgpack.unpackb(data)
    except (ValueError, msgpack.UnpackException, RecursionError) as error:
        raise BadMessageError(f"{what} is not msgpack: {type(error).__name__} {error}") from error
    if not isinstance(value, dict):
        raise BadMessageError(f"{what} is a {type(value).__name__}, not a map")
    return value


def decode_header(data: bytes) -> Header:
    """Read and check a header."""
    fields = _unpack_map("header", data)
    version = fields.get("v")
    if version != PROTOCOL_VERSION or isinstance(version, bool):
        raise WrongVersionError(version, PROTOCOL_VERSION)
    for name, types in _HEADER_TYPES.items():
        value = fields.get(name)
        if not isinstance(value, types) or isinstance(value, bool):
            raise BadMessageError(f"header field {name!r} is {value!r}, not {types[0].__name__}")
    known: dict[str, Any] = {name: fields.get(name) for name in _HEADER_TYPES}
    return Header(**known)


def decode_topic(data: bytes) -> str:
    """Read and check a topic: printable ASCII without spaces, dotted, ending in a dot."""
    if not 1 < len(data) <= _TOPIC_LENGTH:
        raise BadMessageError(f"topic of {len(data)} bytes; allowed are 2 to {_TOPIC_LENGTH}")
    if not data.endswith(b".") or not data.isascii() or not data.decode("ascii").isprintable() or b" " in data:
        raise BadMessageError(f"topic {data[:40]!r} is not printable ASCII that ends in a dot")
    return data.decode("ascii")


def check(parts: list[bytes]) -> Header:
    """Check everything but the payload's contents; what the broker does before it forwards."""
    if len(parts) < _PARTS_BEFORE_BUFFERS:
        raise BadMessageError(f"message of {len(parts)} parts; a topic, a header and a payload are needed")
    size = sum(map(len, parts))
    if size > MAX_MESSAGE_BYTES:
        raise BadMessageError(f"message of {size} bytes exceeds {MAX_MESSAGE_BYTES}")
    decode_topic(parts[0])
    return decode_header(parts[1])


def encode(message: Message) -> list[bytes]:
    """Turn a message into the parts of a ZeroMQ multipart message."""
    return [
        message.topic.encode("ascii"),
        message.header.pack(),
        msgpack.packb(message.payload),
        *message.buffers,
    ]


def decode(parts: list[bytes]) -> Message:
    """Turn multipart bytes into a message, or raise `BadMessageError` saying what is wrong."""
    header = check(parts)
    payload = _unpack_map("payload", parts[2])
    return Message(decode_topic(parts[0]), header, payload, tuple(parts[_PARTS_BEFORE_BUFFERS:]))


@dataclass
class Stamper:
    """Makes headers for one source: fresh ids, and sequence numbers per topic."""

    src: str
    epoch: int
    _seqs: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))

    def stamp(self, topic: str, cor: str | None = None, message_id: str | None = None) -> Header:
        """Make the header of the next message on a topic."""
        seq = self._seqs[topic]
        self._seqs[topic] = seq + 1
        return Header(
            id=message_id or str(ULID()),
            src=self.src,
            epoch=self.epoch,
            seq=seq,
            wall=time.time(),
            mono=time.monotonic(),
            cor=cor,
        )

    def forget(self, topic: str) -> None:
        """Drop the counter of a topic that will not be used again."""
        self._seqs.pop(topic, None)
