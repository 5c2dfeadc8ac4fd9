"""The yardstick of the telemetry bench: how fast one process that does nothing else loads journals into SQLite.

Method. One thread reads each journal, parses each line with `orjson.loads`, makes a row of it and writes the rows with
`executemany` into the tables of the aggregator (same schema, same index, same pragmas), one transaction for every
5,000 lines. It keeps no positions, no aggregates and no series, checks nothing, and pays nothing for a bus. The
interpreter's garbage collector is off, which makes it harder to reach. The clock runs from opening the first
journal to the last commit; the store is created before.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import time
from itertools import islice
from pathlib import Path

import orjson

from mosaic_services.telemetry.course import NUMBER_BITS
from mosaic_services.telemetry.store import INSERT_EVENT, open_for_writing

LINES_PER_TRANSACTION = 5000


def load(journals: list[Path], store: Path) -> tuple[int, float]:
    """Load journals into a new store; return how many lines there were and how many seconds it took."""
    db = open_for_writing(store)
    gc.disable()
    total = 0
    started = time.perf_counter()
    for stream, journal in enumerate(journals, start=1):
        number = stream << NUMBER_BITS
        with journal.open("rb") as file:
            while lines := list(islice(file, LINES_PER_TRANSACTION)):
                rows = []
                for line in lines:
                    event = orjson.loads(line)
                    rows.append(
                        (
                            number,
                            event["event"],
                            event.get("ts"),
                            event.get("step"),
                            event.get("reward"),
                            line[:-1].decode(),
                        )
                    )
                    number += 1
                db.execute("BEGIN")
                db.executemany(INSERT_EVENT, rows)
                db.execute("COMMIT")
                total += len(lines)
    elapsed = time.perf_counter() - started
    db.close()
    gc.enable()
    return total, elapsed


def main() -> int:
    """Load, and print the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store", type=Path, help="a file that does not exist yet")
    parser.add_argument("journals", type=Path, nargs="+")
    arguments = parser.parse_args()
    if arguments.store.exists():
        print(f"{arguments.store} exists; the ceiling is that of a new store", file=sys.stderr)
        return 2
    lines, seconds = load(arguments.journals, arguments.store)
    print(json.dumps({"lines": lines, "seconds": round(seconds, 4), "per_s": round(lines / seconds, 1)}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
