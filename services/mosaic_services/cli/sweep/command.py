"""`mosaic sweep`: many runs from one file, as a group."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup
from ulid import ULID

from mosaic_bus.commands import CancelGroup, Groups, GroupState, Rerun, Show
from mosaic_bus.errors import CommandRefusedError
from mosaic_bus.wording import near_names
from mosaic_services.cli.display.output import ago, console, duration, print_json, say, short, table
from mosaic_services.cli.errors import InputError
from mosaic_services.cli.options import current, with_settings

if TYPE_CHECKING:
    from collections.abc import Callable

    from mosaic_bus import Bus
    from mosaic_bus.messages import RunSpec, RunState
    from mosaic_services.cli.sweep.driver import Study
    from mosaic_services.cli.sweep.progress import Row
    from mosaic_services.sweeps.plan import Plan, Planned

__all__ = ["app"]

_SHOWN = 20
# Number of further runs, evenly spread, that are compared to find out what varies.
_COMPARED = 30


class _Commands(TyperGroup):
    """Lets `mosaic sweep FILE` mean `mosaic sweep run FILE`, unless FILE looks like a mistyped command."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        word = next((each for each in args if not each.startswith("-")), None)
        there = word and os.path.exists(word)  # noqa: PTH110 - Path.exists raises for what no file can be called
        slip = word and not there and near_names(word, self.commands, 1)
        if word is not None and word not in self.commands and not slip:
            args = ["run", *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    cls=_Commands,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    subcommand_metavar="FILE|COMMAND [ARGS]...",
)

_GROUP = Annotated[str, typer.Argument(metavar="GROUP", help="Name of a sweep's group, or any unique part of it.")]
_JSON = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def _command(name: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    def add(function: Callable[..., None]) -> Callable[..., None]:
        app.command(name)(with_settings(function))
        return function

    return add


@_command("run")
def run(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE [KEY=VALUE]...",
            help="A sweep file, and values that override its own; `sweep.seeds=3` changes the sweep itself.",
            show_default=False,
        ),
    ],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List the runs without submitting them.")] = False,
    wait: Annotated[
        bool, typer.Option("--wait", help="Wait until they end; the exit code tells their outcome.")
    ] = False,
    watch: Annotated[
        bool, typer.Option("--watch", help="Open `mosaic watch`; without a terminal, same as --wait.")
    ] = False,
    as_json: _JSON = False,
) -> None:
    """Submit a sweep. `mosaic sweep FILE` is short for it.

    mosaic sweep configs/sweeps/agents.yaml sweep.seeds=5 --wait
    """
    from mosaic_services.specs import read_file, split_words  # noqa: PLC0415 - start-up time
    from mosaic_services.sweeps.plan import new_group, read_plan  # noqa: PLC0415 - start-up time

    files, overrides = split_words(words)
    if len(files) != 1:
        raise InputError(f"{len(files)} files are given", "a sweep is one file: mosaic sweep FILE [KEY=VALUE]…")
    plan = read_plan(read_file(files[0], "sweep"), overrides, files[0])
    group = new_group(plan.name, short(str(ULID())))
    if plan.driver is not None:
        _run_driver(plan, group, dry_run=dry_run, watch=watch, as_json=as_json)
        return
    planned = plan.expand("" if dry_run else group)
    if dry_run:
        _print_plan(plan, planned, as_json=as_json)
        return
    with current.connect() as bus:
        warnings = _submit(bus, group, planned)
        if not as_json:
            say("queued ", (f"{len(planned):,} runs", "bold"), f" as {group}")
            for each in warnings:
                say(("  warning: ", "yellow"), each)
            if not (wait or watch):
                say((f"see: mosaic sweep show {group}   mosaic sweep watch {group}", "bright_black"))
        _after(bus, group, wait=wait, watch=watch, as_json=as_json)


def _after(bus: Bus, group: str, *, wait: bool, watch: bool, as_json: bool) -> None:
    """Watch or wait for the runs of a group that was submitted."""
    if watch and sys.stdout.isatty():
        from mosaic_services.cli.watch.command import watch_runs  # noqa: PLC0415 - start-up time

        watch_runs(bus, None, group=group, until_done=False)
        return
    code = 0
    if wait or watch:
        from mosaic_services.cli.wait.group import wait_for_group  # noqa: PLC0415 - start-up time
        from mosaic_services.cli.wait.interruption import runs_go_on  # noqa: PLC0415 - start-up time

        with runs_go_on(f"sweep cancel {group}", f"sweep watch {group}"):
            code = wait_for_group(bus, group, quiet=as_json)
        if not as_json:
            _print_group(bus, group, _SHOWN)
    if as_json:
        print_json(_document(bus, group, limit=None))
    raise typer.Exit(code)


