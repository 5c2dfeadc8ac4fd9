"""A stack in the background: starts it in a session of its own and returns when it is ready."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import time
from typing import TYPE_CHECKING, Any

import orjson

from mosaic_services.stack.errors import FAILED, StackError

if TYPE_CHECKING:
    from collections.abc import Callable

    from mosaic_services.home import StackHome

__all__ = ["start_daemon"]

_LAST_LINES = 10


def start_daemon(home: StackHome, command: list[str], step: Callable[[str], None]) -> dict[str, Any]:
    """Run a command that starts a stack, in the background; return what it reports once the stack is ready.

    The command is given `--notify-fd N`. To that descriptor it writes JSON lines: {"step": name} for each service that
    answers, then {"ready": facts} or {"error": …, "hint": …, "code": …}.
    """
    log_path = home.logs / "up.log"
    read, write = os.pipe()
    with log_path.open("ab") as log:
        log.write(f"— mosaic up, {time.strftime('%Y-%m-%d %H:%M:%S')}\n".encode())
        log.flush()
        begin = log.tell()
        process = subprocess.Popen(
            [*command, "--notify-fd", str(write)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            pass_fds=(write,),
        )
    os.close(write)
    try:
        with os.fdopen(read, "rb") as news:
            for line in news:
                document = orjson.loads(line)
                if "ready" in document:
                    return dict(document["ready"])
                if "error" in document:
                    process.wait()
                    raise StackError(document["error"], document["hint"], code=document["code"])
                step(document["step"])
    except KeyboardInterrupt:
        process.send_signal(signal.SIGTERM)
        process.wait()
        raise
    code = process.wait()
    said = log_path.read_bytes()[begin:].decode(errors="replace").splitlines()
    # A stack that already runs may write to the same log; its lines start with the time, errors do not.
    if errors := [number for number, line in enumerate(said) if line.startswith("error: ")]:
        message, *rest = said[errors[-1] :]
        hint = [line.strip() for line in itertools.takewhile(lambda line: line.startswith(" "), rest)]
        raise StackError(message.removeprefix("error: "), "\n".join(hint), code=max(code, FAILED))
    end = "\n".join(said[-_LAST_LINES:])
    raise StackError(
        f"the stack ended while starting (exit {code})", f"end of {log_path}:\n{end}", code=max(code, FAILED)
    )
