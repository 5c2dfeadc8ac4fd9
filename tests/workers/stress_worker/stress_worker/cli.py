"""Everything the stress worker does."""

import base64
import json
import os
import signal
import subprocess
import sys
import time
import zlib
from pathlib import Path
from typing import Any, Literal, NoReturn

from pydantic import Field

from mosaic_worker.cli import run_worker
from mosaic_worker.config import InputPath, WorkerConfig
from mosaic_worker.context import RunContext
from stress_worker import get_worker_metadata


class StressConfig(WorkerConfig):
    """What to do, in this order: raw lines, log lines, memory, grandchildren, pictures, events, then end as asked."""

    raw: list[str] = Field(default_factory=list, description="base64 of bytes to write to stdout as they are")
    long_line: int = Field(default=0, ge=0, description="bytes of one long line to write to stdout")
    log_lines: int = Field(default=0, ge=0, description="lines to write to stderr")
    allocate_mb: int = Field(default=0, ge=0, description="memory to fill and keep, in MiB")
    grandchildren: int = Field(default=0, ge=0, description="processes to start in new sessions that ignore SIGTERM")
    frames: int = Field(default=0, ge=0, description="pictures to publish in each stream")
    fastlane_video_mode: Literal["single", "off"] = Field(default="off", description="only tells that there are some")
    frames_after_s: float = Field(default=0, ge=0, description="time until the first one")
    frame_rate: float = Field(default=20, gt=0, description="pictures per second")
    frame_shape: tuple[int, ...] = Field(default=(120, 160, 3), description="of each picture")
    frame_streams: tuple[str, ...] = ("main",)
    frames_by_child: bool = Field(default=False, description="publish them from a process of their own, meanwhile")
    events: int = Field(default=0, ge=0, description="step events to emit")
    rate: float | None = Field(default=None, gt=0, description="events per second; flat out if not given")
    episode_steps: int = Field(default=0, ge=0, description="steps of an episode; 0: none are reported")
    checkpoint_every: int = Field(default=0, ge=0, description="steps between two checkpoints; 0: none are saved")
    models: tuple[InputPath, ...] = Field(default=(), description="checkpoints to read; their steps are in the result")
    fail_at_step: int | None = Field(default=None, ge=0, description="crash here, unless it goes on from a checkpoint")
    ask_used: list[dict[str, Any]] = Field(
        default_factory=list, description="requests to send to a process of each environment that the run uses"
    )
    exit_code: int | None = Field(default=None, ge=0, le=255, description="crash or end with this code, without a word")
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
    held = bytearray(b"x") * (config.allocate_mb * 2**20)
    for _ in range(config.grandchildren):
        code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(1000)"
        subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
    if config.ask_used:
        ask_used(context)
    publish_frames(context)
    emit_steps(context)
    if config.exit_code is not None:
        os._exit(config.exit_code)
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
    steps = [json.loads(Path(each).read_text())["step"] for each in config.models]
    return {"events": config.events, "held_mb": len(held) // 2**20, "models": steps}


def ask_used(context: RunContext[StressConfig]) -> None:
    """Start a process in each environment that the run uses, as `worker.json` says, and report what it answers."""
    document = json.loads((context.run_dir / "worker.json").read_text())
    requests = "".join(json.dumps(each) + "\n" for each in context.config.ask_used)
    for use in document["uses"]:
        own = context.run_dir / f"{use['worker']}-{use['profile']}.json"
        own.write_text(json.dumps({"run_id": document["run_id"]}))
        answered = subprocess.run(
            [*use["argv"], "--config", str(own), "--interactive"],
            input=requests,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **use["environ"]},
            check=True,
        )
        for line in answered.stdout.splitlines():
            context.emitter.emit("used", worker=use["worker"], profile=use["profile"], answer=json.loads(line))


def emit_steps(context: RunContext[StressConfig]) -> None:
    """Emit step events of about 180 bytes each, in the shape that a training loop would emit."""
    config, step = context.config, context.emitter.step
    info = {"x": 0.0123456789, "note": "of the usual size"}
    started = time.monotonic()
    look_up_every = 10 if config.rate else 200
    first = first_step(context)
    for number in range(first, config.events):
        if number == config.fail_at_step and context.resume is None:
            if config.exit_code is not None:
                os._exit(config.exit_code)
            raise RuntimeError(f"loss is NaN at step {number}")
        step(number, episode=number // 200, reward=1.0, terminated=False, truncated=False, action=number & 1, info=info)
        if config.episode_steps and (number + 1) % config.episode_steps == 0:
            context.emitter.episode(
                number // config.episode_steps, config.episode_steps, length=config.episode_steps, step=number
            )
        if config.checkpoint_every and (number + 1) % config.checkpoint_every == 0:
            save_checkpoint(context, number + 1)
        if number % look_up_every == 0:
            if context.stop.requested:
                context.stop.check()
            if config.rate and (ahead := started + (number - first) / config.rate - time.monotonic()) > 0:
                time.sleep(ahead)


def publish_frames(context: RunContext[StressConfig]) -> None:
    """Publish pictures that carry a checksum of themselves, here or from a child."""
    config, folder = context.config, os.environ.get("MOSAIC_FASTLANE_DIR")
    if not config.frames or not folder:
        return
    if config.frames_by_child and os.fork():
        return
    from mosaic_worker.frames.ring import (
        FrameWriter,  # numpy takes a moment, which runs without pictures are to be spared
    )

    time.sleep(config.frames_after_s)
    writers = [FrameWriter(folder, stream) for stream in config.frame_streams]
    for number in range(config.frames):
        for writer in writers:
            writer.write(marked(number, config.frame_shape), step=number, episode=number // 10, last_reward=1.5)
        time.sleep(1 / config.frame_rate)
        if context.stop.requested:
            break
    if config.frames_by_child:
        time.sleep(1000)
    context.stop.check()


def marked(number: int, shape: tuple[int, ...]) -> Any:
    """A grey picture with its number and, in the first four bytes, the checksum of the rest."""
    import numpy as np

    picture = np.full(shape, number % 251, np.uint8)
    flat = picture.reshape(-1)
    flat[4:12] = np.frombuffer(np.uint64(number).tobytes(), np.uint8)
    flat[:4] = np.frombuffer(zlib.crc32(flat[4:]).to_bytes(4, "little"), np.uint8)
    return picture


def first_step(context: RunContext[StressConfig]) -> int:
    """The step to begin with: 0, or the one after the checkpoint."""
    if context.resume is None:
        return 0
    found = int(json.loads(context.resume.path.read_text())["step"])
    context.emitter.checkpoint_loaded(context.resume.path, step=found)
    return found


def save_checkpoint(context: RunContext[StressConfig], step: int) -> None:
    """Save that the next step is `step`, and say so."""
    path = Path("checkpoints") / f"{step}.json"
    (context.run_dir / "checkpoints").mkdir(exist_ok=True)
    (context.run_dir / path).write_text(json.dumps({"step": step}))
    context.emitter.checkpoint_saved(path, step=step)


def main() -> NoReturn:
    """Entry point."""
    run_worker(get_worker_metadata(), run=run)


if __name__ == "__main__":
    main()
