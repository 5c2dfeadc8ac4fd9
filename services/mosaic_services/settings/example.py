"""Writes the commented file of all defaults, `configs/mosaic.toml`."""

from __future__ import annotations

import json

from mosaic_services.settings.model import Settings, leaves

__all__ = ["render"]

_HEAD = """\
# Settings of a MOSAIC stack, each with its default. Copy this file to $MOSAIC_HOME/mosaic.toml (or name yours in
# MOSAIC_CONFIG), remove the # before what you want to change, and restart the stack.
#
# A variable wins over this file: MOSAIC_SCHEDULER__LOST_AFTER_S=60. A flag wins over both. `mosaic config show` prints
# every value and where it came from. Names that end in _s are seconds, in _mb mebibytes.
"""


def render() -> str:
    """The whole file; every value is commented out."""
    defaults = Settings()
    lines = [_HEAD]
    section = ""
    for leaf in leaves(defaults):
        of, _, name = leaf.key.rpartition(".")
        if of != section:
            section = of
            lines += ["", f"[{section}]"]
        lines += [f"# {leaf.description}", f"# {name} = {json.dumps(leaf.value)}"]
    return "\n".join(lines) + "\n"
