"""The commands that a supervisor answers."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import Base64Bytes, Field, field_validator

from mosaic_bus.commands.common import Ack, Command, Query
from mosaic_bus.messages import AttemptNumber, Checkpoint, FrameHandle, Input, Model, RunId, RunSpec, StreamKind, Whole

__all__ = [
    "MAX_TELL_BYTES",
    "Describe",
    "Description",
    "Detach",
    "DiskUse",
    "DiskUseResult",
    "FileChunk",
    "FileEntry",
    "Files",
    "FilesResult",
    "Forget",
    "FrameStream",
    "FrameStreams",
    "FrameStreamsResult",
    "Install",
    "PauseRun",
    "Place",
    "ReadFile",
    "RemoveFiles",
    "Resend",
    "Scripts",
    "ScriptsResult",
    "ShellScript",
    "Stop",
    "Tell",
    "WatchFrames",
    "WatchFramesResult",
]


# Longest line that `tell` takes, without its newline. A line is written to the worker's stdin whole or not at all.
MAX_TELL_BYTES = 64 * 1024 - 1


class Place(Command[Ack]):
    """Start an attempt on this host; the same (run, attempt) twice is one attempt.

    Refused with `unknown_worker`, `unknown_profile`, `unusable_environment`, `invalid_arguments`, `already_ended`,
    `missing_file` (a checkpoint of `inputs` is gone), and for now with `host_unavailable` (such as a full disk) and
    `stopping`.
    """

    name: ClassVar[str] = "place"
    internal: ClassVar[bool] = True
    result: ClassVar[type[Model]] = Ack
    run: RunId
    attempt: AttemptNumber
    run_name: str
    spec: RunSpec
    gpus: dict[str, float] = Field(default_factory=dict, description="id of each GPU of the attempt -> its share")
    resume: Checkpoint | None = Field(
        default=None, description="checkpoint to resume from, if the worker can and the file exists"
    )
    inputs: tuple[Input, ...] = Field(
        default=(), description="checkpoints whose paths replace the references in the config"
    )


class Stop(Command[Ack]):
    """Send SIGTERM to an attempt, and SIGKILL after its grace period. An attempt that is not here counts as stopped."""

    name: ClassVar[str] = "stop"
    internal: ClassVar[bool] = True
    result: ClassVar[type[Model]] = Ack
    run: RunId
    attempt: AttemptNumber
    reason: str


class Tell(Command[Ack]):
    """Write a line to the stdin of an interactive attempt. The worker's answer is an event in its journal.

    A line is at most 65,535 bytes of UTF-8. The pipe holds 256 KiB; while the worker reads, 92 KiB may wait there for
    any line to fit. Refused with `unknown_attempt`, `not_interactive`, `not_started`, `already_ended`, and with
    `not_reading` if the pipe has no room for the whole line. If the supervisor is killed before it has acknowledged a
    line, and the line is sent again, the worker may read it twice.
    """

    name: ClassVar[str] = "tell"
    result: ClassVar[type[Model]] = Ack
    run: RunId
    attempt: AttemptNumber
    line: str = Field(min_length=1, description="without a newline")

    @field_validator("line")
    @classmethod
    def _is_one_line(cls, line: str) -> str:
        if "\n" in line:
            raise ValueError("a line has no newline in it")
        if (length := len(line.encode())) > MAX_TELL_BYTES:
            raise ValueError(f"a line has at most {MAX_TELL_BYTES} bytes, not {length}")
        return line


class PauseRun(Command[Ack]):
    """Let the worker of an attempt pause, or go on: it is sent SIGUSR1 or SIGUSR2. It pauses where it can continue.

    Refused with `unknown_attempt`, `already_ended`, and with `not_pausable` if the worker does not handle the signal.
    """

    name: ClassVar[str] = "pause_run"
    result: ClassVar[type[Model]] = Ack
    run: RunId
    attempt: AttemptNumber
    paused: bool


class Forget(Command[Ack]):
    """The scheduler has recorded how this attempt ended: stop reporting it."""

    name: ClassVar[str] = "forget"
    internal: ClassVar[bool] = True
    result: ClassVar[type[Model]] = Ack
    run: RunId
    attempt: AttemptNumber


class Resend(Command[Ack]):
    """Publish a stream again on `repair.<run>.`, from a position. Refused with `unknown_stream`."""

    name: ClassVar[str] = "resend"
    internal: ClassVar[bool] = True
    result: ClassVar[type[Model]] = Ack
    run: RunId
    attempt: AttemptNumber
    kind: StreamKind
    number: Whole = Field(ge=0)
    offset: Whole = Field(ge=0)


class Description(Model):
    """An installed worker's description of itself."""

    worker: str
    profile: str
    status: str
    metadata: dict[str, Any]
    capabilities: dict[str, Any]
    config_schema: dict[str, Any]
    example_config: dict[str, Any]
    algorithms: list[dict[str, Any]] = Field(
        default_factory=list, description="each algorithm, whether it runs there, and its hyperparameters"
    )
    environments: list[str] = Field(
        default_factory=list, description="ids that `env_id` of a config may have; empty if the worker does not say"
    )