def _run_driver(plan: Plan, group: str, *, dry_run: bool, watch: bool, as_json: bool) -> None:
    from mosaic_services.cli.sweep.driver import drive, keep_study  # noqa: PLC0415 - start-up time

    if dry_run:
        space = {path: vars(each) for path, each in plan.random.items()}
        if as_json:
            print_json({"trials": plan.count, "space": space})
            return
        say(f"{plan.count:,} trials, chosen one at a time from:")
        for path, each in space.items():
            say(f"  {path}  ", " ".join(str(value) for value in each.values()))
        return
    if watch:
        raise InputError("--watch and a driver do not go together", "use another terminal: mosaic sweep watch")
    current.require_stack()
    study = keep_study(group, {**plan.base, "sweep": plan.sweep}, Path(plan.where))
    if not as_json:
        say("sweep ", (group, "bold"), f": {plan.count:,} trials")
        sys.stdout.flush()
    drive(study, as_json=as_json)


def _print_plan(plan: Plan, planned: list[Planned], *, as_json: bool) -> None:
    if as_json:
        specs = [each.spec.model_dump(mode="json", exclude={"group", "replaces"}) for each in planned]
        print_json({"count": len(planned), "runs": specs})
        return
    made_of = " × ".join(f"{name} {count}" for name, count in plan.factors)
    say((f"{len(planned):,} runs", "bold"), f"  ({made_of})")
    for each in planned[:_SHOWN]:
        say(f"  {each.spec.name}")
    if len(planned) > _SHOWN:
        say((f"  … and {len(planned) - _SHOWN:,} more (--json names all)", "bright_black"))


def _submit(bus: Bus, group: str, planned: list[Planned]) -> list[str]:
    """Submit all runs or none; return the warnings, each once."""
    from mosaic_services.cli.sweep.submission import submit_all  # noqa: PLC0415 - start-up time

    return submit_all(bus, group, [each.spec for each in planned])


@_command("list")
def list_sweeps(
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=10_000, help="Maximum number of sweeps.")] = 20,
    as_json: _JSON = False,
) -> None:
    """List sweeps, newest first."""
    from mosaic_services.cli.sweep.progress import progress  # noqa: PLC0415 - start-up time

    with current.reader() as bus:
        groups = bus.request("scheduler", Groups(limit=limit)).groups
    if as_json:
        print_json({"groups": [each.model_dump(mode="json") for each in groups]})
        return
    if not groups:
        say("No sweeps yet. Start one:  ", ("mosaic sweep configs/sweeps/agents.yaml", "bold"))
        return
    rows = table("group", "runs", "progress", "submitted", "took", right=("runs", "took"))
    for each in groups:
        took = duration(each.ended_at - each.submitted_at) if each.ended_at else ""
        line = progress(each.counts, each.total, 10)
        rows.add_row(each.group, f"{each.total:,}", line, ago(each.submitted_at), took)
    console().print(rows)


@_command("show")
def show(
    group: _GROUP,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=100_000, help="Maximum number of runs.")] = _SHOWN,
    as_json: _JSON = False,
) -> None:
    """Show the progress of a sweep and its runs, best first."""
    with current.reader() as bus:
        if as_json:
            print_json(_document(bus, group, limit))
        else:
            _print_group(bus, group, limit)


def _print_group(bus: Bus, group: str, limit: int) -> None:
    from mosaic_services.cli.sweep.progress import progress, run_table, why_not  # noqa: PLC0415 - start-up time

    state, study = _find(bus, group)
    rows, metric, total, under_way = _rows(bus, state, study, limit)
    say((state.group, "bold"), "  ", progress(state.counts, total, under_way=under_way))
    console().print(run_table(rows, metric))
    for line in why_not(rows):
        say(line)
    if state.total > len(rows):
        say((f"{len(rows)} of {state.total:,}; more with --limit", "bright_black"))


def _document(bus: Bus, group: str, limit: int | None) -> dict[str, Any]:
    state, study = _find(bus, group)
    rows, *_ = _rows(bus, state, study, limit or state.total)
    runs = [
        {
            **row.run.model_dump(mode="json"),
            "parameters": row.values,
            "summary": row.summary.model_dump(mode="json") if row.summary else None,
        }
        for row in rows
    ]
    return {**state.model_dump(mode="json"), "runs": runs}


def _find(bus: Bus, group: str) -> tuple[GroupState, Study | None]:
    """Find a group, and the folder of its driver if it has one."""
    from mosaic_services.cli.sweep.driver import find_study  # noqa: PLC0415 - start-up time

    (state,) = bus.request("scheduler", Groups(group=group)).groups
    return state, find_study(state.group)


