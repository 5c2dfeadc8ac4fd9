"""The keeper of a run's own Ray cluster: a process that starts Ray in a session of its own, and ends that session.

`python -m ray_worker.keeper '{"num_cpus": 2, …}'` writes the cluster's address, or what went wrong, as one JSON line.
Its stdin is a pipe from the driver. When the pipe ends, in whatever way the driver died, the keeper kills every process
of its session, and with them all of Ray, and removes Ray's temporary folder. Ray's own clean-up is not enough: after a
SIGKILL of the driver its agents last for a minute, and `ray stop` would end every Ray of the user.
"""

import contextlib
import json
import os
import shutil
import signal
import sys
import time
from pathlib import Path

__all__ = ["DONE", "LOGS", "end_session", "main"]

DONE = b"done"
"""What the driver writes before it closes the pipe if its run ended well; Ray's logs are then removed, too."""
LOGS = "ray_logs"
"""Where Ray's logs are kept otherwise, in the run's folder."""
_SESSION_FIELD = 3
"""Place of the session id in /proc/PID/stat, counted after the name."""
_LONGEST_S = 20.0
"""Deadline for killed processes to disappear."""


def main() -> int:
    """Start Ray, tell its address, wait for the driver to end, and end Ray."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # The pipe says when to end.
    settings = json.loads(sys.argv[1])
    folder, link = Path(settings["folder"]), Path(settings["link"])
    journal = os.dup(1)
    os.dup2(2, 1)  # Whatever Ray prints belongs into the run's log.
    is_well = False
    try:
        os.write(journal, json.dumps(_start(settings, link)).encode() + b"\n")
        os.close(journal)
        is_well = _wait() == DONE
    except OSError:
        pass  # The driver has gone already.
    finally:
        end_session(os.getsid(0), spare=os.getpid())
        _tidy(folder, link, keep_logs=not is_well)
    os._exit(0)  # Ray's own exit handlers would wait for processes that are gone.


def _start(settings: dict[str, object], link: Path) -> dict[str, str]:
    import ray  # noqa: PLC0415 - takes a second, and may fail

    try:
        ray.init(
            address="local",
            num_cpus=settings["num_cpus"],
            num_gpus=settings["num_gpus"],
            object_store_memory=settings["object_store_bytes"],
            include_dashboard=False,
            log_to_driver=False,
            configure_logging=False,
            _temp_dir=str(link),
        )
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # Ray has set its own.
    return {"address": ray.get_runtime_context().gcs_address}


def _wait() -> bytes:
    """Return what the driver wrote before its end of the pipe was closed."""
    said = b""
    while part := os.read(0, 64):
        said += part
    return said


def end_session(session: int, spare: int = 0) -> None:
    """Kill every process of a session but one, and wait until they are gone."""
    end = time.monotonic() + _LONGEST_S
    while (found := _members(session) - {spare}) and time.monotonic() < end:
        for pid in found:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)


def _members(session: int) -> set[int]:
    found = set()
    for process in Path("/proc").iterdir():
        if process.name.isdecimal():
            with contextlib.suppress(OSError, ValueError, IndexError):
                fields = (process / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()
                if int(fields[_SESSION_FIELD]) == session and fields[0] != "Z":
                    found.add(int(process.name))
    return found


def _tidy(folder: Path, link: Path, *, keep_logs: bool) -> None:
    """Remove Ray's temporary folder and the link to it; keep the logs of a run that did not end well."""
    with contextlib.suppress(OSError):
        link.unlink()
    if keep_logs:
        for logs in folder.glob("session_2*/logs"):
            with contextlib.suppress(OSError):
                shutil.move(logs, folder.parent / LOGS)
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
