"""The wire format: messages survive a round trip, and any other bytes are refused as a bad message."""

import math
import time

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ulid import ULID

from mosaic_bus.errors import BadMessageError, MessageTooLargeError, WrongVersionError
from mosaic_bus.wire import envelope
from mosaic_bus.wire.envelope import Header, Message, Stamper, decode, decode_topic, encode

HEADER = {"v": 2, "id": "01K", "src": "a", "epoch": 1, "seq": 0, "wall": 1.5, "mono": 2.5}

json_like = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(), inner, max_size=5),
    max_leaves=20,
)
anything_packed = json_like.map(msgpack.packb)
header_like = st.fixed_dictionaries(
    {key: st.just(value) | json_like for key, value in HEADER.items()}, optional={"cor": json_like, "new": json_like}
)


def packed(**changes):
    return msgpack.packb({**HEADER, **changes})


@settings(max_examples=50, deadline=None)
@given(st.text(), st.dictionaries(st.text(), json_like), st.lists(st.binary()), st.none() | st.text())
def test_a_message_comes_back_as_it_was(source, payload, buffers, cor):
    message = Message("run.x.", Stamper(source, 3).stamp("run.x.", cor), payload, tuple(buffers))
    assert decode(encode(message)) == message


@settings(max_examples=80, deadline=None)
@given(
    st.lists(
        st.binary(max_size=60)
        | anything_packed
        | st.just(b"run.x.")
        | st.just(packed())
        | header_like.map(msgpack.packb),
        max_size=5,
    )
)
def test_any_bytes_are_a_message_or_a_bad_message_and_nothing_else(parts):
    try:
        message = decode(parts)
    except BadMessageError:
        return
    assert isinstance(message, Message)


@settings(max_examples=60, deadline=None)
@given(header_like.map(msgpack.packb), st.binary(max_size=40) | anything_packed)
def test_any_header_and_payload_are_a_message_or_a_bad_message(header, payload):
    try:
        message = decode([b"a.", header, payload])
    except BadMessageError:
        return
    assert type(message.header.seq) is int
    assert message.header.seq >= 0


@pytest.mark.parametrize(
    "changes",
    [
        {"id": 1},
        {"id": None},
        {"src": b"bytes"},
        {"epoch": "1"},
        {"epoch": True},
        {"epoch": -1},
        {"seq": 1.0},
        {"seq": -1},
        {"seq": None},
        {"wall": "now"},
        {"mono": []},
        {"cor": 7},
    ],
)
def test_header_field_of_the_wrong_type_is_named(changes):
    with pytest.raises(BadMessageError, match=next(iter(changes))):
        decode([b"a.", packed(**changes), b"\x80"])


@pytest.mark.parametrize("version", [0, 1, "2", None, True, 2.0, -1, 2**64 - 1])
def test_only_this_version_is_spoken(version):
    with pytest.raises(WrongVersionError):
        decode([b"a.", packed(v=version), b"\x80"])


def test_unknown_header_fields_are_ignored_and_times_may_be_integers():
    message = decode([b"a.", packed(wall=1, mono=0, new={"a": [1]}), b"\x80"])
    assert message.header == Header("01K", "a", 1, 0, 1, 0)


@pytest.mark.parametrize(
    "payload",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"\xc1", id="no such type"),
        pytest.param(b"\x81\xa1a", id="cut short"),
        pytest.param(b"\x80\x80", id="two values"),
        pytest.param(b"\x90", id="list"),
        pytest.param(b"\x81\xa1a\xa2\xff\xfe", id="invalid UTF-8 in a value"),
        pytest.param(b"\x81\xa2\xff\xfe\x01", id="invalid UTF-8 in a key"),
        pytest.param(b"\x81\x01\x01", id="key is a number"),
        pytest.param(b"\x81\x90\x01", id="key is a list"),
        pytest.param(b"\xdf\xff\xff\xff\xff", id="map of four thousand million"),
        pytest.param(b"\x81\xa1a\xdd\xff\xff\xff\xff", id="list of four thousand million"),
        pytest.param(b"\x81\xa1a\xc6\xff\xff\xff\xff", id="bytes of four thousand million"),
        pytest.param(b"\x81\xa1a" + b"\x91" * 100_000 + b"\x01", id="nested lists"),
        pytest.param(b"\x81\xa1a" * 100_000, id="nested maps"),
        pytest.param(b"\x81\xa1a\xd6\xff", id="cut timestamp"),
        pytest.param(b"\x81\xa1a\xc7\x03\xff123", id="timestamp of three bytes"),
        pytest.param(b"\x81\xa1a\xc7\x0c\xff" + b"\xff" * 12, id="timestamp with too many nanoseconds"),
    ],
)
def test_hostile_payload_is_a_bad_message(payload):
    with pytest.raises(BadMessageError, match="payload"):
        decode([b"a.", packed(), payload])


