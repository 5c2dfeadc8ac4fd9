"""Where a result comes from: versions, environments, numerics, machine, and the command that repeats it."""

from __future__ import annotations

import os
import platform
import subprocess
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mosaic_worker.events import Kind, read_line

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mosaic_bus.messages import ExperimentState
    from mosaic_services.experiments.records import Records

__all__ = ["Found", "complete"]

_GIT_S = 5.0


@dataclass
class Found:
    """What the events of shards tell besides episodes: versions of libraries, and videos."""

    libraries: dict[str, Any] = field(default_factory=dict)
    videos: dict[tuple[str, int], str] = field(default_factory=dict)

    def take(self, line: str, folder: Path) -> None:
        """Take in an event of a shard whose attempt has that folder."""
        event = read_line(line)
        info = event.fields.get("info")
        if event.kind == Kind.RUN_STARTED:
            versions = event.fields.get("versions")
            self.libraries |= versions if isinstance(versions, dict) else {}
        elif event.path is not None and isinstance(info, dict) and "episode" in info and "lineup" in info:
            self.videos[str(info["lineup"]), int(info["episode"])] = str(folder / event.path)


def complete(plan: Mapping[str, Any], records: Records, state: ExperimentState, found: Found) -> dict[str, Any]:
    """Return the plan with what is known once it was played, by this start or an earlier one."""
    known = plan.get("provenance", {})
    hosts = sorted({*known.get("hosts", []), *(each.host for each in state.shards if each.host)})
    videos = {(each["lineup"], each["episode"]): each["path"] for each in plan.get("videos_recorded", [])}
    provenance = {
        "mosaic": version("mosaic-services"),
        "commit": _commit(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "processor": _processor(),
        "cpus": os.cpu_count(),
        "hosts": hosts,
        "environments": plan.get("environments", {}),
        "libraries": {**known.get("libraries", {}), **found.libraries},
        "numerics": {name: sorted(found) for name, found in sorted(records.numerics.items())},
        "failures": dict(records.kinds),
        "lost_shards": state.lost,
        "conflicts": state.conflicts,
    }
    return {
        **plan,
        "provenance": provenance,
        "state": state.state.value,
        "reason": state.reason,
        "hosts": hosts,
        "shards": len(state.shards) or plan.get("shards"),
        "elapsed_s": round((state.ended_at or state.started_at) - state.started_at, 3),
        "videos_recorded": [
            {"lineup": lineup, "episode": episode, "path": path}
            for (lineup, episode), path in sorted((videos | found.videos).items())
        ],
    }


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


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    found = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    return found or platform.processor()
