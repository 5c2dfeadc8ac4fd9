"""Makes of a command what is to be played: the plan, the records that there are, and how to cut what is missing."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from mosaic_bus.commands import ExperimentPlan, Hosts
from mosaic_bus.errors import CommandRefusedError
from mosaic_bus.refusals import Problem, RefusalCode, RefusalDetails, explain, find_problems
from mosaic_bus.wording import near_names
from mosaic_services.experiments.errors import ExperimentError, FolderError
from mosaic_services.experiments.folder import ExperimentFolder
from mosaic_services.experiments.lineups import expand_lineups
from mosaic_services.experiments.model import Experiment
from mosaic_services.experiments.plan import changes, extend, make_plan, wanted_at_first
from mosaic_services.experiments.records import Records
from mosaic_services.experiments.shards import cut, default_shards, missing
from mosaic_services.operator.resolution import resolve

if TYPE_CHECKING:
    from mosaic_bus.client import BusClient
    from mosaic_bus.commands import HostList, PlanExperiment, StartExperiment
    from mosaic_services.home import StackHome

__all__ = ["Prepared", "prepare", "read_fields"]

_ANSWER_S = 10.0
HUMAN = "human"


@dataclass
class Prepared:
    """What is to be played."""

    folder: ExperimentFolder
    plan: dict[str, Any]
    records: Records
    wanted: dict[str, int]
    at_once: int
    requires: list[str]
    notes: list[str] = field(default_factory=list)

    def describe(self) -> ExperimentPlan:
        """Say what a start would do."""
        left = missing(self.wanted, self.records.done)
        wanted, open_ = sum(self.wanted.values()), sum(map(len, left))
        shards = [[(each.lineup, each.first, each.last) for each in piece] for piece in cut(left, self.at_once)]
        return ExperimentPlan(
            experiment=self.plan["name"],
            wanted=wanted,
            done=wanted - open_,
            missing=open_,
            shards=shards,
            notes=self.notes,
        )


async def prepare(
    bus: BusClient, home: StackHome, command: StartExperiment | PlanExperiment, *, restart: bool
) -> Prepared:
    """Check a command and find out what is missing; refuse it if it cannot be played."""
    experiment = read_fields(command.experiment)
    _require_no_person(experiment)
    hosts = await bus.request("scheduler", Hosts(), timeout=_ANSWER_S)
    requires = _only_on(command.hosts, hosts)
    resolved, notes = await resolve(bus, experiment.operators, home.runs)
    plan = make_plan(experiment, resolved)
    names = [each["name"] for each in plan["lineups"]]
    folder = ExperimentFolder(home.experiments / experiment.name)
    try:
        old = None if restart else folder.read_plan()
        keep = plan["until"] is not None
        fresh = Records(kept=[] if keep else None)
        records = fresh if old is None else await asyncio.to_thread(folder.read_records, keep=keep)
    except FolderError as error:
        raise CommandRefusedError(RefusalCode.STORE_UNAVAILABLE, str(error)) from error
    if old is not None:
        if problems := changes(old, plan, records.done):
            said = "; ".join(map(str, problems))
            text = f"{experiment.name} has {len(records):,} episodes of another experiment: {said}"
            raise CommandRefusedError(RefusalCode.EXPERIMENT_CHANGED, text, RefusalDetails(problems=problems))
        plan, more = extend(old, plan, records.done)
        notes += more
    wanted = wanted_at_first(plan, names)
    if plan["until"] is not None:
        # Looks that an earlier start has passed are not repeated.
        done = {name: len(records.done.get(name, ())) for name in wanted}
        wanted = {name: max(count, min(done[name], plan["until"]["cap"])) for name, count in wanted.items()}
    open_ = sum(map(len, missing(wanted, records.done)))
    at_once = command.shards or experiment.shards or default_shards(open_, _cpus(hosts, command.hosts))
    return Prepared(folder, plan, records, wanted, at_once, requires, notes)


def read_fields(fields: dict[str, Any]) -> Experiment:
    """Check the fields of an experiment file; refuse them with what is wrong."""
    try:
        experiment = Experiment.model_validate(fields)
        expand_lineups(experiment)
    except ValidationError as error:
        details = RefusalDetails(problems=find_problems(error))
        raise CommandRefusedError(RefusalCode.INVALID_EXPERIMENT, explain(error), details) from error
    except ExperimentError as error:
        problem = Problem(field=".".join(map(str, error.field)), message=error.message)
        said = f"{error.message}; {error.hint}" if error.hint else error.message
        raise CommandRefusedError(RefusalCode.INVALID_EXPERIMENT, said, RefusalDetails(problems=[problem])) from error
    return experiment


def _require_no_person(experiment: Experiment) -> None:
    for name, operator in experiment.operators.items():
        if operator.worker == HUMAN:
            said = f"operators.{name}: nobody can play in an experiment; a person plays with: mosaic play"
            problem = Problem(field=f"operators.{name}.worker", message=said)
            raise CommandRefusedError(RefusalCode.INVALID_EXPERIMENT, said, RefusalDetails(problems=[problem]))


def _only_on(wanted: list[str], hosts: HostList) -> list[str]:
    """Tags that keep shards from all other hosts: of several, from those that are known now."""
    known = [each.host for each in hosts.hosts]
    for name in wanted:
        if name not in known:
            details = RefusalDetails(value=name, near=near_names(name, known), allowed=known)
            raise CommandRefusedError(RefusalCode.UNKNOWN_HOST, f"no host is called {name!r}", details)
    if len(set(wanted)) == 1:
        return [f"host:{wanted[0]}"]
    return [f"!host:{name}" for name in known if name not in wanted] if wanted else []


def _cpus(hosts: HostList, wanted: list[str]) -> float:
    return sum(each.total.cpus for each in hosts.hosts if not wanted or each.host in wanted)
