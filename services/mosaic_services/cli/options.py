"""Options and settings that every command has: home, bus, verbosity."""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

from mosaic_services.cli.completion import COMPLETIONS
from mosaic_services.cli.errors import NoStackError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from mosaic_bus import Bus
    from mosaic_bus.wire.address import Address
    from mosaic_services.home import StackHome
    from mosaic_services.settings.model import Settings
    from mosaic_services.settings.sources import Loaded

__all__ = ["CommandContext", "current", "with_settings"]


@dataclass
class CommandContext:
    """The common options of a command, and the settings that follow from them."""

    home_path: str | None = None
    bus: str | None = None
    verbose: bool = False
    _loaded: Loaded | None = None

    def take(self, home: str | None, bus: str | None, *, verbose: bool) -> None:
        """Set options; one that is not given keeps its value."""
        self.home_path = home or self.home_path
        self.bus = bus or self.bus
        self.verbose = verbose or self.verbose
        self._loaded = None

    def load(self, flags: Mapping[str, object] | None = None) -> Loaded:
        """Read the settings again, with further flags."""
        from mosaic_services.settings.sources import load  # noqa: PLC0415 - start-up time

        self._loaded = load({**(flags or {}), "home": self.home_path, "bus": self.bus})
        self._loaded.export()
        return self._loaded

    @property
    def settings(self) -> Settings:
        """The settings of this command."""
        return (self._loaded or self.load()).settings

    @property
    def home(self) -> StackHome:
        """The folder of the stack."""
        from mosaic_services.home import StackHome  # noqa: PLC0415 - start-up time

        return StackHome.find(self.settings.home)

    @property
    def address(self) -> Address:
        """The address of the bus."""
        return self.home.address(self.settings.bus)

    def require_stack(self) -> Address:
        """Return the address of the bus; fail at once if its socket does not exist."""
        address = self.address
        socket = Path(address.ingress.removeprefix("ipc://"))
        if address.ingress.startswith("ipc://") and not socket.exists():
            raise NoStackError(f"no stack runs in {self.home.path}", "start one with: mosaic up")
        return address

    def connect(self) -> Bus:
        """Connect to the running stack."""
        from mosaic_bus import Bus  # noqa: PLC0415 - start-up time
        from mosaic_bus.logs import log_to_stderr  # noqa: PLC0415 - start-up time

        log_to_stderr()
        return Bus(self.require_stack(), connect_timeout=self.settings.cli.connect_timeout_s)

    @contextlib.contextmanager
    def reader(self) -> Iterator[Bus]:
        """Connect to the running stack, or else read what a stopped one has stored."""
        from mosaic_bus import Bus  # noqa: PLC0415 - start-up time

        with self.reader_address() as address, Bus(address, self.settings.cli.connect_timeout_s) as bus:
            yield bus

    @contextlib.contextmanager
    def reader_address(self) -> Iterator[Address]:
        """The address of the running stack, or of services that read the stores of a stopped one."""
        from mosaic_bus.logs import log_to_stderr  # noqa: PLC0415 - start-up time

        log_to_stderr()
        try:
            address = self.require_stack()
        except NoStackError:
            from mosaic_services.stack.reading import has_stores, reading  # noqa: PLC0415 - start-up time

            if not has_stores(self.home):
                raise
            print(f"note: no stack runs in {self.home.path}; reading what it has stored", file=sys.stderr)
            with reading(self.home) as address:
                yield address
        else:
            yield address


current = CommandContext()

_HOME = Annotated[
    str | None,
    typer.Option(
        "--home",
        metavar="DIR",
        help="Folder of the stack (default: $MOSAIC_HOME or ~/.mosaic).",
        rich_help_panel="Everywhere",
        show_default=False,
    ),
]
_BUS = Annotated[
    str | None,
    typer.Option(
        "--bus",
        metavar="ADDRESS",
        help="Address of the bus (default: the home's own).",
        rich_help_panel="Everywhere",
        show_default=False,
    ),
]
_VERBOSE = Annotated[
    bool, typer.Option("--verbose", "-v", help="Show the details of an error.", rich_help_panel="Everywhere")
]


def with_settings(function: Callable[..., None]) -> Callable[..., None]:
    """Add the common options to a command, so that they may be given after its name, too."""

    @functools.wraps(function)
    def command(
        *args: Any,
        home: str | None = None,
        bus: str | None = None,
        verbose: bool = False,
        **options: Any,
    ) -> None:
        current.take(home, bus, verbose=verbose)
        function(*args, **options)

    signature = inspect.signature(function, eval_str=True)
    extra = {"home": (_HOME, None), "bus": (_BUS, None), "verbose": (_VERBOSE, False)}
    parameters = [
        *signature.parameters.values(),
        *(
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=kind, default=default)
            for name, (kind, default) in extra.items()
        ),
    ]
    for each in parameters:
        kind, *details = get_args(each.annotation) or (None,)
        if kind is bool:
            details[0].metavar = ""  # a switch takes no value, so its help needs no type
        elif details and details[0].metavar in COMPLETIONS:
            details[0].autocompletion = COMPLETIONS[details[0].metavar]
    command.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {each.name: each.annotation for each in parameters}
    return command
