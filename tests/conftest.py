"""Fixtures shared by the tests across parts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from stack import STRESS, Stack

from mosaic_services.environments import build, read_recipe, recipe_for
from mosaic_services.home import StackHome

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session")
def workers(tmp_path_factory: pytest.TempPathFactory) -> None:
    """The environments of the baseline and the stress worker, built once and cached outside the checkout."""
    home = StackHome.find(tmp_path_factory.mktemp("build-home"))
    build(recipe_for("baseline", home), "default", lambda _step, _percent: None)
    build(read_recipe(STRESS), "default", lambda _step, _percent: None)


@pytest.fixture(scope="module")
def shared_stack(tmp_path_factory, workers) -> Iterator[Stack]:
    """A running stack for all tests of a module that leave it as it was."""
    with Stack(tmp_path_factory.mktemp("shared") / "home") as running:
        yield running
    assert running.leftovers() == []


@pytest.fixture
def stack(tmp_path, workers) -> Iterator[Stack]:
    """A running stack; when the test is over, nothing of it may be left."""
    with Stack(tmp_path / "home") as running:
        yield running
    assert running.leftovers() == []


@pytest.fixture(scope="module")
def arena(tmp_path_factory) -> Iterator[Stack]:
    """A stack whose host has the arena."""
    home = StackHome.find(tmp_path_factory.mktemp("build-home"))
    for worker in ("arena", "baseline"):
        build(recipe_for(worker, home), "default", lambda _step, _percent: None)
    with Stack(tmp_path_factory.mktemp("arena") / "home", cpus=4, also=("gateway",)) as running:
        yield running
    assert running.leftovers() == []