class Describe(Query[Description]):
    """Describe an installed worker. Refused with `unknown_worker`, `unknown_profile`, `not_installed`."""

    name: ClassVar[str] = "describe"
    result: ClassVar[type[Model]] = Description
    worker: str = Field(pattern=r"^[a-z0-9_-]+$")
    profile: str = "default"


class Detach(Command[Ack]):
    """Leave the runs going when the supervisor ends; the next one adopts them."""

    name: ClassVar[str] = "detach"
    internal: ClassVar[bool] = True
    result: ClassVar[type[Model]] = Ack


class FrameStream(Model):
    """One frame stream of a run."""

    newest: FrameHandle
    published: Whole = Field(description="frames so far")
    fps: float = Field(description="frames per second, over the last two seconds")
    writer: Literal["live", "closed", "dead", "ended"] = Field(
        description="whether more frames may come: `dead` if the process is gone, `ended` if the attempt has ended"
    )


class FrameStreamsResult(Model):
    """The frame streams of the newest attempt on this host; their last state if it has ended."""

    streams: list[FrameStream]


class FrameStreams(Query[FrameStreamsResult]):
    """List the frame streams of a run on this host. Refused with `unknown_run`."""

    name: ClassVar[str] = "frame_streams"
    result: ClassVar[type[Model]] = FrameStreamsResult
    run: RunId


class WatchFramesResult(Model):
    """The topic of the pictures, and for how many seconds they come. Ask again before that to extend it."""

    topic: str
    lease_s: float


class WatchFrames(Command[WatchFramesResult]):
    """Publish a run's frames as JPEG pictures, for readers on other machines. Refused with `unknown_run`."""

    name: ClassVar[str] = "watch_frames"
    result: ClassVar[type[Model]] = WatchFramesResult
    run: RunId
    stream: str | None = Field(default=None, description="all streams if left out")
    max_dim: Whole = Field(default=640, ge=16, le=4096, description="maximum width and height in pixels")
    quality: Whole = Field(default=80, ge=1, le=95, description="of the JPEG")


class Install(Command[Ack]):
    """Build the environment of a worker, if it is not installed; `build.<host>.` tells the progress.

    Refused with `unknown_worker`, `unknown_profile`, `unusable_environment`.
    """

    name: ClassVar[str] = "install"
    result: ClassVar[type[Model]] = Ack
    worker: str = Field(pattern=r"^[a-z0-9_-]+$")
    profile: str = "default"


class ShellScript(Model):
    """A shell script on a host, as its comments describe it."""

    path: str = Field(description="absolute")
    description: str = Field(default="", description="of its comment `# @description`")
    phases: list[str] = Field(default_factory=list, description="of `# @phases`: names, or a number")
    total_timesteps: Whole | None = Field(default=None, description="of `# @total_timesteps`")


class ScriptsResult(Model):
    """The shell scripts of a folder, in the order of their names."""

    folder: str
    scripts: list[ShellScript]


class Scripts(Command[ScriptsResult]):
    """List the shell scripts (`*.sh`) of a folder of this host, for workers that run scripts.

    Not a query: only an owner may look into folders. Refused with `unknown_file`.
    """

    name: ClassVar[str] = "scripts"
    result: ClassVar[type[Model]] = ScriptsResult
    folder: str = Field(default="", max_length=4096, description="absolute; `scripts` in the stack's home if left out")


class FileEntry(Model):
    """A file of a run."""

    path: str = Field(description="relative to the run's folder: `1/log.txt` is the log of attempt 1")
    bytes: Whole
    modified_at: float


class FilesResult(Model):
    """The files of a run on this host, in the order of their paths; links are left out, since none is followed."""

    files: list[FileEntry]
    more: bool = Field(default=False, description="there are more than were asked for")


class Files(Query[FilesResult]):
    """List the files of a run on this host. Refused with `unknown_run`."""

    name: ClassVar[str] = "files"
    result: ClassVar[type[Model]] = FilesResult
    run: RunId
    limit: Whole = Field(default=1000, ge=1, le=10_000)


class FileChunk(Model):
    """A part of a file."""

    data: Base64Bytes
    bytes: Whole = Field(description="size of the whole file")
    modified_at: float


class ReadFile(Query[FileChunk]):
    """Read a part of a file of a run. No link is followed, and no file is opened that holds the config.

    Refused with `unknown_run`, `unknown_file`.
    """

    name: ClassVar[str] = "read_file"
    result: ClassVar[type[Model]] = FileChunk
    run: RunId
    path: str = Field(min_length=1, max_length=4096, description="as `files` gives it")
    start: Whole = Field(default=0, ge=0, lt=2**62)
    limit: Whole = Field(default=1024 * 1024, ge=1, le=4 * 1024 * 1024, description="maximum number of bytes")


class DiskUseResult(Model):
    """Bytes by run."""

    runs: dict[str, int]


class DiskUse(Query[DiskUseResult]):
    """Bytes that the folders of runs take on this host; runs that it does not have are left out."""

    name: ClassVar[str] = "disk_use"
    result: ClassVar[type[Model]] = DiskUseResult
    runs: list[RunId] = Field(min_length=1, max_length=1000)


class RemoveFiles(Command[Ack]):
    """Delete the folder of a run that has ended. Refused with `not_final`."""

    name: ClassVar[str] = "remove_files"
    internal: ClassVar[bool] = True
    result: ClassVar[type[Model]] = Ack
    run: RunId
