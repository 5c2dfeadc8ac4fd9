"""Spaces and their values survive a round trip through JSON."""

import json

import numpy as np
import pytest

from mosaic_worker.encoding import encode
from mosaic_worker.errors import SpaceError
from mosaic_worker.spaces import space_from_json, space_to_json, value_from_json

spaces = pytest.importorskip("gymnasium.spaces", reason="gymnasium is in the workers' environments")

BOX = spaces.Box(np.array([-1.0, -np.inf]), np.array([1.0, np.inf]), dtype=np.float64)
IMAGE = spaces.Box(0, 255, (210, 160, 3), np.uint8)
ALL = [
    spaces.Discrete(3),
    spaces.Discrete(4, start=-2),
    BOX,
    IMAGE,
    spaces.MultiDiscrete([2, 3]),
    spaces.MultiDiscrete([[2, 3], [4, 5]]),
    spaces.MultiBinary(4),
    spaces.MultiBinary([2, 3]),
    spaces.Text(5, charset="abc"),
    spaces.Dict({"image": IMAGE, "parts": spaces.Tuple([spaces.Discrete(2), BOX])}),
]


@pytest.mark.parametrize("space", ALL, ids=str)
def test_a_space_survives_the_trip(space):
    description = json.loads(encode(space_to_json(space)))
    assert space_from_json(description) == space


@pytest.mark.parametrize("space", ALL, ids=str)
def test_a_value_survives_the_trip(space):
    space.seed(3)
    value = space.sample()
    back = value_from_json(space, json.loads(encode(value)))
    assert space.contains(back)


def test_an_image_space_is_described_in_a_few_bytes():
    assert len(encode(space_to_json(IMAGE))) < 120


def test_a_space_of_unknown_kind_is_described_but_cannot_be_built():
    description = space_to_json(spaces.Sequence(spaces.Discrete(2)))
    assert description["type"] == "Sequence"
    with pytest.raises(SpaceError, match="type is one of Discrete, Box"):
        space_from_json(description)


@pytest.mark.parametrize("description", [None, [], {}, {"type": "Discrete"}, {"type": "Box", "low": 0, "high": 1}])
def test_nonsense_is_refused(description):
    with pytest.raises(SpaceError, match="is not a space"):
        space_from_json(description)


@pytest.mark.parametrize(
    ("space", "value"), [(spaces.Discrete(2), "x"), (BOX, [1]), (spaces.Tuple([BOX]), []), (spaces.Dict(a=BOX), {})]
)
def test_a_value_that_does_not_fit_is_refused(space, value):
    with pytest.raises(SpaceError, match="is not a value of"):
        value_from_json(space, value)
