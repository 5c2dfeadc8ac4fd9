"""Entry point of the `mosaic` command: imports the module of a command, runs it, and reports errors."""

from __future__ import annotations

import importlib
import os
import re
import sys
import traceback
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from mosaic_services.cli.errors import FAILED, INTERRUPTED, NO_STACK, USAGE, CliError
from mosaic_services.cli.options import current, with_settings

if TYPE_CHECKING:
    from mosaic_bus.errors import CommandRefusedError

__all__ = ["main"]


class _Entry(NamedTuple):
    """A command in `mosaic --help`: its help line and its panel."""

    help: str
    panel: str
    # The commands of a group.
    below: tuple[str, ...] = ()


_STACK = "The stack"
_RUNS = "Runs"
_EXPERIMENTS = "Experiments"
_WORKERS = "Workers"

COMMANDS = {
    "up": _Entry("Start the services of a stack and keep them alive.", _STACK),
    "down": _Entry("Stop the stack and its runs.", _STACK),
    "status": _Entry("Show services, hosts and the queue.", _STACK),
    "open": _Entry("Open the gateway of the stack in a browser.", _STACK),
    "stats": _Entry("Show all counters of the services.", _STACK),
    "hosts": _Entry("Show the resources of each host and the runs that use them.", _STACK),
    "drain": _Entry("Place no more runs on a host.", _STACK),
    "config": _Entry("Show all settings and their sources.", _STACK, ("show", "defaults")),
    "queue": _Entry("Show waiting runs; pause and resume.", _STACK, ("show", "pause", "resume")),
    "submit": _Entry("Queue a run, from a file or from the command line.", _RUNS),
    "sweep": _Entry(
        "Submit many runs from one file.",
        _RUNS,
        ("run", "list", "show", "watch", "cancel", "rerun", "resume"),
    ),
    "watch": _Entry("Watch runs live.", _RUNS),
    "runs": _Entry("List runs, newest first.", _RUNS),
    "show": _Entry("Show one run: state, attempts, results.", _RUNS),
    "why": _Entry("Explain why a run waits, runs where it does, stopped or failed.", _RUNS),
    "logs": _Entry("Print a run's log, or follow it.", _RUNS),
    "frames": _Entry("Show or save a run's frames.", _RUNS),
    "series": _Entry("Plot a metric of runs.", _RUNS),
    "compare": _Entry("Compare runs or groups: scores with seeds folded, and curves.", _RUNS),
    "cancel": _Entry("Stop runs, or remove them from the queue.", _RUNS),
    "pause": _Entry("Pause a running training, if its worker can.", _RUNS),
    "unpause": _Entry("Let a paused training go on.", _RUNS),
    "rerun": _Entry("Submit a run again, as it was or with other values.", _RUNS),
    "resume": _Entry("Train on from a checkpoint of a run that has ended.", _RUNS),
    "priority": _Entry("Change the priority of waiting runs.", _RUNS),
    "delete": _Entry("Delete runs that have ended, with their files and events.", _RUNS),
    "prune": _Entry("Delete all runs that ended long ago.", _RUNS),
    "export": _Entry("Write a run's data to Parquet files.", _RUNS),
    "open-tensorboard": _Entry("Show runs in TensorBoard, under their names.", _RUNS),
    "eval": _Entry("Play an experiment: operators under the same seeds, in parallel.", _EXPERIMENTS),
    "experiments": _Entry("List, show, stop and delete experiments.", _EXPERIMENTS, ("list", "show", "stop", "delete")),
    "replay": _Entry("Play an episode of an experiment again, and check that it is the same.", _EXPERIMENTS),
    "play": _Entry("Play by hand, or watch operators side by side, in the terminal.", _EXPERIMENTS),
    "report": _Entry("Write the report of an experiment: pages, tables, figures.", _EXPERIMENTS),
    "workers": _Entry("Manage workers.", _WORKERS, ("list", "install", "describe", "check", "remove")),
}

# Commands that people know from other tools, and ours.
_MEANT = {
    "run": "submit",
    "train": "submit",
    "start": "up   (a stack), mosaic submit   (a run)",
    "stop": "down   (a stack), mosaic cancel RUN   (a run)",
    "kill": "cancel RUN",
    "rm": "delete RUN",
    "dashboard": "open",
    "ui": "open",
    "remove": "delete RUN",
    "clean": "prune --older-than 30d",
    "ls": "runs",
    "list": "runs",
    "ps": "runs",
    "jobs": "runs",
    "log": "logs RUN",
    "tail": "logs RUN --follow",
    "top": "watch",
    "plot": "series RUN METRIC",
    "metrics": "series RUN",
    "nodes": "hosts",
    "evaluate": "eval FILE",
    "benchmark": "eval FILE",
    "settings": "config show",
    "install": "workers install WORKER",
    "describe": "workers describe WORKER",
}