def _rows(bus: Bus, state: GroupState, study: Study | None, limit: int) -> tuple[list[Row], str, int, float]:
    """The best runs of a group, their metric, the total number of runs, and the work done by running ones."""
    from mosaic_services.cli.sweep.progress import Row, best_first  # noqa: PLC0415 - start-up time
    from mosaic_services.cli.wait.group import runs_of, summaries_of  # noqa: PLC0415 - start-up time
    from mosaic_services.comparison.folding import parameters  # noqa: PLC0415 - start-up time
    from mosaic_services.progress import fraction  # noqa: PLC0415 - start-up time

    runs = _without_replaced(runs_of(bus, state.group))
    summaries = summaries_of(bus, [each.run for each in runs if each.attempt])
    driver = study.plan().driver if study else None
    metric = driver.metric if driver else "episode_return"
    lowest = driver is not None and driver.direction == "minimize"
    ranked = best_first(runs, summaries, metric, lowest=lowest)[:limit]
    values = parameters(_specs(bus, ranked, runs))
    rows = [Row(each, summaries.get(each.run), values[each.run]) for each in ranked]
    running = [summaries[each.run] for each in runs if not each.state.final and each.run in summaries]
    under_way = sum(fraction(each) or 0.0 for each in running)
    return rows, metric, max(state.total, driver.trials if driver else 0), under_way


def _without_replaced(runs: list[RunState]) -> list[RunState]:
    """Leave out runs that were repeated."""
    replaced = {each.replaces for each in runs}
    return [each for each in runs if each.run not in replaced]


def _specs(bus: Bus, shown: list[RunState], runs: list[RunState]) -> dict[str, RunSpec]:
    step = max(1, len(runs) // _COMPARED)
    wanted = {each.run for each in (*shown, *runs[::step], *runs[-1:])}
    return {each: bus.request("scheduler", Show(run=each)).spec for each in sorted(wanted)}


@_command("watch")
def watch_sweep(
    group: _GROUP,
    until_done: Annotated[bool, typer.Option("--until-done", help="Exit when none of its runs is active.")] = False,
) -> None:
    """Watch the runs of a sweep live."""
    from mosaic_services.cli.watch.command import watch_runs  # noqa: PLC0415 - start-up time

    with current.connect() as bus:
        (state,) = bus.request("scheduler", Groups(group=group)).groups
        watch_runs(bus, None, group=state.group, until_done=until_done)


@_command("cancel")
def cancel(
    group: _GROUP,
    reason: Annotated[str, typer.Option("--reason", help="Stored with the runs.")] = "cancelled by user",
    as_json: _JSON = False,
) -> None:
    """Stop the running runs of a sweep, remove waiting ones from the queue, and start no more trials."""
    from mosaic_services.cli.sweep.driver import find_study  # noqa: PLC0415 - start-up time

    with current.connect() as bus:
        try:
            name = bus.request("scheduler", Groups(group=group)).groups[0].group
        except CommandRefusedError:
            # A driver may not have submitted its first trial yet.
            if (study := find_study(group)) is None:
                raise
            name = study.group
        if (study := find_study(name)) is not None:
            study.cancel()
        try:
            note = bus.request("scheduler", CancelGroup(group=name, reason=reason), timeout=60.0).note
        except CommandRefusedError as error:
            # A driver may be between two trials.
            if study is None or error.code not in {"unknown_group", "already_final"}:
                raise
            note = f"{name} starts no more trials"
    if as_json:
        print_json({"group": name, "note": note})
    else:
        say(note)


@_command("rerun")
def rerun(
    group: _GROUP,
    wait: Annotated[
        bool, typer.Option("--wait", help="Wait until they end; the exit code tells their outcome.")
    ] = False,
    as_json: _JSON = False,
) -> None:
    """Submit the failed and lost runs of a sweep again."""
    with current.connect() as bus:
        (state,) = bus.request("scheduler", Groups(group=group)).groups
        again = bus.request("scheduler", Rerun(group=state.group), timeout=60.0).runs
        if not as_json:
            say("queued ", (f"{len(again):,} runs", "bold"), f" of {state.group} again")
        elif not wait:
            print_json({"group": state.group, "runs": [each.model_dump(mode="json") for each in again]})
        if wait:
            _after(bus, state.group, wait=True, watch=False, as_json=as_json)


@_command("resume")
def resume(group: _GROUP, as_json: _JSON = False) -> None:
    """Continue a sweep whose driver was stopped. Running trials are followed again; none is run twice."""
    from mosaic_services.cli.sweep.driver import drive, find_study  # noqa: PLC0415 - start-up time

    study = find_study(group)
    if study is None:
        raise InputError(
            f"no sweep with a driver is called {group!r} in {current.home.sweeps}",
            "sweeps without a driver continue by themselves: mosaic sweep list",
        )
    study.go_on()
    drive(study, as_json=as_json)
