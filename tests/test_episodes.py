"""Episodes through a whole stack: one count of a killed and resumed run everywhere, and returns of agents."""

from __future__ import annotations

import base64
import json
import os
import signal
import threading

import psutil
import pyarrow.parquet as pq
import pytest
from mosaic_cli import Cli
from stack import Stack, wait_until

from mosaic_bus import topics
from mosaic_bus.commands import Episodes, Metrics

STEPS, EPISODE_STEPS = 3000, 10
EPISODES = STEPS // EPISODE_STEPS


@pytest.fixture(scope="module")
def stack(tmp_path_factory, workers):
    with Stack(tmp_path_factory.mktemp("count") / "home") as stack:
        yield stack
    assert stack.leftovers() == []


def kill_worker(stack: Stack, run: str) -> None:
    host = json.loads((stack.home.runs / run / "1" / "host.json").read_bytes())["pid"]
    os.kill(psutil.Process(host).children()[0].pid, signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.parametrize("checkpoint_every", [200, 0], ids=["from a checkpoint", "from the beginning"])
def test_killed_and_resumed_run_has_one_count_everywhere(stack, tmp_path, checkpoint_every):
    config = {"events": STEPS, "rate": 1500, "episode_steps": EPISODE_STEPS, "checkpoint_every": checkpoint_every}
    run = stack.submit(config=config, retries={"max": 1, "on": ["infrastructure"], "delay_s": 0.1})
    live: list[tuple[int, int]] = []  # what a panel would show

    def follow() -> None:
        bodies = (message.payload for message in stack.bus.listen(topics.summary(run)))
        live.extend((body["attempt"], body["episodes"]) for body in bodies)

    threading.Thread(target=follow, daemon=True).start()
    wait_until("a third is done", lambda: live and live[-1][1] > EPISODES / 3)
    kill_worker(stack, run)
    assert stack.wait_final(run).state == "succeeded"
    summary = stack.wait_stored(run)
    wait_until("the last summary is told", lambda: live[-1] == (2, EPISODES))
    assert (summary.attempt, summary.episodes) == (2, EPISODES)
    assert stack.bus.request("telemetry", Metrics(run=run)).metrics["episode_return"] == EPISODES
    rows = stack.bus.request("telemetry", Episodes(run=run)).rows
    assert [row["episode"] for row in rows] == list(range(EPISODES))
    assert {row["attempt"] for row in rows} == ({1, 2} if checkpoint_every else {2})

    cli = Cli(stack.home.path)
    assert cli.json("show", run)["summary"]["episodes"] == EPISODES
    assert cli.json("series", run, "episode_return")["points"] == EPISODES
    assert cli.json("export", run, "--out", str(tmp_path / "export"))["rows"]["episodes"] == EPISODES
    table = pq.read_table(tmp_path / "export" / "episodes.parquet").to_pydict()
    assert (table["episode"], table["attempt"]) == (list(range(EPISODES)), [row["attempt"] for row in rows])


@pytest.mark.slow
def test_returns_of_agents_reach_the_command_line(stack, tmp_path):
    lines = [
        {"event": "episode", "ts": 1.0, "episode": each, "step": each, "return": 3.0 * each}
        | {"returns": {"left": 1.0 * each, "right": 2.0 * each}}
        for each in range(1, 4)
    ]
    raw = base64.b64encode("".join(json.dumps(line) + "\n" for line in lines).encode()).decode()
    run = stack.submit(config={"raw": [raw]})
    assert stack.wait_final(run).state == "succeeded"
    stack.wait_stored(run)
    cli = Cli(stack.home.path)
    assert cli.json("series", run)["agents"] == ["left", "right"]
    assert cli.json("series", run, "episode_return")["values"] == [3, 6, 9]
    assert cli.json("series", run, "episode_return", "--agent", "right")["values"] == [2, 4, 6]
    assert "no agent 'nobody'" in cli("series", run, "episode_return", "--agent", "nobody", code=2).stderr
    assert cli.json("show", run)["summary"]["agents"]["left"] == {"episodes": 3, "return_last": 3, "return_mean": 2}
    assert "return of left" in cli("show", run).stdout
    assert cli.json("export", run, "--out", str(tmp_path / "export"))["rows"]["episodes"] == 9
    table = pq.read_table(tmp_path / "export" / "episodes.parquet").to_pydict()
    assert table["agent"] == [None] * 3 + ["left"] * 3 + ["right"] * 3
    assert table["return"] == [3, 6, 9, 1, 2, 3, 2, 4, 6]
