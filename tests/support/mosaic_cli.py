"""Runs the `mosaic` command for one home, in a separate process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

MOSAIC = [sys.executable, "-m", "mosaic_services.cli"]


class Cli:
    """Calls `mosaic` for one home."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.env = {**os.environ, "MOSAIC_HOME": str(home), "NO_COLOR": "1", "TERM": "dumb"}
        # readline, which pytest may load, sets the last two: a terminal of another size would be misread.
        for name in ("MOSAIC_BUS", "COLUMNS", "LINES"):
            self.env.pop(name, None)

    def __call__(
        self, *arguments: str, code: int | None = 0, timeout: float = 300, stdin: str = ""
    ) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [*MOSAIC, *arguments],
            env=self.env,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        assert "Traceback" not in done.stderr, done.stderr
        assert code in (None, done.returncode), f"{arguments} gave {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done

    def json(self, *arguments: str, code: int | None = 0) -> dict:
        return json.loads(self(*arguments, "--json", code=code).stdout)

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*MOSAIC, *arguments],
            env=self.env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            # A shell's background job ignores SIGINT, and its child processes inherit that.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509 - it takes no lock
        )

    def submit(self, *words: str) -> str:
        return self.json("submit", "--worker", "baseline", *words)["runs"][0]["run"]

    def state(self, run: str) -> str:
        return self.json("show", run)["run"]["state"]

    def journal(self, run: str) -> list[str]:
        return (self.home / "runs" / run / "1" / "journal.jsonl").read_text().splitlines()
