"""Where a result comes from: the code, the hosts with their hardware and environments, and numerics."""

from __future__ import annotations

import subprocess
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, Field

from mosaic_worker.events import Kind, read_line

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mosaic_bus.messages import ExperimentState
    from mosaic_services.experiments.records import Records

__all__ = ["Found", "complete"]

_GIT_S = 5.0


class Found(BaseModel):
    """What the events of shards tell besides episodes. Kept in state.json, as the place up to which they were read."""

    # By host: its hardware, and the environments that played there.
    hosts: dict[str, dict[str, Any]] = Field(default_factory=dict)
    # By lineup and episode: a path, below the experiment's folder once the experiment has ended.
    videos: dict[str, dict[int, str]] = Field(default_factory=dict)

    def take(self, line: str, host: str | None, folder: Path) -> None:
        """Take in an event of a shard on a host, whose attempt has that folder."""
        event = read_line(line)
        info = event.fields.get("info")
        if event.kind == Kind.RUN_STARTED and host is not None:
            machine, environments = (_map(event.fields.get(name)) for name in ("machine", "environments"))
            self.hosts[host] = _join(self.hosts.get(host), {**machine, "environments": environments})
        elif event.path is not None and isinstance(info, dict) and "episode" in info and "lineup" in info:
            self.videos.setdefault(str(info["lineup"]), {})[int(info["episode"])] = str(folder / event.path)


def complete(plan: Mapping[str, Any], records: Records, state: ExperimentState, found: Found) -> dict[str, Any]:
    """Return the plan with what is known once it was played, by this start or an earlier one."""
    known = _map(_map(plan.get("provenance")).get("hosts"))
    names = sorted({*known, *found.hosts, *(each.host for each in state.shards if each.host)})
    hosts = {name: _join(known.get(name), found.hosts.get(name, {})) for name in names}
    videos = {(each["lineup"], each["episode"]): each["path"] for each in plan.get("videos_recorded", [])}
    videos |= {(lineup, number): path for lineup, paths in found.videos.items() for number, path in paths.items()}
    provenance = {
        "mosaic": version("mosaic-services"),
        "commit": _commit(),
        "hosts": hosts,
        "numerics": {name: sorted(prints) for name, prints in sorted(records.numerics.items())},
        "failures": dict(records.kinds),
        "lost_shards": state.lost,
        "conflicts": state.conflicts,
    }
    return {
        **plan,
        "provenance": provenance,
        "state": state.state.value,
        "reason": state.reason,
        "given_up": {each.lineup: each.given_up for each in state.lineups if each.given_up},
        "hosts": names,
        "shards": len(state.shards) or plan.get("shards"),
        "elapsed_s": round((state.ended_at or state.started_at) - state.started_at, 3),
        "videos_recorded": [
            {"lineup": lineup, "episode": episode, "path": path} for (lineup, episode), path in sorted(videos.items())
        ],
    }


def _join(known: dict[str, Any] | None, new: dict[str, Any]) -> dict[str, Any]:
    """Add what a shard tells of a host to what others told."""
    environments = {**_map((known or {}).get("environments")), **_map(new.get("environments"))}
    return {**(known or {}), **new, "environments": environments}


def _map(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _commit() -> str | None:
    """The commit of the checkout that the services run from; None if they were installed otherwise."""
    try:
        done = subprocess.run(
            ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"],
            capture_output=True,
            text=True,
            timeout=_GIT_S,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None
