"""What `/proc` says about processes, and their priorities. Like `layout`, the run host loads this module by path."""

import contextlib
import os
from typing import Any

_DEAD = (b"Z", b"X")
_PAGE = os.sysconf("SC_PAGE_SIZE")
_WORKER_NICE = 10


def process_stat(pid: int | str) -> list[bytes]:
    """Return the fields of `/proc/<pid>/stat` after the command: state, parent and so on."""
    with open(f"/proc/{pid}/stat", "rb") as file:
        return file.read().rsplit(b")", 1)[1].split()


def _boot() -> str:
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip()
    except OSError:
        return ""


_BOOT = _boot()


def identity(pid: int) -> dict[str, Any]:
    """Identify a process beyond reuse of its pid: start time in clock ticks since boot, and id of the boot."""
    return {"pid": pid, "start_time": int(process_stat(pid)[19]), "boot": _BOOT}


def is_alive(process: dict[str, Any]) -> bool:
    """Whether the process with this identity still runs."""
    try:
        fields = process_stat(process["pid"])
        same = int(fields[19]) == process["start_time"] and process.get("boot", _BOOT) == _BOOT
        return same and fields[0] not in _DEAD
    except (OSError, ValueError, IndexError, KeyError, TypeError):
        return False


def descendants(root: int) -> dict[int, int]:
    """Return all descendants of a process, each with its resident memory in bytes."""
    children: dict[int, list[int]] = {}
    resident = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError, ValueError, IndexError):
                fields = process_stat(name)
                resident[int(name)] = int(fields[21]) * _PAGE
                children.setdefault(int(fields[1]), []).append(int(name))
    found: dict[int, int] = {}
    queue = [root]
    while queue:
        below = children.get(queue.pop(), [])
        found.update((pid, resident[pid]) for pid in below)
        queue += below
    return found


def fair_share(pid: int, resident: int) -> int:
    """Return the proportional set size of a process in bytes, or `resident` where the system does not tell."""
    try:
        with open(f"/proc/{pid}/smaps_rollup", "rb") as file:
            for line in file:
                if line.startswith(b"Pss:"):
                    return int(line.split()[1]) * 1024
    except (FileNotFoundError, ProcessLookupError):
        return 0
    except OSError:
        pass
    return resident


def lower_priority(nice: int = _WORKER_NICE) -> None:
    """Lower this process's priority below that of the services, so that a busy machine still stores and cancels.

    With autogroup, Linux shares CPU time between sessions. Each worker is a session of its own and all services may be
    one session, so four workers would get four fifths of the machine. Without autogroup, nice alone decides.
    """
    os.nice(nice)
    with contextlib.suppress(OSError), open("/proc/self/autogroup", "w") as file:
        file.write(str(nice))


def restore_priority(pid: int) -> bool:
    """Undo `lower_priority` for a worker that is to stop, so that it ends soon on a busy machine too.

    Any user may raise an autogroup of their own to 0; without autogroup, raising a nice value needs a privilege. Return
    whether to try again: Linux allows ten changes of autogroups a second.
    """
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, pid, 0)
    try:
        with open(f"/proc/{pid}/autogroup", "w") as file:
            file.write("0")
    except BlockingIOError:
        return True
    except OSError:
        pass
    return False
