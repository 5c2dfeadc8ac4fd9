"""The message on the wire: topic, header, payload, buffers. Pure bytes, no sockets."""

from __future__ import annotations

import random
import time
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgpack

from mosaic_bus.errors import BadMessageError, MessageTooLargeError, WrongVersionError
from mosaic_bus.wording import shown

if TYPE_CHECKING:
    from collections.abc import Iterable, Sized

__all__ = [
    "MAX_HEADER_BYTES",
    "MAX_MESSAGE_BYTES",
    "MAX_PARTS",
    "PROTOCOL_VERSION",
    "Header",
    "Message",
    "Stamper",
    "check",
    "check_size",
    "decode",
    "decode_header",
    "decode_topic",
    "encode",
    "encode_topic",
    "new_id",
    "pack",
]

PROTOCOL_VERSION = 2
MAX_MESSAGE_BYTES = 64 * 1024 * 1024
MAX_HEADER_BYTES = 16 * 1024
_TOPIC_LENGTH = 256
_PARTS_BEFORE_BUFFERS = 3
MAX_PARTS = 64
_LARGEST_WHOLE = 2**53  # exact in every language
# msgpack allocates a list by its claimed length before it reads it, so nested claims could exhaust memory.
_LONGEST_ARRAY = 1_000_000
_TOPICS_REMEMBERED = 20_000


@dataclass(frozen=True, slots=True)
class Header:
    """Message metadata: sender, time, per-topic sequence number."""

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


_TEXT, _WHOLE, _NUMBER = (str,), (int,), (float, int)
_HEADER_TYPES: dict[str, tuple[type, ...]] = {
    "id": _TEXT,
    "src": _TEXT,
    "epoch": _WHOLE,
    "seq": _WHOLE,
    "wall": _NUMBER,
    "mono": _NUMBER,
}


def _unpack_map(what: str, data: bytes) -> dict[str, Any]:
    try:
        # Within a payload, keys may be of any kind, so that a command with such arguments can be answered.
        value = msgpack.unpackb(data, max_array_len=min(len(data), _LONGEST_ARRAY), strict_map_key=False)
    except (ValueError, TypeError, OverflowError, msgpack.UnpackException, RecursionError, MemoryError) as error:
        raise BadMessageError(f"{what} is not msgpack: {type(error).__name__} {shown(str(error))}") from error
    if not isinstance(value, dict):
        raise BadMessageError(f"{what} is a {type(value).__name__}, not a map")
    if not all(isinstance(key, str) for key in value):
        raise BadMessageError(f"{what} has a key that is not a string")
    return value


def decode_header(data: bytes) -> Header:
    """Read and check a header."""
    if len(data) > MAX_HEADER_BYTES:
        raise BadMessageError(f"header of {len(data)} bytes exceeds {MAX_HEADER_BYTES}")
    fields = _unpack_map("header", data)
    version = fields.get("v")
    if type(version) is not int or version != PROTOCOL_VERSION:
        raise WrongVersionError(shown(version), PROTOCOL_VERSION)
    for name, types in _HEADER_TYPES.items():
        value: Any = fields.get(name)
        if type(value) not in types or (types is _WHOLE and not 0 <= value <= _LARGEST_WHOLE):
            raise BadMessageError(f"header field {name!r} is {shown(value)}, not {_expected(types)}")
    cor = fields.get("cor")
    if cor is not None and type(cor) is not str:
        raise BadMessageError(f"header field 'cor' is {shown(cor)}, not a string")
    return Header(fields["id"], fields["src"], fields["epoch"], fields["seq"], fields["wall"], fields["mono"], cor)


def _expected(types: tuple[type, ...]) -> str:
    return {_TEXT: "a string", _WHOLE: "a whole number from 0 to 2^53", _NUMBER: "a number"}[types]


