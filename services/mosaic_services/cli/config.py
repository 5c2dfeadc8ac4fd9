"""`mosaic config`: all settings and their sources."""

from __future__ import annotations

from typing import Annotated

import typer

from mosaic_services.cli.display.output import print_json, say
from mosaic_services.cli.options import current, with_settings
from mosaic_services.settings.example import render
from mosaic_services.settings.model import leaves

__all__ = ["app"]

app = typer.Typer(no_args_is_help=True, context_settings={"help_option_names": ["-h", "--help"]})


def show(as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """Show every setting with its value and source: default, file, variable or flag."""
    loaded = current.load()
    settings = leaves(loaded.settings)
    if as_json:
        found = {leaf.key: {"value": leaf.value, "from": loaded.origins[leaf.key]} for leaf in settings}
        print_json({"file": str(loaded.file), "exists": loaded.file.exists(), "settings": found})
        return
    say(("file ", "bright_black"), str(loaded.file), "" if loaded.file.exists() else ("  (none yet)", "bright_black"))
    width = max(len(leaf.key) for leaf in settings)
    for leaf in settings:  # lines, not a table: a path must not be cut
        origin = loaded.origins[leaf.key]
        shown = f"{leaf.value:g}" if isinstance(leaf.value, float) else str(leaf.value) or "–"
        style = "bright_black" if origin == "default" else "bold"
        say(f"{leaf.key:{width}}  {shown:<10}  ", ("file" if origin.startswith("file ") else origin, style))


def defaults() -> None:
    """Print a commented settings file with all defaults, a template for $MOSAIC_HOME/mosaic.toml."""
    print(render(), end="")


app.command("show")(with_settings(show))
app.command("defaults")(with_settings(defaults))
