"""What a client that asks little waits while another floods the stack.

Method. One stack of real services, whose store has 300 runs with 200 episodes each. One client asks telemetry for the
summaries of 50 runs and the scheduler for a list of runs in turn, with a pause of 20 ms after each answer. It does so
first alone, then beside one flood after the other, each from a process of its own that starts a second before:
- summaries, series, runs: queries of telemetry and scheduler, without waiting for answers, as fast as they can be sent.
- commands: `cancel` of a run that does not exist, likewise.
- subscriptions: more topics than a connection may have; once it is closed, again with the next one.
- connections: new ones on both sockets as fast as they can be opened, of which 500 stay open.
`p50` and `p99` are milliseconds from request to answer; `refused` is what the services counted of the flood: queries
refused with `busy`, connections closed for their subscriptions, connections refused.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests" / "support"))

from floods import FLOODS, ask, fill, flood, percentile, refused  # noqa: E402 - the path is set just above
from stack import Stack  # noqa: E402 - as above


def main() -> None:
    """Run the bench."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=400, help="requests per flood")
    parser.add_argument("--floods", nargs="+", default=list(FLOODS), choices=FLOODS, help="which floods")
    arguments = parser.parse_args()
    result: dict[str, dict[str, object]] = {}
    with tempfile.TemporaryDirectory(prefix="mosaic-bench-") as scratch:
        stack = Stack(Path(scratch) / "home")
        runs = fill(stack.home, 300)

        def measure(name: str) -> None:
            before = refused(stack.bus)
            took = ask(stack.bus, arguments.requests)
            counted = {what: count - before[what] for what, count in refused(stack.bus).items() if count > before[what]}
            result[name] = {"p50": round(percentile(took, 0.5), 1), "p99": round(percentile(took, 0.99), 1)}
            result[name] |= {"max": round(took[-1], 1), "refused": counted}
            print(f"{name}: {result[name]}", file=sys.stderr, flush=True)

        with stack:
            ask(stack.bus, 20)
            measure("alone")
            for kind in arguments.floods:
                with flood(kind, stack.home, runs[0]):
                    time.sleep(1)
                    measure(kind)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
