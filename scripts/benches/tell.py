"""How long a line to a running worker, and its answer, are on their way.

Method. One stack of real services on this machine, and one interactive run of the baseline worker on CartPole-v1. A
client that subscribes to the run's journal sends `tell` with a `step` (or a `reset`, when an episode is over) to the
supervisor, and waits for the live event that answers it before it sends the next. The clock runs from before `tell` to
when the client has parsed the answer. `idle` sends one request every 200 ms, so that everything on the way sleeps in
between; `busy` sends the next request at once. `ping_ms_p50` is the same conversation by `ping`, a command that the
supervisor answers itself: the part of the time that two trips over the bus take. p50 and p99 are over all requests.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests" / "support"))

from stack import HOST, Stack  # noqa: E402 - the path is set just above

from mosaic_bus import topics  # noqa: E402 - as above
from mosaic_bus.commands import Ping, Tell  # noqa: E402 - as above
from mosaic_services.environments import build, recipe_for  # noqa: E402 - as above

if TYPE_CHECKING:
    from collections.abc import Callable

SUPERVISOR = topics.supervisor(HOST)
IDLE_S = 0.2


class Conversation:
    """Requests to a run, each with its answer."""

    def __init__(self, stack: Stack, run: str) -> None:
        self._bus = stack.bus
        self._run = run
        self._heard = self._bus.subscribe(topics.journal(run), max_queue=1000)
        self._number = 0
        self._over = True

    def ask(self) -> None:
        """Have the worker take a step, and wait for the answer."""
        self._number += 1
        request = {"cmd": "reset" if self._over else "step", "id": self._number}
        self._bus.request(SUPERVISOR, Tell(run=self._run, attempt=1, line=json.dumps(request)))
        reply = self._answer()
        self._over = bool(reply.get("terminated") or reply.get("truncated"))

    def ping(self) -> None:
        """Have the supervisor itself answer."""
        self._bus.request(SUPERVISOR, Ping())

    def _answer(self) -> dict[str, Any]:
        while True:
            message = self._bus.wait_for(self._heard, 30)
            if message is None:
                raise SystemExit(f"bench tell: request {self._number} was not answered")
            for event in map(json.loads, message.buffers[0].splitlines()):
                if event["event"] == "reply" and event["id"] == self._number:
                    return event["reply"]  # type: ignore[no-any-return]


def measure(do: Callable[[], None], count: int, pause_s: float) -> list[float]:
    """Milliseconds of each of some calls, sorted."""
    times = []
    for _ in range(count):
        time.sleep(pause_s)
        began = time.perf_counter()
        do()
        times.append(1000 * (time.perf_counter() - began))
    return sorted(times)


def figures(name: str, times: list[float]) -> dict[str, float]:
    """The median and the 99th percentile."""
    p50, p99 = statistics.median(times), times[int(0.99 * (len(times) - 1))]
    return {f"{name}_ms_p50": round(p50, 2), f"{name}_ms_p99": round(p99, 2)}


def main() -> None:
    """Measure, and print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=300, help="of each kind (default: 300)")
    count = parser.parse_args().requests
    with tempfile.TemporaryDirectory() as folder, Stack(Path(folder) / "home") as stack:
        build(recipe_for("baseline", stack.home), "default", lambda step, _: print(step, file=sys.stderr))
        run = stack.submit(worker="baseline", interactive=True, config={"env_id": "CartPole-v1"})
        stack.wait_state(run, "running")
        conversation = Conversation(stack, run)
        measure(conversation.ask, 10, 0.0)
        idle = measure(conversation.ask, count, IDLE_S)
        busy = measure(conversation.ask, count, 0.0)
        ping = measure(conversation.ping, count, 0.0)
        stack.cancel(run)
        stack.wait_final(run)
    result = {**figures("idle", idle), **figures("busy", busy), **figures("ping", ping), "requests": count}
    print(json.dumps({"bench": "tell", **result}))


if __name__ == "__main__":
    main()
