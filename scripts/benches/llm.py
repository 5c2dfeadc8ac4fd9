"""How a thousand episodes of a language model share an endpoint with a rate limit.

Method. One shard of the arena plays 1,000 episodes of CartPole-v1 at once, each cut off after six steps, with one
operator of the llm worker. Its endpoint is the chat server of the tests, in a process of its own: it answers after
0.2 s, and allows `--rate` calls a second in a bucket that holds one second's worth; others get 429 with Retry-After in
whole seconds. `lost`: episodes without a whole record. `rate_ratio`: answers over those that the limit allowed from the
first to the last one, the full bucket of the beginning included. `throttled_share`: calls that got 429, of all.
`kb_per_episode`: peak memory of the operator's process with 1,000 lanes, less that with one, over 999; `arena_…` the
same for the arena, which has the environments.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any

from mosaic_services.environments import build, recipe_for
from mosaic_services.home import StackHome

ROOT = Path(__file__).parents[2]
TESTS = ROOT / "workers" / "llm_worker" / "tests"
sys.path.insert(0, str(TESTS))

from chat_server import KEY  # noqa: E402 - the path is set just above

DEADLINE_S = 1800
STEPS = 6
LOOK_S = 0.2


class Server:
    """The chat server, in a process of its own."""

    def __init__(self, rate: float) -> None:
        command = [sys.executable, str(TESTS / "chat_server.py"), "--rate", str(rate), "--latency", "0.2"]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        told = json.loads(self._process.stdout.readline() if self._process.stdout else "{}")
        self.address, self._stats = told["address"], told["stats"]

    def stats(self) -> dict[str, Any]:
        """What it has seen."""
        with urllib.request.urlopen(self._stats, timeout=60) as answer:  # noqa: S310 - our own server
            return json.load(answer)  # type: ignore[no-any-return]

    def close(self) -> None:
        """End it."""
        if self._process.stdin:
            self._process.stdin.close()
        self._process.wait(30)


class Memory(threading.Thread):
    """Watches the peak memory of the arena and of its operator."""

    def __init__(self, arena: int) -> None:
        super().__init__(daemon=True)
        self._arena = arena
        self.peaks = {"arena": 0, "operator": 0}
        self.start()

    def run(self) -> None:
        """Look now and then, until the arena has ended."""
        while (found := _peak_kb(self._arena)) is not None:
            self.peaks["arena"] = max(self.peaks["arena"], found)
            children = Path(f"/proc/{self._arena}/task/{self._arena}/children")
            for child in children.read_text().split() if children.exists() else ():
                self.peaks["operator"] = max(self.peaks["operator"], _peak_kb(int(child)) or 0)
            time.sleep(LOOK_S)


def _peak_kb(pid: int) -> int | None:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) for line in lines if line.startswith("VmHWM")), None)


def play(folder: Path, server: Server, episodes: int) -> tuple[int, dict[str, int]]:
    """Play a shard; return how many episodes are whole, and the peaks of memory."""
    home = StackHome.find(folder / "home")
    arena = build(recipe_for("arena", home), "default", lambda *_: None)
    llm = build(recipe_for("llm", home), "default", lambda *_: None)
    asked = {"endpoint": "vllm", "base_url": server.address, "key_env": "CHAT_KEY", "model": "good", "history": 0}
    config = {
        "environment": {"id": "CartPole-v1", "max_steps": STEPS},
        "operators": {"llm": {"worker": "llm", "config": {**asked, "cache": "off"}}},
        "lineups": [{"name": "llm", "agents": {"*": "llm"}}],
        "play": [{"lineup": "llm", "episodes": [0, episodes]}],
        "lanes": episodes,
        "experiment": "bench",
    }
    used = {"worker": "llm", "profile": "default", "argv": llm.command(), "environ": llm.variables()}
    run = folder / f"run-{episodes}"
    run.mkdir()
    document = {"run_id": "bench", "metadata": {"worker": {"config": config}}, "uses": [used]}
    (run / "worker.json").write_text(json.dumps(document))
    environ = {**os.environ, **arena.variables(), "MOSAIC_RUN_DIR": str(run), "CHAT_KEY": KEY}
    command = arena.command("--config", str(run / "worker.json"))
    with (run / "journal").open("w") as journal:
        process = subprocess.Popen(command, cwd=run, env=environ, stdout=journal)
        memory = Memory(process.pid)
        code = process.wait(DEADLINE_S)
    memory.join(10)
    if code:
        raise SystemExit(f"bench llm: the arena ended with {code}; see its output above")
    records = [json.loads(line) for line in (run / "episodes.jsonl").read_text().splitlines()]
    whole = [each for each in records if not each["failures"] and each["ended"] == "max_steps"]
    return len({each["episode"] for each in whole}), memory.peaks


def main() -> None:
    """Measure, and print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=1000)
    parser.add_argument("--rate", type=float, default=50.0, help="calls a second that the endpoint allows")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="mosaic-bench-") as scratch:
        small = Server(arguments.rate)
        _, base = play(Path(scratch), small, 1)
        small.close()
        server = Server(arguments.rate)
        began = time.monotonic()
        whole, peaks = play(Path(scratch), server, arguments.episodes)
        elapsed = time.monotonic() - began
        seen = server.stats()
        server.close()
    seconds = (seen["last_at_us"] - seen["first_at_us"]) / 1e6
    others = max(1, arguments.episodes - 1)
    result = {
        "episodes": arguments.episodes,
        "lost": arguments.episodes - whole,
        "rate_ratio": round(seen["answered"] / (arguments.rate * seconds + arguments.rate), 3),
        "answers": seen["answered"],
        "seconds": round(seconds, 1),
        "elapsed_s": round(elapsed, 1),
        "throttled_share": round(seen.get("throttled", 0) / seen["requests"], 4),
        "most_at_once": seen["most_at_once"],
        "kb_per_episode": round((peaks["operator"] - base["operator"]) / others, 1),
        "arena_kb_per_episode": round((peaks["arena"] - base["arena"]) / others, 1),
    }
    print(json.dumps({"bench": "llm", **result}))


if __name__ == "__main__":
    main()
