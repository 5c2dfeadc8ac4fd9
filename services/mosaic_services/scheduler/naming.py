"""Makes readable names of runs, and finds runs and groups by what a person typed."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from mosaic_bus.errors import CommandRefusedError
from mosaic_bus.refusals import RefusalCode, RefusalDetails, brief
from mosaic_bus.wording import near_names
from mosaic_services.scheduler.wording import listed

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mosaic_bus.messages import RunSpec
    from mosaic_services.scheduler.model import Run

__all__ = ["find_group", "find_run", "make_name", "match_run"]

_LONGEST_PART = 32
_CANDIDATES_NAMED = 8
_CANDIDATES_SENT = 100
_NAMES_COMPARED = 2000


def make_name(spec: RunSpec) -> str:
    """Name a run after its configuration, e.g. `ppo-cartpole-seed1`; a name in the spec is kept."""
    if spec.name:
        return spec.name
    who = _first_text(spec.config, "algo", "algorithm", "agent") or spec.worker
    parts = [_slug(who) or spec.worker]
    if task := _first_text(spec.config, "env_id", "env", "environment"):
        parts.append(_slug(re.sub(r"[-_]v\d+$", "", task.rsplit("/", 1)[-1])))
    seed = spec.config.get("seed")
    if isinstance(seed, int) and not isinstance(seed, bool):
        parts.append(f"seed{seed}")
    return "-".join(part for part in parts if part)


def find_run(runs: Mapping[str, Run], query: str, *, active: bool = False) -> Run:
    """Find the run meant by an id, a unique part of one, or a name. See `match_run`."""
    return match_run(runs, query, active=active)[0]


def match_run(runs: Mapping[str, Run], query: str, *, active: bool = False) -> tuple[Run, int]:
    """Find the run meant by an id, a unique part of one, or a name; also say how many runs have that name.

    A name that several runs share means the newest; with `active`, the only one that has not ended, if there is one.
    Refused if there is no such run, or if a part of an id, or a name with `active`, fits several.
    """
    text = query.strip()
    if found := runs.get(text.upper()):
        return found, 1
    named = [run for run in runs.values() if run.name == text] if text else []
    going = [run for run in named if not run.final] if active else []
    matches = going or named[-1:]
    if not matches and text.isalnum():
        part = text.upper()
        matches = [run for run_id, run in runs.items() if part in run_id]
    if len(matches) == 1:
        return matches[0], max(1, len(named))
    if not matches:
        newest = [run.name for run in runs.values()][-_NAMES_COMPARED:]
        details = RefusalDetails(value=brief(query), near=near_names(text, newest))
        raise CommandRefusedError(RefusalCode.UNKNOWN_RUN, f"no run has the id or name {query!r}", details)
    matches = matches[::-1]
    listing = ", ".join(f"{run.short} ({run.name}, {run.state})" for run in matches[:_CANDIDATES_NAMED])
    more = f" and {len(matches) - _CANDIDATES_NAMED} more" if len(matches) > _CANDIDATES_NAMED else ""
    raise CommandRefusedError(
        RefusalCode.AMBIGUOUS_RUN,
        f"{query!r} fits {len(matches)} runs: {listing}{more}; give one's id",
        RefusalDetails(value=brief(query), candidates=[run.id for run in matches[:_CANDIDATES_SENT]]),
    )


def find_group(groups: Mapping[str, dict[str, Run]], query: str) -> tuple[str, dict[str, Run]]:
    """Find the group meant by its name or a unique part of it; refuse if there is none or several."""
    text = query.strip()
    if text in groups:
        return text, groups[text]
    found = [name for name in groups if text and text.lower() in name.lower()]
    if len(found) == 1:
        return found[0], groups[found[0]]
    if found:
        said = f"{query!r} fits {len(found)} groups: {listed(found[::-1], _CANDIDATES_NAMED)}"
        details = RefusalDetails(value=brief(query), candidates=found[::-1][:_CANDIDATES_SENT])
        raise CommandRefusedError(RefusalCode.UNKNOWN_GROUP, said, details)
    details = RefusalDetails(value=brief(query), near=near_names(text, list(groups)[-_NAMES_COMPARED:]))
    raise CommandRefusedError(RefusalCode.UNKNOWN_GROUP, f"no group is called {query!r}", details)


def _first_text(config: Mapping[str, Any], *names: str) -> str:
    for name in names:
        value = config.get(name)
        if isinstance(value, str) and value:
            return value
    return ""


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:_LONGEST_PART].rstrip("-")
