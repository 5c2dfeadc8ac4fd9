"""Checks at submit whether a run can ever run: pure functions over what the hosts have reported."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mosaic_bus.errors import CommandRefusedError
from mosaic_bus.refusals import Problem, RefusalCode, RefusalDetails
from mosaic_bus.wording import near_names
from mosaic_services.scheduler.placement import Demand, could_take, suits
from mosaic_services.scheduler.schema import possible_references
from mosaic_services.scheduler.wording import amounts, listed

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from mosaic_bus.messages import RunSpec
    from mosaic_services.config_fields import Field
    from mosaic_services.scheduler.model import Host
    from mosaic_services.scheduler.schema import ConfigSchema

__all__ = ["Checked", "Schemas", "check_config", "check_submission"]

# Limit for a config, which goes into every answer about its run. Data belongs in files.
MAX_CONFIG_BYTES = 1024 * 1024

# (worker, profile, fingerprint) -> the schema of that environment's config
Schemas = dict[tuple[str, str, str], "ConfigSchema"]


@dataclass(frozen=True, slots=True)
class Checked:
    """The result of checking a config."""

    problems: list[Problem]
    # The environment whose schema accepted it; empty if none is known.
    fingerprint: str = ""
    # Fields that name checkpoints of other runs, and how.
    references: tuple[tuple[Field, str], ...] = ()
    # A sentence about each field that was moved to its place, and the config after that.
    moved: tuple[str, ...] = ()
    config: dict[str, Any] | None = None

    def arranged(self, spec: RunSpec) -> RunSpec:
        """Return the spec with that config."""
        return spec.model_copy(update={"config": self.config}) if self.moved else spec


def check_submission(spec: RunSpec, hosts: Iterable[Host], schemas: Schemas) -> tuple[list[str], Checked]:
    """Refuse a run that cannot run; return warnings and the result of checking its config."""
    _check_size(spec)
    known = [host for host in hosts if host.state is not None]
    if not known:
        warning = "no host has reported yet: the config is checked later, and the run waits for a host that can take it"
        return [warning], check_config(spec, known, schemas)
    _check_environment(spec, known)
    checked = check_config(spec, known, schemas)
    if checked.problems:
        said = "; ".join(map(str, checked.problems))
        details = RefusalDetails(field="config", problems=checked.problems)
        raise CommandRefusedError(RefusalCode.INVALID_CONFIG, said, details)
    warnings = [*checked.moved, *_warnings(spec, known, schemas)]
    if impossible := _impossible(spec, known):
        if not spec.wait_for_host:
            raise impossible
        warnings.append(f"{impossible.message}; it waits for such a host to join")
    return warnings, checked


def _check_size(spec: RunSpec) -> None:
    size = len(json.dumps(spec.config))
    if size > MAX_CONFIG_BYTES:
        raise CommandRefusedError(
            RefusalCode.INVALID_CONFIG,
            f"config has {size} bytes, the limit is {MAX_CONFIG_BYTES}: put data in a file and give its path",
            RefusalDetails(field="config"),
        )


def check_config(spec: RunSpec, hosts: Iterable[Host], schemas: Schemas, *, arrange: bool = True) -> Checked:
    """Check a config against every known description; one environment that accepts it is enough.

    With `arrange`, fields that are misplaced at the top level are moved first.
    """
    problems: list[Problem] = []
    for host in hosts:
        environment = host.environments.get((spec.worker, spec.profile))
        if environment is None or environment.status != "installed":
            continue
        schema = schemas.get((spec.worker, spec.profile, environment.fingerprint))
        if schema is None:
            continue
        config, moved = schema.arrange(spec.config) if arrange else (spec.config, [])
        found = schema.problems(config)
        if not found:
            references = schema.references(config)
            return Checked([], environment.fingerprint, references, tuple(moved), config if moved else None)
        problems = problems or found
    return Checked(problems, references=possible_references(spec.config))


def _check_environment(spec: RunSpec, hosts: Collection[Host]) -> None:
    workers: dict[str, set[str]] = {}
    for host in hosts:
        for worker, profile in host.environments:
            workers.setdefault(worker, set()).add(profile)
    fields = {"": (spec.worker, spec.profile)}
    fields |= {f"uses.{number}.": (use.worker, use.profile) for number, use in enumerate(spec.uses)}
    for field, (worker, profile) in fields.items():
        where = f"{field.rstrip('.')}: " if field else ""
        if worker not in workers:
            said = f"{where}worker {worker!r} is unknown to all hosts"
            raise _unknown(RefusalCode.UNKNOWN_WORKER, said, f"{field}worker", worker, workers)
        if profile not in workers[worker]:
            said = f"{where}worker {worker} has no profile {profile!r}"
            raise _unknown(RefusalCode.UNKNOWN_PROFILE, said, f"{field}profile", profile, workers[worker])


def _unknown(code: RefusalCode, said: str, field: str, name: str, known: Iterable[str]) -> CommandRefusedError:
    names = sorted(known)
    details = RefusalDetails(field=field, value=name, near=near_names(name, names), allowed=names)
    return CommandRefusedError(code, said, details)


def _impossible(spec: RunSpec, hosts: Collection[Host]) -> CommandRefusedError | None:
    """The reason why no known host could ever take the run; None if one could."""
    demand = Demand.of(spec)
    if any(could_take(demand, host) for host in hosts):
        return None
    able = [host for host in hosts if not demand.missing(host)]
    if not able:
        lacking = [f"{host.name} lacks {' and '.join(demand.missing(host))}" for host in hosts]
        details = RefusalDetails(field="uses", problems=[Problem(field="uses", message=each) for each in lacking])
        said = f"no host has {demand.what}: {listed(lacking)}"
        return CommandRefusedError(RefusalCode.IMPOSSIBLE_RESOURCES, said, details)
    tagged = [host for host in able if suits(demand, host)]
    if not tagged:
        return _no_such_tags(demand, hosts, able)
    totals = {host.name: host.state.total for host in tagged if host.state is not None}
    largest = max(totals, key=lambda name: (totals[name].gpus, totals[name].cpus, totals[name].memory_mb))
    return CommandRefusedError(
        RefusalCode.IMPOSSIBLE_RESOURCES,
        f"needs {amounts(demand)}; the largest host with {demand.what}, {largest}, "
        f"has {amounts(totals[largest])} in all",
        RefusalDetails(field="resources", hosts=totals),
    )


def _no_such_tags(demand: Demand, hosts: Collection[Host], able: Collection[Host]) -> CommandRefusedError:
    known = sorted({tag for host in hosts for tag in host.tags})
    unknown = sorted(tag for tag in demand.requires if not tag.startswith("!") and tag not in known)
    near = [each for tag in unknown for each in near_names(tag, known, 2)]
    if unknown:
        said = f"no host has the tag {', '.join(map(repr, unknown))}"
    else:
        tags = "; ".join(f"{host.name} has {', '.join(sorted(host.tags)) or 'no tags'}" for host in able)
        said = f"no host has {demand.what}: {tags}"
    details = RefusalDetails(field="requires", value=unknown or list(demand.requires), near=near, allowed=known)
    return CommandRefusedError(RefusalCode.UNKNOWN_TAG, said, details)


def _warnings(spec: RunSpec, hosts: Collection[Host], schemas: Schemas) -> list[str]:
    demand = Demand.of(spec)
    able = [host for host in hosts if not demand.missing(host)]
    return [*_waiting_warnings(demand, able), *_config_warnings(spec, able, schemas)]


def _config_warnings(spec: RunSpec, able: Collection[Host], schemas: Schemas) -> list[str]:
    """Warn if the config is not checked now."""
    name = f"{spec.worker}/{spec.profile}"
    environments = [host.environments[spec.worker, spec.profile] for host in able]
    installed = [each for each in environments if each.status == "installed"]
    described = [schemas.get((spec.worker, spec.profile, each.fingerprint)) for each in installed]
    known = [schema for schema in described if schema is not None]
    if broken := [schema.broken for schema in known if schema.broken]:
        return [f"configuration is not checked: the schema of {name} is unusable: {broken[0]}"]
    if known or all(each.status == "broken" for each in environments):
        return []
    return [f"configuration is checked once the environment of {name} is {'described' if installed else 'built'}"]


def _waiting_warnings(demand: Demand, able: Collection[Host]) -> list[str]:
    if not able:
        return []
    for worker, profile in demand.environments:
        if {host.environments[worker, profile].status for host in able} == {"broken"}:
            return [f"worker {worker}, profile {profile}, is broken on every host that has it: the run will wait"]
    if all(host.silent for host in able):
        return [f"every host with {demand.what} is silent: the run waits until one reports again"]
    return []
