"""Puts the paths of checkpoints into a config, where it has references to them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from mosaic_bus.errors import CommandRefusedError
from mosaic_bus.refusals import RefusalCode, RefusalDetails
from mosaic_services.config_fields import dotted, replace_at

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from mosaic_bus.messages import Input, RunSpec

__all__ = ["with_inputs"]


def with_inputs(spec: RunSpec, inputs: Iterable[Input], runs: Path) -> RunSpec:
    """Return a spec whose references are replaced by absolute paths; refuse it if a file is gone."""
    config = spec.config
    for each in inputs:
        path = str(runs / each.run / str(each.attempt) / each.path)
        if not os.path.exists(path):  # noqa: PTH110 - Path.exists raises for what no file can be called
            step = "" if each.step is None else f" of step {each.step}"
            said = f"{dotted(each.field)}: the checkpoint{step} of run {each.run[-6:]} is gone: {path}"
            details = RefusalDetails(field=dotted(each.field), value=path)
            raise CommandRefusedError(RefusalCode.MISSING_FILE, said, details)
        config = replace_at(config, each.field, path)
    return spec.model_copy(update={"config": config})
