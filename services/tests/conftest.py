"""What tests of the services share."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest
from stack import STRESS

from mosaic_bus.logs import Logger
from mosaic_services.cli.main import main
from mosaic_services.cli.options import current
from mosaic_services.environments import build, read_recipe

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.fixture
def refusal(tmp_path, monkeypatch, capsys) -> Callable[..., str]:
    """What `mosaic` says when it refuses its arguments; called in this process, since that takes so much less time."""
    monkeypatch.setenv("MOSAIC_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.delenv("MOSAIC_BUS", raising=False)
    # What a command sets for the rest of its process is as before when the test is over.
    for holder, name in [(current, each) for each in vars(current)] + [(Logger, "configure")]:
        monkeypatch.setattr(holder, name, getattr(holder, name))

    def refuse(*arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", ["mosaic", *arguments])
        assert main() == 2
        output, errors = capsys.readouterr()
        assert output == ""
        assert errors.startswith("error: ")
        assert "Traceback" not in errors
        return errors

    return refuse


@pytest.fixture(scope="session")
def stress() -> None:
    """The environment of the stress worker, built once and cached outside the checkout."""
    build(read_recipe(STRESS), "default", lambda _step, _percent: None)
