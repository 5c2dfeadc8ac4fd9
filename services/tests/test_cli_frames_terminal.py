"""Pictures in characters: what a terminal shows is the picture, the right way up and in its colours."""

from __future__ import annotations

import re
from types import SimpleNamespace

import numpy as np
import pytest

from mosaic_bus.errors import NoAnswerError
from mosaic_bus.frames import Frame
from mosaic_services.cli.frames.terminal import draw, watch_frames

CELL = re.compile(r"\x1b\[38;2;(\d+);(\d+);(\d+);48;2;(\d+);(\d+);(\d+)m|▀|\x1b\[0m")


def frame(picture):
    return Frame(picture, 0, 1, 0, 0, 0.0, 0.0, 0.0, 0.0, 0.0)


def on_screen(lines):
    """Do what a terminal does: the colour of a half block is its upper pixel, the background its lower one."""
    rows = []
    for line in lines:
        assert CELL.sub("", line) == "", "nothing but blocks and colours"
        upper, lower, colour = [], [], None
        for found in CELL.finditer(line):
            if found[1]:
                colour = [int(part) for part in found.groups()]
            elif found[0] == "▀":
                upper.append(colour[:3])
                lower.append(colour[3:])
        rows += [upper, lower]
    return np.array(rows, np.uint8)


def test_a_picture_that_fits_is_drawn_pixel_by_pixel():
    picture = np.random.default_rng(0).integers(0, 256, (10, 16, 3), dtype=np.uint8)
    assert (on_screen(draw(frame(picture), 16, 5)) == picture).all()


@pytest.mark.parametrize("channels", [(), (1,), (4,)])
def test_grey_and_transparent_pictures_are_drawn_too(channels):
    picture = np.full((4, 4, *channels), 77, np.uint8)
    shown = picture.reshape(4, 4) if channels == (1,) else picture  # as a reader gives it
    assert (on_screen(draw(frame(shown), 4, 2)) == 77).all()


@pytest.mark.parametrize(("columns", "rows"), [(80, 22), (20, 40), (1, 1), (200, 3)])
@pytest.mark.parametrize("shape", [(400, 600, 3), (1, 500, 3), (500, 1, 3)])
def test_a_picture_of_any_shape_keeps_within_the_terminal(columns, rows, shape):
    seen = on_screen(draw(frame(np.full(shape, 9, np.uint8)), columns, rows))
    assert seen.shape[1] <= columns
    assert seen.shape[0] <= 2 * rows
    assert (seen == 9).all()


def test_a_picture_made_smaller_is_the_right_way_up():
    picture = np.zeros((400, 600, 3), np.uint8)
    picture[:200, :300] = (255, 0, 0)
    picture[:200, 300:] = (0, 255, 0)
    picture[200:, :300] = (0, 0, 255)
    seen = on_screen(draw(frame(picture), 60, 20))
    assert seen.shape == (40, 60, 3), "pixels are square: a character is about twice as high as it is wide"
    corners = [seen[0, 0], seen[0, -1], seen[-1, 0], seen[-1, -1]]
    assert [corner.tolist() for corner in corners] == [[255, 0, 0], [0, 255, 0], [0, 0, 255], [0, 0, 0]]


def test_watching_gives_up_when_services_are_silent_too_long():
    feed = SimpleNamespace(is_over=False, silent={"scheduler": 1e6}, next=lambda _wait: pytest.fail("it goes on"))
    with pytest.raises(NoAnswerError):
        watch_frames(feed)
