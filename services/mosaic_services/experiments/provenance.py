"""Where a result comes from: versions, environments, numerics, machine, and the command that repeats it."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mosaic_bus.messages import ExperimentState
    from mosaic_services.experiments.records import Records

__all__ = ["complete"]

_GIT_S = 5.0


def complete(
    plan: Mapping[str, Any], records: Records, state: ExperimentState, libraries: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the plan with what is known once it was played."""
    hosts = sorted({each.host for each in state.shards if each.host})
    known = plan.get("provenance", {})
    provenance = {
        "mosaic": version("mosaic-services"),
        "commit": _commit(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "processor": _processor(),
        "cpus": os.cpu_count(),
        "hosts": sorted({*known.get("hosts", []), *hosts}),
        "environments": plan.get("environments", {}),
        "libraries": {**known.get("libraries", {}), **libraries},
        "numerics": {name: sorted(found) for name, found in sorted(records.numerics.items())},
        "failures": dict(records.kinds),
        "lost_shards": state.lost,
        "conflicts": state.conflicts,
    }
    return {**plan, "provenance": provenance, "state": state.state.value, "reason": state.reason}


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
