"""`mosaic hosts`: resources of each host, and the runs that use them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from mosaic_bus.commands import HostList, Hosts, Runs
from mosaic_bus.messages import AttemptPhase, RunStateName
from mosaic_services.cli.display.output import duration, plain, print_json, say, short, size
from mosaic_services.cli.options import current

if TYPE_CHECKING:
    from mosaic_bus.messages import AttemptReport, HostState

__all__ = ["command"]

_DIM = "bright_black"
_SILENT_AFTER_S = 5.0
_ACTIVE = [str(state) for state in RunStateName if not state.final]


def command(as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """Show the hosts: CPUs, memory, GPUs and the runs that use them, tags, and whether new runs are placed there."""
    with current.connect() as bus:
        answer = bus.request("scheduler", Hosts())
        active = bus.request("scheduler", Runs(states=_ACTIVE, limit=10_000)).runs
    names = {each.run: each.name for each in active}
    if as_json:
        print_json(_document(answer))
        return
    if answer.paused is not None:
        say(("the queue is paused", "bold yellow"), f": {answer.paused}  (mosaic queue resume)\n")
    if not answer.hosts:
        say(("no host has reported yet", "yellow"))
    for index, host in enumerate(answer.hosts):
        if index:
            say()
        _print_host(host, answer, names)


def _document(answer: HostList) -> dict[str, Any]:
    hosts = [
        {
            **each.model_dump(mode="json"),
            "silent_s": answer.silent_s.get(each.host),
            "drained": answer.drained.get(each.host),
        }
        for each in answer.hosts
    ]
    return {"hosts": hosts, "paused": answer.paused}


def _print_host(host: HostState, answer: HostList, names: dict[str, str]) -> None:
    silent = answer.silent_s.get(host.host, 0.0)
    drained = answer.drained.get(host.host)
    remarks = [
        *([(f"   silent for {duration(silent)}", "bold red")] if silent > _SILENT_AFTER_S else []),
        *([(f"   drained: {drained}  (mosaic drain {host.host} --undo)", "yellow")] if drained else []),
        *([("   is shutting down", "yellow")] if host.draining else []),
    ]
    say((host.host, "bold"), *remarks)
    active = [each for each in host.attempts if each.phase is not AttemptPhase.ENDED]
    cpus = sum(each.resources.cpus for each in active)
    memory = sum(each.resources.memory_mb for each in active)
    _line("CPUs", f"{cpus:g} of {host.total.cpus:g} allocated   {host.cpu_percent:.0f} % busy")
    _line("memory", f"{size(memory)} of {size(host.total.memory_mb)} allocated   {size(host.memory_used_mb)} used")
    for gpu in host.gpus:
        holders = [f"{_who(each, names)} has {_share(each.gpus[gpu.id])}" for each in active if gpu.id in each.gpus]
        kind = " ".join([*([gpu.name] if gpu.name else []), *([size(gpu.memory_mb)] if gpu.memory_mb else [])])
        _line(f"GPU {gpu.id}", "   ".join([*([kind] if kind else []), ", ".join(holders) or "free"]))
    if host.tags:
        _line("tags", " ".join(host.tags))
    _line("runs", ", ".join(f"{_who(each, names)} {each.phase}" for each in active) or "none")


def _who(attempt: AttemptReport, names: dict[str, str]) -> str:
    return f"{plain(names.get(attempt.run, 'run'))} ({short(attempt.run)})"


def _share(share: float) -> str:
    return "all of it" if share >= 1 else f"{share:g}"


def _line(label: str, text: str) -> None:
    say((f"  {label:<8} ", _DIM), text)
