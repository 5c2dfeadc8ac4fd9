"""Cancel of a real training: it ends by itself, with a checkpoint, also where other programs take all the CPU."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest
from stack import Stack, wait_until

from mosaic_services.environments import build, recipe_for

if TYPE_CHECKING:
    from collections.abc import Iterator

PPO = {"algo": "ppo", "env_id": "CartPole-v1", "total_timesteps": 10_000_000, "seed": 1}
GRACE_S = 60
"""Long enough for a starved machine: what counts is that the worker ends before it is over."""
SLOWER = 10
"""How many times as long a cancel may take beside busy loops: 16 if the interpreter is torn down, 3 as it is."""


@contextlib.contextmanager
def busy_loops() -> Iterator[None]:
    """Keep every core busy, for ten minutes at most."""
    code = "import time; end = time.monotonic() + 600\nwhile time.monotonic() < end: pass"
    loops = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(os.cpu_count() or 2)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def cancel_training(stack: Stack) -> float:
    """Cancel a training in the middle, and see that it ends by itself with a checkpoint; return the seconds it took."""
    run = stack.submit(worker="cleanrl", config=PPO, resources={"cpus": 1, "memory_mb": 512}, grace_s=GRACE_S)
    wait_until("it learns", lambda: stack.journal(run).exists() and '"scalars"' in stack.journal(run).read_text())
    began = time.monotonic()
    stack.cancel(run)
    assert stack.wait_final(run).state == "cancelled"
    took = time.monotonic() - began
    ending = json.loads((stack.home.runs / run / "1" / "exit.json").read_text())
    assert (ending["code"], ending["signal"]) == (143, None)
    events = [json.loads(line) for line in stack.journal(run).read_text().splitlines()]
    assert events[-1]["event"] == "run_cancelled"
    (saved,) = [each for each in events[-3:] if each["event"] == "checkpoint_saved"]
    assert (stack.home.runs / run / "1" / saved["path"]).is_file()
    return took


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_cancelled_training_ends_by_itself_on_a_busy_machine(tmp_path):
    with Stack(tmp_path / "home") as stack:
        build(recipe_for("cleanrl", stack.home), "default", lambda _step, _percent: None)
        idle = min(cancel_training(stack) for _ in range(3))
        with busy_loops():
            busy = min(cancel_training(stack) for _ in range(3))
    assert busy < SLOWER * idle, f"{busy:.2f} s with busy loops, {idle:.2f} s without"
    assert stack.leftovers() == []
