"""The command line that every worker shares: `run_worker` does everything but the run itself."""

import argparse
import atexit
import contextlib
import dataclasses
import os
import sys
import threading
import traceback
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import mosaic_worker
from mosaic_worker.config import WorkerConfig, parse_config, read_document, with_checkpoint
from mosaic_worker.context import Resume, RunContext
from mosaic_worker.conversation import serve
from mosaic_worker.emitter import Emitter
from mosaic_worker.encoding import encode
from mosaic_worker.errors import ConfigError, InfrastructureError, RunCancelled, StdoutError, WorkerError
from mosaic_worker.heartbeat import Heartbeat
from mosaic_worker.interactive import InteractiveWorker, write_line
from mosaic_worker.metadata import WorkerMetadata
from mosaic_worker.stdout import protect_stdin, protect_stdout
from mosaic_worker.stop import EXIT_STOPPED, Stop

__all__ = ["EXIT_COMPLETED", "EXIT_FAILED", "EXIT_REFUSED", "leave", "run_worker"]

EXIT_COMPLETED = 0
EXIT_FAILED = 1
EXIT_REFUSED = 2
_EXIT_OF = {"run_completed": EXIT_COMPLETED, "run_failed": EXIT_FAILED, "run_cancelled": EXIT_STOPPED}
RUN_DIR = "MOSAIC_RUN_DIR"

Config = TypeVar("Config", bound=WorkerConfig)
Run = Callable[[RunContext[Any]], Mapping[str, Any] | None]
Preflight = Callable[[Any, Resume | None], Mapping[str, Any] | None]
MakeInteractive = Callable[[RunContext[Any]], InteractiveWorker]


def run_worker(
    metadata: WorkerMetadata,
    run: Run,
    interactive: MakeInteractive | None = None,
    argv: Sequence[str] | None = None,
    *,
    raise_in_main: bool = False,
    preflight: Preflight | None = None,
) -> NoReturn:
    """Be a worker's main function: parse `argv`, load the config, run, report how it ended, and end the process.

    `run` emits `run_started` and all other events; it may return a summary, which becomes part of `run_completed`.
    `interactive` makes the object that answers requests, for a worker that has an interactive mode. With
    `raise_in_main` a SIGTERM raises RunCancelled wherever the main thread is; without it `run` asks `stop`.
    `preflight` is given the config, and the checkpoint to resume from or None, at the start of every run and in a dry
    run. It raises ConfigError for what the config model cannot know, such as an environment that is not installed, or
    returns a plan of what will run, which `run` finds as `context.plan`.
    """
    leave(_main(metadata, run, interactive, argv, raise_in_main=raise_in_main, preflight=preflight))


def leave(code: int) -> NoReturn:
    """End this process as `sys.exit` would, but without tearing the interpreter down.

    Threads are joined and exit handlers run, which end child processes and close files. What is left out is the
    destruction of every module, and torch's finalizers, which unregister its operators one by one: they take so much
    CPU time that a stopped worker on a busy machine was killed before it was done.
    """
    with contextlib.suppress(Exception):
        for finalizer, about in list(weakref.finalize._registry.items()):  # type: ignore[attr-defined]  # noqa: SLF001
            if about.func.__module__ == "torch.library":
                finalizer.atexit = False
    with contextlib.suppress(Exception):
        threading._shutdown()  # type: ignore[attr-defined]  # noqa: SLF001 - as the interpreter does
        atexit._run_exitfuncs()  # noqa: SLF001 - as above
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    os._exit(code)