def decode_topic(data: bytes) -> str:
    """Read and check a topic: printable ASCII without spaces, dotted, ending in a dot."""
    if not 1 < len(data) <= _TOPIC_LENGTH:
        raise BadMessageError(f"topic of {len(data)} bytes; allowed are 2 to {_TOPIC_LENGTH}")
    try:
        topic = data.decode("ascii")
    except UnicodeDecodeError:
        topic = ""
    if not topic.endswith(".") or not topic.isprintable() or " " in topic:
        raise BadMessageError(f"topic {data[:40]!r} is not printable ASCII that ends in a dot")
    return topic


def check(parts: list[bytes]) -> Header:
    """Check everything but the payload's contents, as the broker does before it forwards."""
    return _check(parts)[1]


def _check(parts: list[bytes]) -> tuple[str, Header]:
    if len(parts) < _PARTS_BEFORE_BUFFERS:
        raise BadMessageError(f"message of {len(parts)} parts; a topic, a header and a payload are needed")
    if len(parts) > MAX_PARTS:
        raise BadMessageError(f"message of more than {MAX_PARTS} parts")
    check_size(parts)
    return decode_topic(parts[0]), decode_header(parts[1])


def check_size(parts: Iterable[Sized]) -> int:
    """Return the size of a message; raise `MessageTooLargeError` if it exceeds the limit."""
    size = sum(map(len, parts))
    if size > MAX_MESSAGE_BYTES:
        raise MessageTooLargeError(size, MAX_MESSAGE_BYTES)
    return size


def encode_topic(topic: str) -> bytes:
    """Turn a topic into bytes, or raise `BadMessageError`."""
    try:
        return topic.encode("ascii")
    except UnicodeEncodeError:
        raise BadMessageError(f"topic {shown(topic)} is not ASCII") from None


def encode(message: Message) -> list[bytes]:
    """Turn a message into the parts of a ZeroMQ multipart message, or raise `BadMessageError` saying why not."""
    return [encode_topic(message.topic), message.header.pack(), pack(message.payload), *message.buffers]


def pack(payload: dict[str, Any]) -> bytes:
    """Encode a payload, or raise `BadMessageError` with the reason."""
    try:
        try:
            packed: bytes = msgpack.packb(payload, default=_pack_unusual)
        except UnicodeEncodeError:
            # A lone surrogate, such as "\\ud800" in JSON, has no UTF-8 form.
            packed = msgpack.packb(payload, default=_pack_unusual, unicode_errors="replace")
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise BadMessageError(f"payload cannot be encoded: {type(error).__name__}: {shown(str(error))}") from error
    return packed


def _pack_unusual(value: object) -> str:
    """Encode integers beyond 64 bits, for which msgpack has no type, as text."""
    if isinstance(value, int):
        return str(value)
    raise TypeError(f"{type(value).__name__} has no place in a message")


def decode(parts: list[bytes]) -> Message:
    """Turn multipart bytes into a message, or raise `BadMessageError` saying what is wrong."""
    topic, header = _check(parts)
    return Message(topic, header, _unpack_map("payload", parts[2]), tuple(parts[_PARTS_BEFORE_BUFFERS:]))


_DIGITS = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_PAIRS = [first + second for first in _DIGITS for second in _DIGITS]


def new_id() -> str:
    """Make a ULID. Every message needs one; this is several times faster than the `ulid` package."""
    number = (time.time_ns() // 1_000_000) << 80 | random.getrandbits(80)
    return "".join([_PAIRS[number >> shift & 1023] for shift in range(120, -1, -10)])


@dataclass
class Stamper:
    """Makes headers for one source: fresh ids, and sequence numbers per topic."""

    src: str
    epoch: int
    _seqs: OrderedDict[str, int] = field(default_factory=OrderedDict)

    def stamp(self, topic: str, cor: str | None = None, message_id: str | None = None) -> Header:
        """Make the header of the next message on a topic."""
        seq = self._seqs.pop(topic, 0)
        self._seqs[topic] = seq + 1
        if len(self._seqs) > _TOPICS_REMEMBERED:
            # Every client has a reply topic: forget the least recently used.
            self._seqs.popitem(last=False)
        return Header(
            id=message_id or new_id(),
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
