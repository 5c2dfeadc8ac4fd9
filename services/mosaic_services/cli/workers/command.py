"""`mosaic workers`: install, describe, check and remove workers. Works without a running stack."""

from __future__ import annotations

import signal
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mosaic_bus.wording import did_you_mean
from mosaic_services.cli.display.output import console, print_json, say, size, styled, table
from mosaic_services.cli.errors import FAILED, INTERRUPTED, CliError, InputError
from mosaic_services.cli.options import current, with_settings
from mosaic_services.environments import (
    BuildError,
    Environment,
    EnvironmentsError,
    InUseError,
    Recipe,
    build,
    check_upstream,
    fetch_upstream,
    find_recipes,
    recipe_for,
    register,
    remember_upstream,
    remove,
    require_own_name,
    status,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["app"]

app = typer.Typer(no_args_is_help=True, context_settings={"help_option_names": ["-h", "--help"]})

_NAME = Annotated[str, typer.Argument(metavar="WORKER", help="Name of a worker (mosaic workers list), or its folder.")]
_PROFILE = Annotated[str, typer.Option("--profile", metavar="P", help="The worker's profile.")]
_JSON = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def _command(name: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    def add(function: Callable[..., None]) -> Callable[..., None]:
        app.command(name)(with_settings(function))
        return function

    return add


@contextmanager
def _explained() -> Iterator[None]:
    """Convert errors of the environments library."""
    try:
        yield
    except BuildError as error:
        detail = "\n".join(error.output)
        end = "\n".join(line for line in error.output[-6:] if line.strip())
        raise CliError(str(error), end, detail=detail, code=FAILED) from error
    except InUseError as error:
        raise InputError(str(error), "cancel its runs, or wait; mosaic down stops all runs of a stack") from error
    except EnvironmentsError as error:
        raise InputError(str(error), "see: mosaic workers list") from error


def _status(recipe: Recipe, profile: str) -> tuple[str, str]:
    """The status of a profile, or why it cannot be installed."""
    try:
        return status(recipe, profile).status, ""
    except EnvironmentsError as error:
        return "impossible", str(error)


@_command("list")
def list_workers(as_json: _JSON = False) -> None:
    """List the known workers and their profiles."""
    found = [
        {
            "worker": recipe.worker,
            "profile": profile.name,
            "status": state,
            "detail": detail,
            "python": profile.python,
            "summary": profile.summary,
            "folder": str(recipe.folder),
            "upstream": str(recipe.upstream or "") if profile.upstream else "",
        }
        for recipe in find_recipes(current.home)
        for profile in recipe.profiles.values()
        for state, detail in [_status(recipe, profile.name)]
    ]
    if as_json:
        print_json({"workers": found})
        return
    if not found:
        say("No workers are known. Install one:  ", ("mosaic workers install ./my_worker", "bold"))
        return
    rows = table("worker", "profile", "status", "python", "what")
    rows.columns[-1].no_wrap = False
    rows.columns[-1].overflow = "fold"  # a long path is wrapped, not cut
    styles = {"installed": "green", "impossible": "red"}
    for each in found:
        style = styles.get(each["status"], "bright_black")
        state = styled((each["status"], style))
        upstream = f"  checkout: {each['upstream']}" if each["upstream"] else ""
        what = each["detail"] or f"{each['summary']}{upstream}"
        rows.add_row(each["worker"], each["profile"], state, each["python"], what)
    console().print(rows)
    if any(each["status"] == "available" for each in found):
        hint = "available profiles are installed on first use, or with: mosaic workers install WORKER"
        say((hint, "bright_black"))


@_command("install")
def install(
    name: _NAME,
    profile: _PROFILE = "default",
    upstream: Annotated[
        str | None,
        typer.Option("--upstream", metavar="PATH", help="Checkout of the upstream library: a folder or a git URL."),
    ] = None,
    no_upstream: Annotated[bool, typer.Option("--no-upstream", help="Forget the checkout.")] = False,
    as_json: _JSON = False,
) -> None:
    """Build the environment of a worker. A folder of your own is registered under its worker's name."""
    home = current.home
    if no_upstream and upstream:
        raise InputError("--upstream and --no-upstream exclude each other", "give one of them")
    with _explained():
        recipe = recipe_for(name, home)
        require_own_name(recipe, home)
        if no_upstream or upstream is not None:
            recipe = replace(recipe, upstream=_upstream(recipe, profile, upstream or ""))
        before = status(recipe, profile).status
        environment = _build(recipe, profile, quiet=as_json)
        register(recipe, home)
        remember_upstream(recipe.worker, home, recipe.upstream)
    facts = {
        "worker": recipe.worker,
        "profile": profile,
        "python": str(environment.python),
        "site": str(environment.site),
        "upstream": None if environment.upstream is None else str(environment.upstream),
    }
    if as_json:
        print_json({**facts, "status": environment.status, "built": before != "installed"})
        return
    was = "is installed already" if before == "installed" else "installed"
    say(("✓ ", "green"), f"{recipe.worker}/{profile} {was}")
    if environment.upstream is not None:
        say(f"  checkout: {environment.upstream}")
    say("  next: ", (f"mosaic workers describe {recipe.worker}{_option(profile)}", "bold"))


def _upstream(recipe: Recipe, profile: str, given: str) -> Path | None:
    """The requested checkout, validated; None for no checkout."""
    if not given:
        return None
    marker = recipe.profile(profile).upstream
    if marker is None:
        takes = [each.name for each in recipe.profiles.values() if each.upstream]
        hint = f"profile {', '.join(takes)} does" if takes else "none of its profiles does"
        raise InputError(f"{recipe.worker}/{profile} takes no checkout: --upstream {given}", hint)
    folder = fetch_upstream(given, recipe.worker, current.home)
    check_upstream(recipe.worker, folder, marker)
    return folder


def _build(recipe: Recipe, profile: str, *, quiet: bool) -> Environment:
    if quiet:
        return build(recipe, profile, lambda *_: None)
    if not console().is_terminal:
        told: set[str] = set()

        def tell(step: str, percent: float) -> None:
            if step not in told:
                told.add(step)
                print(f"{percent:3.0f} %  {step}", flush=True)

        return build(recipe, profile, tell)
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn  # noqa: PLC0415 - start-up time

    columns = (BarColumn(), TaskProgressColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=console(), transient=True) as bars:
        task = bars.add_task("looking", total=100)
        return build(
            recipe,
            profile,
            lambda step, percent: bars.update(task, completed=percent, description=step),
        )


def _option(profile: str) -> str:
    """The option for a profile other than the default."""
    return "" if profile == "default" else f" --profile {profile}"


def _installed(name: str, profile: str) -> Environment:
    with _explained():
        recipe = recipe_for(name, current.home)
        environment = status(recipe, profile)
    if environment.status != "installed":
        hint = f"install it with: mosaic workers install {name}{_option(profile)}"
        raise InputError(f"{recipe.worker}/{profile} is not installed", hint)
    return environment


@_command("describe")
def describe(
    name: _NAME,
    profile: _PROFILE = "default",
    algo: Annotated[str | None, typer.Option("--algo", metavar="A", help="Show one algorithm.")] = None,
    as_json: _JSON = False,
) -> None:
    """Show a worker's capabilities and its configuration."""
    environment = _installed(name, profile)
    description = environment.description or {}
    if algo is not None:
        card = _algorithm(environment, description.get("algorithms") or [], algo)
        if as_json:
            print_json({"worker": environment.recipe.worker, "profile": profile, **card})
            return
        from mosaic_services.cli.workers.description_page import print_algorithm  # noqa: PLC0415 - start-up time

        print_algorithm(card)
        return
    if as_json:
        upstream = None if environment.upstream is None else str(environment.upstream)
        print_json({"worker": environment.recipe.worker, "profile": profile, "upstream": upstream, **description})
        return
    from mosaic_services.cli.workers.description_page import print_description  # noqa: PLC0415 - start-up time

    print_description(environment.recipe.worker, profile, description, environment.upstream)


def _algorithm(environment: Environment, cards: list[dict[str, Any]], name: str) -> dict[str, Any]:
    for card in cards:
        if card.get("name") == name:
            return card
    worker = environment.recipe.worker
    near = did_you_mean(name, [str(card.get("name")) for card in cards])
    hint = near or f"see: mosaic workers describe {worker}"
    raise InputError(f"worker {worker} has no algorithm {name!r}", hint)


@_command("check")
def check(name: _NAME, profile: _PROFILE = "default", as_json: _JSON = False) -> None:
    """Run the compliance suite. Exit code 1 if the worker does not pass."""
    environment = _installed(name, profile)
    command = [str(environment.python), "-m", "mosaic_worker.check", environment.recipe.worker]
    sys.stdout.flush()
    # From an empty folder, so that no file there is imported by mistake.
    command += ["--json"] if as_json else []
    with subprocess.Popen(command, env=environment.environ(), cwd=Path("/")) as checking:
        code = _told_to_stop_with_us(checking)
    if code in {INTERRUPTED, 128 + signal.SIGTERM}:
        raise typer.Exit(code)
    if code != 0:
        if as_json:
            raise typer.Exit(FAILED)
        raise CliError(
            f"{environment.recipe.worker}/{profile} does not pass", f"its folder: {environment.recipe.folder}"
        )


def _told_to_stop_with_us(child: subprocess.Popen[bytes]) -> int:
    """Wait for a child process; pass a stop signal on, so that it can clean up."""
    signal.signal(signal.SIGTERM, lambda *_: child.terminate())
    while True:
        try:
            return child.wait()
        except KeyboardInterrupt:
            child.send_signal(signal.SIGINT)


@_command("remove")
def remove_worker(
    name: Annotated[str, typer.Argument(metavar="WORKER", help="Name of a worker (mosaic workers list).")],
    profile: Annotated[
        str | None,
        typer.Option("--profile", metavar="P", help="Only this profile.", show_default="all of them"),
    ] = None,
    as_json: _JSON = False,
) -> None:
    """Remove the environments of a worker, including older versions. A folder of your own is forgotten, not deleted."""
    with _explained():
        done = remove(name, profile, current.home)
    if as_json:
        folders = [str(each) for each in done.folders]
        facts = {"profiles": done.profiles, "folders": folders, "freed_bytes": done.freed, "forgotten": done.forgotten}
        print_json({"worker": name, **facts})
        return
    if not done.profiles:
        say(f"{name} is not installed")
    for each in done.profiles:
        say(("✓ ", "green"), f"{name}/{each} removed")
    if done.profiles:
        say(f"  {size(done.freed / 2**20)} freed")
    if done.forgotten:
        say(f"  {name} is no longer registered; its folder is unchanged")
