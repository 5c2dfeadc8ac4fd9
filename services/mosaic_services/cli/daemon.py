"""`mosaic up --detach`: the same stack in a session of its own; we return when it is ready."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import orjson

from mosaic_services.cli.errors import CliError

if TYPE_CHECKING:
    from mosaic_bus import Home

__all__ = ["start_daemon"]


def start_daemon(home: Home, arguments: list[str], *, quiet: bool) -> dict[str, Any]:
    """Start `mosaic up` in the background and return what it says of itself once it is ready."""
    log_path = home.logs / "up.log"
    read, write = os.pipe()
    with log_path.open("ab") as log:
        log.write(f"— mosaic up, {time.strftime('%Y-%m-%d %H:%M:%S')}\n".encode())
        log.flush()
        process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "mosaic_services.cli",
                "up",
                "--home",
                str(home.path),
                *arguments,
                "--notify-fd",
                str(write),
            ],
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
                    raise CliError(document["error"], document["hint"], code=document["code"])
                if not quiet:
                    print(f"  ✓ {document['step']}", flush=True)
    except KeyboardInterrupt:
        process.send_signal(signal.SIGTERM)
        process.wait()
        raise
    code = process.wait()
    said = [line for line in log_path.read_text(errors="replace").splitlines()[-10:] if not line.startswith("— ")]
    if said and said[0].startswith("error: "):
        raise CliError(said[0].removeprefix("error: "), "\n".join(line.strip() for line in said[1:]), code=code)
    raise CliError(f"the stack ended while starting (exit {code})", f"end of {log_path}:\n" + "\n".join(said))
