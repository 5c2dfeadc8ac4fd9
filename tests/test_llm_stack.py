"""Language models through a real stack: a real one on this machine against other kinds, and a key that nobody sees."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import permutations
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest
from stack import HOST, Stack, wait_until

from mosaic_bus import topics
from mosaic_bus.commands import ShowExperiment, StartExperiment, Stats, WriteReport
from mosaic_services.environments import build, recipe_for
from mosaic_services.home import StackHome

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]

DEADLINE_S = 1200
LOOK_S = 0.1
CHAT_SERVER = Path(__file__).parents[1] / "workers" / "llm_worker" / "tests" / "chat_server.py"
KEY = "test-key-7d1f6c0e5a9b"
GRID = {"id": "MiniGrid-Empty-5x5-v0", "max_steps": 3}
SMOLLM = {"worker": "llm", "profile": "local", "config": {"history": 0}}
WORKERS = (*((name, "default") for name in ("arena", "baseline", "cleanrl", "llm", "ray")), ("llm", "local"))


@pytest.fixture(scope="module")
def stack(tmp_path_factory) -> Iterator[Stack]:
    """A stack whose host has the key of an endpoint, and the model on this machine."""
    home = StackHome.find(tmp_path_factory.mktemp("build"))
    for worker, profile in WORKERS:
        build(recipe_for(worker, home), profile, lambda _step, _percent: None)
    environ = {"MOSAIC_WORKERS": "", "CHAT_KEY": KEY}
    with Stack(tmp_path_factory.mktemp("llm") / "home", environ=environ) as running:
        yield running
    assert running.leftovers() == []


@pytest.fixture(scope="module")
def server() -> Iterator[dict[str, str]]:
    """A fake provider: no real one can be had in a test."""
    command = [sys.executable, str(CHAT_SERVER)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield json.loads(process.stdout.readline())
        assert process.stdin is not None
        process.stdin.close()


def play(stack: Stack, name: str, **fields: Any) -> list[dict[str, Any]]:
    """Play an experiment to its end; return its records."""
    document = {"name": name, "episodes": 2, "deadlines": {"action_s": 600}, **fields}
    stack.bus.request("operator", StartExperiment(experiment=document, shards=1), timeout=60)

    def ended() -> Any:
        found = stack.bus.request("operator", ShowExperiment(experiment=name), timeout=60)
        return found.state.final and found

    state = wait_until(f"{name} ends", ended, DEADLINE_S)
    assert state.state == "finished", state
    return [json.loads(line) for line in episodes_of(stack, name).splitlines()]


def episodes_of(stack: Stack, name: str) -> bytes:
    return (stack.home.experiments / name / "episodes.jsonl").read_bytes()


def counters_of(stack: Stack) -> dict[str, float]:
    """What `mosaic stats supervisor` shows of endpoints."""
    counters = stack.bus.request(topics.supervisor(HOST), Stats(), timeout=60).counters
    return {name: value for name, value in counters.items() if name.startswith("llm-")}


def requests_of(server: dict[str, str]) -> int:
    with urllib.request.urlopen(server["stats"], timeout=60) as answer:
        return int(json.load(answer).get("requests", 0))


def test_a_real_model_plays_a_grid_beside_a_ppo_checkpoint(stack):
    config = {"algo": "ppo", "env_id": GRID["id"], "total_timesteps": 512, "seed": 1}
    run = stack.submit(name="grid", worker="cleanrl", config=config, resources={"cpus": 1, "memory_mb": 2048})
    assert stack.wait_final(run, DEADLINE_S).state == "succeeded"
    operators = {
        "smollm2": SMOLLM,
        "ppo": {"worker": "cleanrl", "checkpoint": "run:grid@last"},
        "passive": {"worker": "baseline", "behavior": "passive"},
    }
    records = play(stack, "grid", environment=GRID, operators=operators)
    assert sorted((record["lineup"], record["episode"]) for record in records) == [
        (name, episode) for name in sorted(operators) for episode in range(2)
    ]
    assert [record["failures"] for record in records] == [[]] * 6
    for record in records:
        if record["lineup"] == "smollm2":
            told = record["reports"]["agent"]
            assert told["model"] == "SmolLM2-135M-Instruct"
            assert told["answers"] == told["decisions"] == record["length"]
            assert told["tokens_in"] > 100
            assert told["invalid"] == 0, "the server allows legal actions only"
    assert len({record["env_seed"] for record in records}) == 2, "all operators meet the same worlds"
    calls = sum(value for name, value in counters_of(stack).items() if "local" in name and name.endswith(".calls"))
    asked = [record["reports"]["agent"]["answers"] for record in records if record["lineup"] == "smollm2"]
    assert 0 < calls <= sum(asked), "equal questions of one episode are asked once"


def test_a_real_model_plays_tictactoe_against_a_ppo_checkpoint_and_other_kinds(stack):
    config = {
        "algorithm": "PPO",
        "env_id": "tictactoe_v3",
        "policy_configuration": "SELF_PLAY",
        "total_timesteps": 300,
        "num_workers": 0,
        "network": {"fcnet_hiddens": [16]},
        "algo_params": {"train_batch_size_per_learner": 100, "minibatch_size": 50, "num_epochs": 1},
        "seed": 1,
    }
    run = stack.submit(name="board", worker="ray", config=config, resources={"cpus": 1, "memory_mb": 2048})
    state = stack.wait_final(run, DEADLINE_S)
    assert state.state == "succeeded", state.reason
    operators = {
        "smollm2": SMOLLM,
        "ppo": {"worker": "ray", "checkpoint": "run:board@last"},
        "random": {"worker": "random"},
    }
    records = play(stack, "tictactoe", environment={"id": "tictactoe_v3"}, operators=operators, episodes=1)
    assert {record["lineup"] for record in records} == {f"{a}-vs-{b}" for a, b in permutations(operators, 2)}
    assert [(record["ended"], record["failures"]) for record in records] == [("terminated", [])] * 6
    for record in records:
        seats = dict(zip(record["lineup"].split("-vs-"), ("player_1", "player_2"), strict=True))
        assert ("ppo" in record["numerics"]) == ("ppo" in seats)
        if "smollm2" in seats:
            told = record["reports"][seats["smollm2"]]
            assert told["model"] == "SmolLM2-135M-Instruct"
            assert told["answers"] == told["decisions"] >= 2
            assert told["invalid"] == 0, "the server allows legal moves only"


def test_the_key_is_in_no_file_argument_or_message_and_a_rerun_makes_no_call(stack, server):
    where = {"endpoint": "vllm", "base_url": server["address"], "key_env": "CHAT_KEY"}
    operators = {
        "good": {"worker": "llm", "config": {**where, "model": "good"}},
        "unknown": {"worker": "llm", "config": {**where, "model": "unknown-1"}},
    }
    heard = stack.bus.subscribe("", max_queue=100_000)
    with command_lines() as seen:
        play(stack, "first", environment=GRID, operators=operators, episodes=3, steps=True)
    assert any("llm_worker.cli" in each for each in seen), "the operator was looked at while it ran"
    assert [each for each in seen if KEY in each] == []
    asked = requests_of(server)
    assert asked >= 9
    play(stack, "again", environment=GRID, operators={"good": operators["good"]}, episodes=3)
    assert requests_of(server) == asked
    good = [line for line in episodes_of(stack, "first").splitlines() if json.loads(line)["lineup"] == "good"]
    assert episodes_of(stack, "again").splitlines() == good
    shown = {name: value for name, value in counters_of(stack).items() if "local" not in name}
    assert sum(value for name, value in shown.items() if name.endswith(".calls")) == asked
    stack.bus.request("operator", WriteReport(experiment="first"), timeout=60)
    report = stack.home.experiments / "first" / "report" / "index.html"
    wait_until("the report is written", report.exists, DEADLINE_S)
    secret, messages = KEY.encode(), 0
    stack.bus.unsubscribe(heard)
    while (message := stack.bus.wait_for(heard, DEADLINE_S)) is not None:  # at once: what is left, then the end
        messages += 1
        assert secret not in repr(message).encode()
        assert all(secret not in bytes(part) for part in message.buffers)
    assert messages > 10
    assert heard.dropped == 0
    files = [path for path in stack.home.path.rglob("*") if path.is_file()]
    assert report in files
    assert [str(path) for path in files if secret in path.read_bytes()] == []


@contextmanager
def command_lines() -> Iterator[set[str]]:
    """Gather the command lines of all processes that run meanwhile."""
    seen: set[str] = set()
    over = threading.Event()

    def look() -> None:
        while not over.wait(LOOK_S):
            seen.update(" ".join(_cmdline(process)) for process in psutil.process_iter())

    with ThreadPoolExecutor(1) as pool:
        looking = pool.submit(look)
        try:
            yield seen
        finally:
            over.set()
        looking.result()


def _cmdline(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []
