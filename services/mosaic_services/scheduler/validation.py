"""Whether a submitted run can ever run: pure checks against what the hosts have reported."""

from __future__ import annotations

import difflib
import json
from typing import TYPE_CHECKING

from mosaic_bus.errors import CommandRefusedError
from mosaic_services.scheduler.placement import Demand, amounts, could_hold

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from mosaic_bus.messages import RunSpec
    from mosaic_services.scheduler.model import Host
    from mosaic_services.scheduler.schema import ConfigSchema

__all__ = ["Schemas", "check_submission", "config_problems"]

# A configuration goes into every answer about its run; data does not belong there.
MAX_CONFIG_BYTES = 1024 * 1024

# (worker, profile, fingerprint) -> what configuration that environment takes
Schemas = dict[tuple[str, str, str], "ConfigSchema"]


def check_submission(spec: RunSpec, hosts: Iterable[Host], schemas: Schemas) -> tuple[list[str], str]:
    """Refuse what cannot run; return warnings, and the fingerprint whose schema accepted the configuration."""
    _check_size(spec)
    known = [host for host in hosts if host.state is not None]
    if not known:
        return ["no host has reported yet: worker, resources and configuration are checked when one does"], ""
    _check_environment(spec, known)
    _check_resources(spec, known)
    problems, checked = config_problems(spec, known, schemas)
    if problems:
        hint = f"(mosaic workers describe {spec.worker})"
        raise CommandRefusedError("invalid_config", f"{'; '.join(problems)}  {hint}", {"problems": problems})
    return _warnings(spec, known, schemas), checked


def _check_size(spec: RunSpec) -> None:
    size = len(json.dumps(spec.config))
    if size > MAX_CONFIG_BYTES:
        raise CommandRefusedError(
            "invalid_config",
            f"config has {size} bytes, allowed are {MAX_CONFIG_BYTES}: put data in a file and give its path",
        )


def config_problems(spec: RunSpec, hosts: Iterable[Host], schemas: Schemas) -> tuple[list[str], str]:
    """Check a configuration against every description known; one environment that accepts it is enough."""
    problems: list[str] = []
    for host in hosts:
        environment = host.environments.get((spec.worker, spec.profile))
        if environment is None or environment.status != "installed":
            continue
        schema = schemas.get((spec.worker, spec.profile, environment.fingerprint))
        if schema is None:
            continue
        found = schema.problems(spec.config)
        if not found:
            return [], environment.fingerprint
        problems = problems or found
    return problems, ""


def _check_environment(spec: RunSpec, hosts: Collection[Host]) -> None:
    workers: dict[str, set[str]] = {}
    for host in hosts:
        for worker, profile in host.environments:
            workers.setdefault(worker, set()).add(profile)
    if spec.worker not in workers:
        raise _unknown("unknown_worker", f"worker {spec.worker!r} is unknown to all hosts", spec.worker, workers)
    profiles = workers[spec.worker]
    if spec.profile not in profiles:
        said = f"worker {spec.worker} has no profile {spec.profile!r}"
        raise _unknown("unknown_profile", said, spec.profile, profiles)


def _unknown(code: str, said: str, name: str, known: Iterable[str]) -> CommandRefusedError:
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=3)
    hint = f"did you mean {', '.join(near)}? " if near else ""
    return CommandRefusedError(
        code, f"{said}; {hint}known: {', '.join(names) or 'none'}", {"near": near, "known": names}
    )


def _check_resources(spec: RunSpec, hosts: Collection[Host]) -> None:
    demand = Demand.of(spec)
    able = [host for host in hosts if demand.environment in host.environments]
    if any(could_hold(demand, host) for host in able):
        return
    totals = {host.name: host.state.total for host in able if host.state is not None}
    largest = max(totals, key=lambda name: (totals[name].cpus, totals[name].memory_mb))
    sizes: Mapping[str, dict[str, object]] = {name: total.model_dump() for name, total in totals.items()}
    raise CommandRefusedError(
        "impossible_resources",
        f"needs {amounts(demand)}; the largest host with worker {spec.worker}, {largest}, "
        f"has {amounts(totals[largest])} in all: ask for less",
        {"hosts": sizes},
    )


def _warnings(spec: RunSpec, hosts: Collection[Host], schemas: Schemas) -> list[str]:
    able = [host for host in hosts if (spec.worker, spec.profile) in host.environments]
    return [*_waiting_warnings(spec, able), *_config_warnings(spec, able, schemas)]


def _config_warnings(spec: RunSpec, able: Collection[Host], schemas: Schemas) -> list[str]:
    """Say why the configuration is not checked now, if it is not."""
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


def _waiting_warnings(spec: RunSpec, able: Collection[Host]) -> list[str]:
    statuses = {host.environments[spec.worker, spec.profile].status for host in able}
    if statuses == {"broken"}:
        return [f"worker {spec.worker}, profile {spec.profile}, is broken on every host that has it: the run will wait"]
    if all(host.silent for host in able):
        return [f"every host with worker {spec.worker} is silent: the run waits until one reports again"]
    return []
