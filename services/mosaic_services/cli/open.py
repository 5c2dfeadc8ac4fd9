"""`mosaic open`: open the gateway of a stack in a browser."""

from __future__ import annotations

import webbrowser
from typing import Annotated

import typer

from mosaic_services.cli.display.output import print_json
from mosaic_services.cli.errors import CliError
from mosaic_services.cli.options import current
from mosaic_services.gateway_files import Role, login_url

__all__ = ["command"]


def command(
    viewer: Annotated[
        bool, typer.Option("--viewer", help="An address that lets its holder look, not command.")
    ] = False,
    only_print: Annotated[bool, typer.Option("--print", help="Print the address; open nothing.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the address as JSON; open nothing.")] = False,
) -> None:
    """Open the gateway of the stack in a browser, and print its address.

    The address holds a token: whoever has it can do what you can. The browser exchanges it for a cookie.
    """
    url = login_url(current.home, Role.VIEWER if viewer else Role.OWNER)
    if url is None:
        raise CliError("no gateway runs in this home", "start the stack: mosaic up --detach", code=3)
    if as_json:
        print_json({"url": url})
        return
    print(url)
    if not only_print:
        webbrowser.open(url)