def test_nested_lists_that_claim_a_million_items_each_are_refused_soon():
    level = b"\xdd" + (10**6).to_bytes(4, "big")
    start = time.monotonic()
    with pytest.raises(BadMessageError):
        decode([b"a.", packed(), b"\x81\xa1a" + level * 1000 + bytes(2**21)])
    assert time.monotonic() - start < 10


def test_largest_and_smallest_whole_numbers_come_back():
    payload = {"high": 2**64 - 1, "low": -(2**63)}
    assert decode([b"a.", packed(), msgpack.packb(payload)]).payload == payload


def test_numbers_beyond_64_bits_travel_as_text_and_half_surrogates_as_question_marks():
    message = Message("a.", Stamper("a", 1).stamp("a."), {"big": 10**30, "text": "a\ud800b", "nan": math.nan})
    payload = decode(encode(message)).payload
    assert payload["big"] == str(10**30)
    assert payload["text"] == "a?b"
    assert math.isnan(payload["nan"])


def test_values_that_cannot_be_encoded_are_refused():
    nested: dict = {}
    for _ in range(2000):
        nested = {"a": nested}
    for payload in ({"a": object()}, {"a": {1, 2}}, nested):
        with pytest.raises(BadMessageError, match="cannot be encoded"):
            encode(Message("a.", Stamper("a", 1).stamp("a."), payload))
    with pytest.raises(BadMessageError, match="ASCII"):
        encode(Message("ä.", Stamper("a", 1).stamp("a."), {}))


@pytest.mark.parametrize("parts", [0, 1, 2])
def test_too_few_parts(parts):
    with pytest.raises(BadMessageError, match=f"{parts} parts"):
        decode([b"a.", packed(), b"\x80"][:parts])


def test_total_size_and_header_size_are_limited():
    half = bytes(envelope.MAX_MESSAGE_BYTES // 2)
    with pytest.raises(MessageTooLargeError, match="exceeds"):
        decode([b"a.", packed(), b"\x80", half, half])
    with pytest.raises(BadMessageError, match="header of"):
        decode([b"a.", packed(new="x" * envelope.MAX_HEADER_BYTES), b"\x80"])


@pytest.mark.parametrize("topic", [b"", b".", b"a", b"a b.", b"a\n.", b"\xff.", b"\x00.", b"a" * 256 + b"."])
def test_bad_topic(topic):
    with pytest.raises(BadMessageError, match="topic"):
        decode_topic(topic)


def test_error_message_does_not_repeat_a_huge_value():
    with pytest.raises(BadMessageError) as caught:
        decode([b"a.", packed(id=["x" * 10_000]), b"\x80"])
    assert len(str(caught.value)) < 500


def test_sequence_numbers_count_per_topic_and_can_be_forgotten():
    stamper = Stamper("a", 1)
    assert [stamper.stamp("x.").seq, stamper.stamp("y.").seq, stamper.stamp("x.").seq] == [0, 0, 1]
    stamper.forget("x.")
    assert stamper.stamp("x.").seq == 0


def test_stamper_remembers_a_limited_number_of_topics():
    stamper = Stamper("a", 1)
    for number in range(envelope._TOPICS_REMEMBERED + 100):
        stamper.stamp(f"reply.{number}.")
    assert len(stamper._seqs) == envelope._TOPICS_REMEMBERED


def test_new_ids_are_ulids_of_now():
    ids = {envelope.new_id() for _ in range(1000)}
    assert len(ids) == 1000
    assert abs(ULID.from_str(ids.pop()).timestamp - time.time()) < 60