_EPILOG = (
    "Exit codes: 0 success · 1 failure (such as a failed run) · 2 invalid usage or input, or refused · "
    "3 no stack, or a service does not answer · 4 a run was cancelled or lost (--wait) · 130 Ctrl-C"
)


def _build(words: list[str]) -> typer.Typer:
    """Build the application; only the modules of commands that occur in `words` are imported."""
    app = typer.Typer(
        name="mosaic",
        no_args_is_help=True,
        add_completion=True,
        pretty_exceptions_enable=False,
        rich_markup_mode="rich",
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback(epilog=_EPILOG)(_root)
    for name, entry in COMMANDS.items():
        if name not in words:
            below = f" ({', '.join(entry.below)})" if entry.below else ""
            app.command(name, help=f"{entry.help}{below}", rich_help_panel=entry.panel)(_not_loaded)
            continue
        module = importlib.import_module(f"mosaic_services.cli.{name.replace('-', '_')}")
        if hasattr(module, "__path__"):  # a command with helpers is a package
            module = importlib.import_module(f"{module.__name__}.command")
        if hasattr(module, "app"):
            app.add_typer(module.app, name=name, help=entry.help, rich_help_panel=entry.panel)
        else:
            app.command(name, rich_help_panel=entry.panel)(with_settings(module.command))
    return app


def _to_complete() -> list[str]:
    """The words of a command line that a shell wants completed. The variable depends on the shell."""
    if "_MOSAIC_COMPLETE" not in os.environ:
        return []
    return " ".join(os.environ.get(name, "") for name in ("COMP_WORDS", "_TYPER_COMPLETE_ARGS")).split()


def _not_loaded() -> None:
    """Stand in for a command that is not called."""


def _version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version  # noqa: PLC0415 - start-up time

        print(f"mosaic {version('mosaic-services')}")
        raise typer.Exit


def _root(
    home: Annotated[
        str | None,
        typer.Option("--home", metavar="DIR", help="Folder of the stack (default: $MOSAIC_HOME or ~/.mosaic)."),
    ] = None,
    bus: Annotated[
        str | None, typer.Option("--bus", metavar="ADDRESS", help="Address of the bus (default: the home's own).")
    ] = None,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", metavar="", help="Show the details of an error.")] = False,
    version: Annotated[  # noqa: ARG001 - its callback acts
        bool, typer.Option("--version", metavar="", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """MOSAIC runs reinforcement-learning libraries, each in its own process, and compares their agents.

    Start with:  mosaic up   then, in another terminal:  mosaic submit --worker baseline --watch
    """
    current.take(home, bus, verbose=verbose)


def main() -> int:
    """Entry point of the `mosaic` script."""
    _open_closed()
    try:
        return _run()
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # The reader (head, less) is gone.
        _drop_output()
        return FAILED


def _open_closed() -> None:
    """Open /dev/null for a stream that the caller closed (`>&-`), or another file would get its descriptor."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: PTH123, SIM115 - open until the end


def _drop_output() -> None:
    """Discard buffered output, or the interpreter tries to write it again when it exits."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _run() -> int:
    arguments = sys.argv[1:]
    try:
        code = _build([*arguments, *_to_complete()])(args=arguments, standalone_mode=False)
        sys.stdout.flush()
    except CliError as error:
        return _complain(error.message, error.hint, error.code, error.detail)
    except typer.Abort:
        return INTERRUPTED
    except (BrokenPipeError, KeyboardInterrupt):
        raise
    except Exception as error:
        return _explain(error, arguments)
    return code if isinstance(code, int) else 0


def _explain(error: Exception, arguments: list[str]) -> int:
    """Report an error of a library: message, hint and exit code."""
    detail = "".join(traceback.format_exception(error))
    if hasattr(error, "format_message"):  # invalid options and arguments, from typer
        message = error.format_message()
        if not message:  # "no arguments" has printed the help
            return 0
        name = next((each for each in arguments if each in COMMANDS), "")
        meant = next((_MEANT[each] for each in arguments if each in _MEANT), "")
        if meant and not name and message.startswith("No such command"):
            return _complain(_lower(message.partition(".")[0]), f"did you mean: mosaic {meant}", USAGE)
        return _complain(_lower(message), f"see: mosaic {name} --help".replace("  ", " "), USAGE)
    if "mosaic_services.specs" in sys.modules:
        from mosaic_services.specs import SpecError  # noqa: PLC0415 - start-up time

        if isinstance(error, SpecError):
            return _complain(error.message, error.hint, USAGE, error.detail)
    if "mosaic_services.settings.errors" in sys.modules:
        from mosaic_services.settings.errors import SettingsError  # noqa: PLC0415 - start-up time

        if isinstance(error, SettingsError):
            return _complain(error.message, error.hint, USAGE, detail)
    if "mosaic_services.stack.errors" in sys.modules:
        from mosaic_services.stack.errors import StackError  # noqa: PLC0415 - start-up time

        if isinstance(error, StackError):
            return _complain(error.message, error.hint, error.code, detail)
    if "mosaic_bus.errors" in sys.modules:
        from mosaic_bus.errors import (  # noqa: PLC0415 - start-up time
            BusError,
            CommandRefusedError,
            NoAnswerError,
            NotConnectedError,
        )

        if isinstance(error, NotConnectedError):
            return _complain(f"no broker answers at {error.address}", "start a stack with: mosaic up", NO_STACK, detail)
        if isinstance(error, NoAnswerError):
            what = f"{error.service} does not answer"
            return _complain(what, "see: mosaic status, and logs/ in the home", NO_STACK, detail)
        if isinstance(error, CommandRefusedError):
            code = FAILED if error.code == "internal" else USAGE
            return _complain(error.message, _refusal_hint(error), code, detail)
        if isinstance(error, BusError):
            return _complain(str(error), "", USAGE, detail)
    if isinstance(error, OSError):  # such as a missing file or a full disk
        where = f"{os.fsdecode(error.filename)}: " if isinstance(error.filename, str | bytes) else ""
        return _complain(f"{where}{error.strerror or error}", "", USAGE, detail)
    return _complain(f"{type(error).__name__}: {error}", "this is a bug; -v shows the traceback", FAILED, detail)


def _refusal_hint(error: CommandRefusedError) -> str:
    """What a user can do about a refusal."""
    near, allowed = error.details.near, error.details.allowed
    hints = [f"did you mean {', '.join(near)}?"] if near else []
    if allowed and error.code != "unknown_command":  # its message lists them
        hints.append(f"known: {', '.join(allowed)}")
    if not near and error.code in _HINTS and not error.details.candidates:
        hints.append(_HINTS[error.code])
    return "\n".join(hints)


_HINTS = {
    "unknown_run": "see: mosaic runs",
    "unknown_experiment": "see: mosaic experiments",
    "unknown_group": "see: mosaic sweep list",
    "unknown_host": "see: mosaic hosts",
    "impossible_resources": "ask for less, or let it wait for a larger host with wait_for_host=true",
    "unknown_tag": "or let it wait for such a host with wait_for_host=true",
    "invalid_config": "see what the worker takes: mosaic workers describe WORKER",
}


# pydantic's messages, which typer passes on, and ours.
_WORDS = {
    r"Input should be a valid number\b.*": "must be a number",
    r"Input should be a valid integer\b.*": "must be a whole number",
    r"Input should be greater than or equal to": "must be at least",
    r"Input should be less than or equal to": "must be at most",
    r"Input should be": "must be",
}


def _lower(message: str) -> str:
    for theirs, ours in _WORDS.items():
        message = re.sub(theirs, ours, message)
    return message[:1].lower() + message[1:].rstrip(".")


def _complain(message: str, hint: str, code: int, detail: str = "") -> int:
    head, *rest = message.splitlines() or [""]
    red, plain = ("\033[1;31m", "\033[0m") if sys.stderr.isatty() and "NO_COLOR" not in os.environ else ("", "")
    lines = [f"{red}error:{plain} {head}", *(f"       {line}" for line in (*rest, *hint.splitlines()))]
    if current.verbose and detail:
        lines.append(detail.rstrip())
    try:
        sys.stdout.flush()
    except OSError:
        _drop_output()
    print("\n".join(lines), file=sys.stderr)
    return code