def _main(
    metadata: WorkerMetadata,
    run: Run,
    interactive: MakeInteractive | None,
    argv: Sequence[str] | None,
    *,
    raise_in_main: bool,
    preflight: Preflight | None,
) -> int:
    arguments = _parser(metadata).parse_args(argv)
    try:
        journal = protect_stdout(os.environ)
    except StdoutError as error:
        print(f"mosaic_worker: {error}", file=sys.stderr)
        return EXIT_FAILED
    if arguments.describe:
        os.write(journal, encode(metadata.describe()) + b"\n")
        return EXIT_COMPLETED
    if arguments.config is None:
        print("mosaic_worker: --config PATH is needed (or --describe, --version)", file=sys.stderr)
        return EXIT_REFUSED
    if arguments.dry_run:
        return _dry_run(metadata, arguments.config, journal, preflight)
    if arguments.interactive:
        return _serve(metadata, interactive, arguments.config, journal)
    return _run(metadata, run, interactive, arguments.config, journal, raise_in_main=raise_in_main, preflight=preflight)


def _parser(metadata: WorkerMetadata) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=metadata.name, description=metadata.description)
    version = f"{metadata.name} {metadata.version} (mosaic-worker {mosaic_worker.__version__})"
    parser.add_argument("--config", metavar="PATH", type=Path, help="the run's config, a JSON file, flat or nested")
    parser.add_argument("--dry-run", action="store_true", help="check the config, print what would run, and exit")
    parser.add_argument("--interactive", action="store_true", help="answer JSON requests on stdin")
    parser.add_argument("--describe", action="store_true", help="print metadata and config schema as JSON, and exit")
    parser.add_argument("--version", action="version", version=version)
    return parser


def _dry_run(metadata: WorkerMetadata, path: Path, journal: int, preflight: Preflight | None) -> int:
    """Validate the config and write one JSON line: what would run, or what is wrong."""
    try:
        document = read_document(path)
        config = parse_config(metadata.config_model, document, os.environ)
        plan = preflight(config, _resume(document)) if preflight is not None else None
    except ConfigError as error:
        answer: dict[str, Any] = {"ok": False, "worker": metadata.name, "problems": error.problems}
        print(error, file=sys.stderr)
    else:
        answer = {"ok": True, "worker": metadata.name, "version": metadata.version, "run_id": config.run_id}
        answer["config"] = config.model_dump(mode="json")
        if plan is not None:
            answer["plan"] = plan
    os.write(journal, encode(answer) + b"\n")
    return EXIT_COMPLETED if answer["ok"] else EXIT_REFUSED


def _context(metadata: WorkerMetadata, document: Any, emitter: Emitter, stop: Stop) -> RunContext[WorkerConfig]:
    config = parse_config(metadata.config_model, document, os.environ)
    try:
        run_dir = Path(os.environ.get(RUN_DIR) or Path.cwd()).absolute()
        run_dir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InfrastructureError(f"the run's folder ({RUN_DIR}) cannot be used: {error}") from error
    uses = tuple(document.get("uses") or ()) if "metadata" in document else ()
    resume = _resume(document)
    return RunContext(metadata, config, emitter, stop, run_dir, resume=resume, uses=uses)


def _resume(document: Any) -> Resume | None:
    """Return the checkpoint to resume from; only a nested config has one, beside `metadata`."""
    given = document.get("resume") if "metadata" in document else None
    if given is None:
        return None
    path, step = (given.get("path"), given.get("step")) if isinstance(given, dict) else (None, None)
    if not isinstance(path, str) or not path or not (step is None or (type(step) is int and step >= 0)):
        raise ConfigError(f'resume: {given!r} is not allowed; give {{"path": "…", "step": 3}}')
    return Resume(Path(path), step)


def _run(
    metadata: WorkerMetadata,
    run: Run,
    interactive: MakeInteractive | None,
    path: Path,
    journal: int,
    *,
    raise_in_main: bool,
    preflight: Preflight | None,
) -> int:
    """Run to the end and write the terminal event."""
    emitter = Emitter(journal)
    stop = Stop(emitter, raise_in_main=raise_in_main)
    heartbeat = Heartbeat(emitter)
    try:
        stop.install()
        heartbeat.start()
        document = read_document(path)
        context = _context(metadata, document, emitter, stop)
        if _is_interactive(document):
            stop.raise_in_main = True  # It waits for requests, and has nowhere to ask whether to stop.
            stop.check()  # A signal may have come before that.
            _answer_requests(interactive, context)
            summary = None
        else:
            plan = preflight(context.config, context.resume) if preflight is not None else None
            summary = run(dataclasses.replace(context, plan=plan or {}))
        stop.raise_in_main = False
        if emitter.ended is None:
            if stop.requested:
                raise RunCancelled(stop.reason or "stop requested")
            emitter.run_completed(step=emitter.last_step, summary=summary)
    except BaseException as error:
        stop.raise_in_main = False
        return _report(error, emitter, stop)
    finally:
        heartbeat.stop()
        stop.release()
    return _EXIT_OF[emitter.ended or "run_failed"]


