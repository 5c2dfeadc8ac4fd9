"""The plan of an experiment: its file, resolved and written out. What stands in experiment.json. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mosaic_bus.refusals import Problem
from mosaic_services.experiments.lineups import expand_lineups
from mosaic_services.statistics.looks import FIRST_LOOK

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from mosaic_services.experiments.model import Experiment

__all__ = ["LAYOUT", "changes", "edited", "env_seed", "extend", "make_plan", "wanted_at_first"]

LAYOUT = 1
# What is known only once it was played; see provenance.
_FOUND = ("provenance", "videos_recorded", "shards", "elapsed_s", "hosts")
# What an operator is; the rest of its entry is known only once its checkpoint is found.
_IDENTITY = ("worker", "profile", "source", "config")


def make_plan(experiment: Experiment, resolved: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Write out an experiment; `resolved` has the checkpoint and the origin of operators that name a run."""
    document = experiment.model_dump(mode="json", exclude={"lineups", "groups", "swap_sides", "shards"})
    for name, operator in document["operators"].items():
        unknown = {"training_run": None, "algorithm": None, "training_seed": None}
        operator.update({"source": operator["checkpoint"], **unknown, **resolved.get(name, {})})
    return {
        "layout": LAYOUT,
        **document,
        "step_s": experiment.pacing.step_s,
        "group": f"eval-{experiment.name}",
        "lineups": [each.model_dump() for each in expand_lineups(experiment)],
    }


def changes(old: Mapping[str, Any], new: Mapping[str, Any], done: Mapping[str, Collection[int]]) -> list[Problem]:
    """List what makes the records of an earlier plan worthless for a new one; additions do not."""
    lineups = {each["name"]: each["agents"] for each in _played(old, done)}
    if not lineups:
        return []
    found = [
        Problem(field=name, message=f"was {_said(old[name])}, now {_said(new[name])}")
        for name in ("environment", "failures")
        if old[name] != new[name]
    ]
    patience = [plan["deadlines"]["action_s"] for plan in (old, new)]
    if patience[0] != patience[1]:
        found.append(Problem(field="deadlines.action_s", message=f"was {patience[0]:g}, now {patience[1]:g}"))
    played = max((max(numbers) for numbers in done.values() if numbers), default=-1) + 1
    if (old["seeds"]["root"], _seeds(old, played)) != (new["seeds"]["root"], _seeds(new, played)):
        found.append(Problem(field="seeds", message=f"the seeds of the first {played} episodes are others"))
    if old["until"] not in (None, new["until"]) and played >= min(FIRST_LOOK, old["until"]["cap"]):
        said = f"was {_said(old['until'])}, now {_said(new['until'])}: a rule that has looked holds to the end"
        found.append(Problem(field="until", message=said))
    for name in sorted(_operators(lineups.values()) & new["operators"].keys()):
        was, now = ({key: plan["operators"][name][key] for key in _IDENTITY} for plan in (old, new))
        if was != now:
            found.append(Problem(field=f"operators.{name}", message=f"was {_said(was)}, now {_said(now)}"))
    for each in new["lineups"]:
        if lineups.get(each["name"], each["agents"]) != each["agents"]:
            said = f"was {_said(lineups[each['name']])}, now {_said(each['agents'])}"
            found.append(Problem(field=f"lineups.{each['name']}", message=said))
    return found


def edited(plan: Mapping[str, Any], experiment: Experiment) -> list[str]:
    """Name the fields of an experiment file that differ from the plan that is being played."""
    new = make_plan(experiment, {})
    known = [{key: each[key] for key in _IDENTITY} for each in plan["operators"].values()]
    differs = {
        "operators": any({key: each[key] for key in _IDENTITY} not in known for each in new["operators"].values()),
        "lineups": any(each not in plan["lineups"] for each in new["lineups"]),
    }
    return [name for name, value in new.items() if differs.get(name, name not in differs and plan.get(name) != value)]


def extend(
    old: Mapping[str, Any], new: Mapping[str, Any], done: Mapping[str, Collection[int]] | None = None
) -> tuple[dict[str, Any], list[str]]:
    """Join a new plan with the one that records exist of. Operators keep the checkpoints that they played with.

    Without `done`, every lineup of the old plan counts as played.
    """
    notes = []
    played = old["lineups"] if done is None else _played(old, done)
    players = _operators(each["agents"] for each in played)
    operators = dict(new["operators"])
    for name, entry in ((name, entry) for name, entry in old["operators"].items() if name in players):
        if name in operators and operators[name]["checkpoint"] != entry["checkpoint"]:
            said = f"{entry['source']} now means {operators[name]['checkpoint']}"
            notes.append(f"operator {name} stays at {entry['checkpoint']}, with which it has played ({said})")
        operators[name] = entry
    names = {each["name"] for each in new["lineups"]}
    gone = [each for each in played if each["name"] not in names]
    notes += [f"lineup {each['name']} is no longer in the file; its records stay" for each in gone]
    kept = _operators(each["agents"] for each in [*gone, *new["lineups"]])
    return {
        **new,
        **{name: old[name] for name in _FOUND if name in old},
        "operators": {name: entry for name, entry in operators.items() if name in kept},
        "lineups": [*new["lineups"], *gone],
    }, notes


def wanted_at_first(plan: Mapping[str, Any], lineups: Collection[str]) -> dict[str, int]:
    """Episodes of each lineup that are played before the first decision."""
    until = plan["until"]
    count = plan["episodes"] if until is None else min(FIRST_LOOK, until["cap"])
    return {each["name"]: count for each in plan["lineups"] if each["name"] in lineups}


def env_seed(seeds: Mapping[str, Any], episode: int) -> int | None:
    """The environment's seed of an episode if the file gives it; None if it is made from the root."""
    values = seeds["values"]
    match seeds["mode"]:
        case "procedural":
            return None
        case "fixed":
            return int(values[0])
    return int(values[episode]) if episode < len(values) else int(values[-1]) + episode - len(values) + 1


def _played(plan: Mapping[str, Any], done: Mapping[str, Collection[int]]) -> list[dict[str, Any]]:
    """Return the lineups that have records."""
    return [each for each in plan["lineups"] if done.get(each["name"])]


def _operators(agents: Iterable[Mapping[str, str]]) -> set[str]:
    return {operator for each in agents for operator in each.values()}


def _seeds(plan: Mapping[str, Any], count: int) -> list[int | None]:
    return [env_seed(plan["seeds"], episode) for episode in range(count)]


def _said(value: object) -> str:
    if isinstance(value, dict):
        return (
            "{" + ", ".join(f"{key}: {_said(item)}" for key, item in value.items() if item not in (None, {}, [])) + "}"
        )
    return str(value)
