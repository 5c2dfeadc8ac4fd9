"""Pixel operations on frames: RGB conversion, shrinking, tiling."""

import numpy as np
import pytest

from mosaic_worker.frames.pixels import as_rgb, columns_of, shrink, tile


def test_grey_frames_become_rgb_and_alpha_is_dropped():
    grey = np.arange(6, dtype=np.uint8).reshape(2, 3)
    for frame in (grey, grey[..., None]):
        assert (as_rgb(frame) == np.stack([grey] * 3, axis=2)).all()
    coloured = np.random.default_rng(0).integers(0, 256, (2, 3, 4), dtype=np.uint8)
    assert (as_rgb(coloured) == coloured[:, :, :3]).all()
    assert np.shares_memory(as_rgb(coloured), coloured)


def test_a_smaller_frame_has_the_mean_of_the_pixels():
    frame = np.random.default_rng(0).integers(0, 256, (6, 9, 3), dtype=np.uint8)
    expected = frame.reshape(2, 3, 3, 3, 3).astype(int).sum(axis=(1, 3)) // 9
    assert (shrink(frame, 3) == expected).all()


@pytest.mark.parametrize("shape", [(480, 640), (641, 100), (1, 5000), (5000, 1), (333, 777), (64, 64)])
@pytest.mark.parametrize("max_dim", [16, 64, 320])
def test_a_smaller_frame_fits_and_keeps_its_proportions_and_its_colour(shape, max_dim):
    small = shrink(np.full((*shape, 3), 255, np.uint8), max_dim)
    assert small.dtype == np.uint8
    assert max(small.shape) <= max_dim
    assert (small == 255).all()
    factor = -(-max(shape) // max_dim)
    assert small.shape[:2] == tuple(max(1, side // factor) for side in shape)


def test_a_frame_that_fits_is_not_copied():
    frame = np.zeros((10, 16, 3), np.uint8)
    assert shrink(frame, 16) is frame


@pytest.mark.parametrize(("count", "columns"), [(1, 1), (2, 2), (3, 2), (4, 2), (5, 3), (9, 3), (10, 4), (16, 4)])
def test_a_tiling_is_as_square_as_it_gets(count, columns):
    assert columns_of(count) == columns


def test_a_tiling_has_every_frame_in_the_middle_of_its_cell():
    rng = np.random.default_rng(0)
    shapes = [(3, 5), (1, 1), None, (3, 1), (2, 5)]
    frames = [None if shape is None else rng.integers(1, 256, (*shape, 3), dtype=np.uint8) for shape in shapes]
    tiled = tile(frames)
    assert tiled.shape == (6, 15, 3)
    expected = np.zeros_like(tiled)
    expected[0:3, 0:5] = frames[0]
    expected[1:2, 7:8] = frames[1]
    expected[3:6, 2:3] = frames[3]
    expected[3:5, 5:10] = frames[4]
    assert (tiled == expected).all()