def _is_interactive(document: Any) -> bool:
    """Whether the run answers requests: it stands beside `metadata`, so a flat config has none."""
    return "metadata" in document and document.get("interactive") is True


def _answer_requests(interactive: MakeInteractive | None, context: RunContext[Any]) -> None:
    """Be an interactive run: requests come from stdin, and each reply is an event in the journal."""
    if interactive is None:
        raise ConfigError(f"{context.metadata.name} has no interactive mode")
    config, emitter = context.config, context.emitter
    requests = protect_stdin()
    emitter.run_started(config.run_id, context.metadata.name, config=config.model_dump(mode="json"), task="interactive")
    serve(lambda: interactive(context), requests, emitter.reply)


def _report(error: BaseException, emitter: Emitter, stop: Stop) -> int:
    """Write the terminal event for a run that ended with an exception, and return the exit code."""
    if isinstance(error, RunCancelled | KeyboardInterrupt) or stop.requested:
        # After a stop request anything may fail, since children got the signal too: the run still counts as cancelled.
        if not isinstance(error, RunCancelled | KeyboardInterrupt):
            traceback.print_exception(error)
        reason = stop.reason or str(error) or type(error).__name__
        if emitter.ended is None:
            emitter.run_cancelled(reason=reason, step=emitter.last_step)
        return _EXIT_OF[emitter.ended or "run_cancelled"]
    text = _text_of(error)
    if isinstance(error, ConfigError):
        print(text, file=sys.stderr)
        if emitter.ended is None:
            emitter.run_failed("configuration", text)
        return EXIT_REFUSED
    if isinstance(error, WorkerError) and emitter.ended is None:
        print(text, file=sys.stderr)  # the message says enough; the traceback is in the journal
    else:
        traceback.print_exception(error)
    if emitter.ended is None:
        category = error.category if isinstance(error, WorkerError) else "application"
        trace = "".join(traceback.format_exception(error))
        emitter.run_failed(category, text, traceback=trace, step=emitter.last_step)
    return EXIT_FAILED


def _text_of(error: BaseException) -> str:
    if isinstance(error, WorkerError):
        return str(error)
    if isinstance(error, SystemExit):
        return f"the library ended the process with sys.exit({error.code!r})"
    return f"{type(error).__name__}: {error}"


def _serve(metadata: WorkerMetadata, interactive: MakeInteractive | None, path: Path, journal: int) -> int:
    """Answer requests until told to stop. Interactive mode has no events, so the emitter writes to /dev/null."""
    nowhere = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
    stop = Stop(raise_in_main=True)
    try:
        stop.install()
        if interactive is None:
            raise ConfigError(f"{metadata.name} has no interactive mode")
        document = with_checkpoint(read_document(path), metadata.name, metadata.capabilities.policy_config)
        context = _context(metadata, document, Emitter(nowhere), stop)
        serve(lambda: interactive(context), protect_stdin(), lambda reply: write_line(journal, encode(reply)))
    except RunCancelled:
        return EXIT_STOPPED
    except BrokenPipeError:
        return EXIT_COMPLETED  # the client has gone
    except (Exception, SystemExit) as error:
        refused = isinstance(error, ConfigError)
        print(error if isinstance(error, WorkerError) else traceback.format_exc(), file=sys.stderr)
        os.write(journal, encode({"type": "error", "message": _text_of(error)}) + b"\n")
        return EXIT_REFUSED if refused else EXIT_FAILED
    return EXIT_COMPLETED
