"""Where the services keep their files: below the folder of their stack, and in shared memory."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

from mosaic_bus.home import OWNER_ONLY, Home

__all__ = ["StackHome"]


@dataclass(frozen=True)
class StackHome(Home):
    """The folder of one stack, with the names of what the services keep in it."""

    @property
    def runs(self) -> Path:
        """One folder per run, one folder per attempt inside: `runs/<run>/<attempt>/`."""
        return self.path / "runs"

    @property
    def sweeps(self) -> Path:
        """One folder per sweep that has a driver, with its study: `sweeps/<group>/study.db`."""
        return self.path / "sweeps"

    @property
    def experiments(self) -> Path:
        """One folder per experiment: `experiments/<name>/episodes.jsonl`."""
        return self.path / "experiments"

    @property
    def shared(self) -> Path:
        """What the workers of this host share: `shared/<worker>/`; their counters are in `shared/counters/`."""
        return self.path / "shared"

    @property
    def logs(self) -> Path:
        """What the services print: `logs/<service>.log`."""
        return self.path / "logs"

    @property
    def scheduler_store(self) -> Path:
        """The scheduler's SQLite file."""
        return self.path / "scheduler" / "scheduler.db"

    @property
    def telemetry_store(self) -> Path:
        """The telemetry aggregator's SQLite file."""
        return self.path / "telemetry" / "telemetry.db"

    @property
    def gateway(self) -> Path:
        """The tokens and the address of the gateway."""
        return self.path / "gateway"

    @property
    def gateway_note(self) -> Path:
        """Where the gateway listens, while it does."""
        return self.gateway / "address.json"

    @property
    def frames(self) -> Path:
        """The folder of frames in shared memory, on this machine: one folder per attempt, `<run>.<attempt>/`."""
        digest = hashlib.sha256(os.fsencode(os.path.realpath(self.path))).hexdigest()[:16]
        return Path(f"/dev/shm/mosaic-{os.getuid()}-{digest}")  # noqa: S108 - made 0700 and its owner checked by its maker

    def create(self) -> None:
        """Make the folders, readable by their owner only."""
        super().create()
        for folder in (
            self.runs,
            self.experiments,
            self.logs,
            self.shared,
            self.scheduler_store.parent,
            self.telemetry_store.parent,
            self.gateway,
        ):
            folder.mkdir(mode=OWNER_ONLY, exist_ok=True)
            folder.chmod(OWNER_ONLY)  # The home may be a folder that was there before, and open to others.
