"""The smallest worker, as docs/write-a-worker.md shows it, works as it stands."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

KIT = Path(__file__).resolve().parents[1]
PAGE = KIT.parents[1] / "docs" / "write-a-worker.md"


def test_the_smallest_worker_of_the_documentation_runs(tmp_path):
    (source,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (tmp_path / "coin.py").write_text(source)
    (tmp_path / "worker.json").write_text(json.dumps({"run_id": "r1", "episodes": 3, "seed": 7}))
    done = subprocess.run(
        [sys.executable, "coin.py", "--config", "worker.json"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(KIT)},
        capture_output=True,
        check=True,
        timeout=60,
    )
    events = [json.loads(line) for line in done.stdout.splitlines()]
    assert [event["event"] for event in events] == ["run_started", *["episode"] * 3, "run_completed"]
    assert events[-1]["summary"] == {"heads": sum(event["return"] for event in events[1:4])}
