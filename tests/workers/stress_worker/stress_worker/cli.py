"""Everything the stress worker does."""

import base64
import os
import signal
import subprocess
import sys
import time
from typing import Any, Literal

from pydantic import Field

from mosaic_worker.cli import run_worker
from mosaic_worker.config import WorkerConfig
from mosaic_worker.context import RunContext
from stress_worker import get_worker_metadata


class StressConfig(WorkerConfig):
    """What to do, in this order: raw lines, log lines, grandchildren, events, then end as asked."""

    raw: list[str] = Field(default_factory=list, description="base64 of bytes to write to stdout as they are")
    long_line: int = Field(default=0, ge=0, description="bytes of one long line to write to stdout")
    log_lines: int = Field(default=0, ge=0, description="lines to write to stderr")
    grandchildren: int = Field(default=0, ge=0, description="processes to start in new sessions that ignore SIGTERM")
    events: int = Field(default=0, ge=0, description="step events to emit")
    rate: float | None = Field(default=None, gt=0, description="events per second; flat out if not given")
    end: Literal["complete", "hang", "crash", "silent", "abort", "segfault"] = "complete"
    ignore_sigterm: bool = False


def run(context: RunContext[StressConfig]) -> dict[str, Any]:
    """Do what the configuration says."""
    config, emitter = context.config, context.emitter
    emitter.run_started(
        config.run_id, "stress", config=config.model_dump(), total_steps=config.events, task=f"{config.events} events"
    )
    if config.ignore_sigterm:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    for each in config.raw:
        os.write(emitter.fd, base64.b64decode(each))
    if config.long_line:
        os.write(emitter.fd, b'{"blob":"' + b"x" * (config.long_line - 12) + b'"}\n')
    for number in range(config.log_lines):
        sys.stderr.write(f"log line {number} of a worker that writes a great deal to its standard error stream\n")
    for _ in range(config.grandchildren):
        code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(1000)"
        subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
    emit_steps(context)
    if config.end == "hang":
        while not context.stop.requested:
            time.sleep(0.02)
        context.stop.check()
    elif config.end == "crash":
        raise RuntimeError("loss is NaN at step 40960")
    elif config.end == "silent":
        os._exit(0)
    elif config.end == "abort":
        os._exit(1)
    elif config.end == "segfault":
        os.kill(os.getpid(), signal.SIGSEGV)
    return {"events": config.events}


def emit_steps(context: RunContext[StressConfig]) -> None:
    """Emit step events of about 180 bytes each, in the shape that a training loop would emit."""
    config, step = context.config, context.emitter.step
    info = {"x": 0.0123456789, "note": "of the usual size"}
    started = time.monotonic()
    look_up_every = 10 if config.rate else 200
    for number in range(config.events):
        step(number, episode=number // 200, reward=1.0, terminated=False, truncated=False, action=number & 1, info=info)
        if number % look_up_every == 0:
            if context.stop.requested:
                context.stop.check()
            if config.rate and (ahead := started + number / config.rate - time.monotonic()) > 0:
                time.sleep(ahead)


def main() -> int:
    """Entry point."""
    return run_worker(get_worker_metadata(), run=run)


if __name__ == "__main__":
    sys.exit(main())
