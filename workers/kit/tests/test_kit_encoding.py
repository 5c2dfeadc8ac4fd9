"""The encoder turns any value into strictly valid JSON."""

import json
import math
from datetime import UTC, datetime
from enum import Enum
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mosaic_worker.encoding import encode, to_plain

anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


def refuse(constant):
    raise AssertionError(f"{constant} is not JSON")


def decode(line):
    return json.loads(line.decode(), parse_constant=refuse)


def expected(value):
    """Return a value as it is after a JSON round trip: NaN and infinities become strings, lone surrogates `?`."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, list):
        return [expected(item) for item in value]
    if isinstance(value, dict):
        return {expected(key): expected(item) for key, item in value.items()}
    return value


@given(anything)
def test_plain_values_survive_with_named_infinities(value):
    assert decode(encode(value)) == expected(value)


@given(anything)
def test_a_line_never_holds_a_newline(value):
    assert b"\n" not in encode(value)


@given(anything)
def test_to_plain_agrees_with_the_fast_path(value):
    assert decode(encode(to_plain(value))) == decode(encode(value))


@given(st.lists(st.floats(width=32), max_size=8), st.sampled_from(["float32", "float64"]))
def test_nested_numpy_floats_survive(numbers, dtype):
    array = np.array(numbers, dtype=dtype)
    assert decode(encode({"info": {"array": array, "pair": (array, array.tolist())}})) == {
        "info": {"array": expected(numbers), "pair": [expected(numbers), expected(numbers)]}
    }


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (np.int64(3), 3),
        (np.uint8(255), 255),
        (np.float32(0.5), 0.5),
        (np.float32("nan"), "NaN"),
        (np.float64("-inf"), "-Infinity"),
        (np.bool_(True), True),
        (np.array(7), 7),
        (np.zeros((2, 2), np.int8), [[0, 0], [0, 0]]),
        (np.array([None, {"a": np.float64("inf")}], dtype=object), [None, {"a": "Infinity"}]),
        (np.str_("text"), "text"),
        (Path("a/b"), "a/b"),
        (b"bytes \xff", "bytes \\xff"),
        ({3: 1, None: 2, True: 3}, {"3": 1, "None": 2, "true": 3}),
        ({np.int64(3): 1, (1, 2): 2}, {"3": 1, "1,2": 2}),
        (datetime(2026, 1, 2, tzinfo=UTC), "2026-01-02T00:00:00Z"),
        (Enum("Colour", {"RED": "red"}).RED, "red"),
        (float("nan"), "NaN"),
        (10**400, 10**400),
        ("\ud800", "?"),
        ("Zoë 🎲 \u2028 \x00", "Zoë 🎲 \u2028 \x00"),
    ],
    ids=repr,
)
def test_values_of_libraries_become_plain(value, plain):
    assert decode(encode(value)) == plain


class Tensor:
    """A fake torch tensor with the methods the encoder uses; the test environment has no torch."""

    def __init__(self, values):
        self.values = values

    def numel(self):
        return 2

    def tolist(self):
        return self.values


class Unruly:
    def __str__(self):
        raise RuntimeError("I have no name")


def test_tensors_are_recognised_by_what_they_can_do():
    assert decode(encode({"loss": Tensor(0.5), "nan": Tensor([float("nan"), 1.0])})) == {
        "loss": 0.5,
        "nan": ["NaN", 1.0],
    }


def test_an_object_that_cannot_be_shown_does_not_stop_the_run():
    assert decode(encode({"info": Unruly()})) == {"info": "<Unruly: I have no name>"}


def test_a_loop_is_cut():
    loop = {"name": "loop"}
    loop["self"] = loop
    wide = []
    wide.extend([wide, wide])
    assert decode(encode(loop))["self"] == "<dict: nested too deeply>"
    assert decode(encode(wide)) == ["<list: nested too deeply>"] * 2


def test_an_integer_too_long_for_str_can_be_a_key():
    assert decode(encode({10**5000: 1})) == {"1" + "0" * 5000: 1}


def test_a_set_becomes_a_list():
    assert sorted(decode(encode({"b", "a"}))) == ["a", "b"]
