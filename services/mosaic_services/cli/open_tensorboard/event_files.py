"""Writes TensorBoard event files from JSON lines on stdin. Runs where TensorBoard is installed; imports no MOSAIC."""

import json
import sys
from pathlib import Path


def main() -> None:
    """Each line is {run, tag, points: [[step, value, time or null], …]}; the argument is the folder to write."""
    from tensorboard.compat.proto.event_pb2 import Event  # noqa: PLC0415 - only where it is installed
    from tensorboard.compat.proto.summary_pb2 import Summary  # noqa: PLC0415 - as above
    from tensorboard.summary.writer.event_file_writer import EventFileWriter  # noqa: PLC0415 - as above

    writers = {}
    for line in sys.stdin:
        curve = json.loads(line)
        if curve["run"] not in writers:
            writers[curve["run"]] = EventFileWriter(str(Path(sys.argv[1]) / curve["run"].replace("/", "-")))
        for step, value, at in curve["points"]:
            summary = Summary(value=[Summary.Value(tag=curve["tag"], simple_value=value)])
            writers[curve["run"]].add_event(Event(wall_time=at or 0.0, step=step, summary=summary))
    for writer in writers.values():
        writer.close()


if __name__ == "__main__":
    main()
