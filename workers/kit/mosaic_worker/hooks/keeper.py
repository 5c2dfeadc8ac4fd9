"""Runs a command and leaves no process of it behind: `python -I -S keeper.py PID COMMAND…`.

The keeper is the subreaper of the command's descendants. When the command ends, SIGTERM arrives, or the worker with
that PID dies, it sends SIGTERM to all descendants and, after a grace period, SIGKILL. It ends as the command did, with
the same exit code or signal. It imports only the standard library and starts in milliseconds.
"""

import contextlib
import ctypes
import os
import signal
import sys
import time

__all__ = ["descendants", "kill_descendants"]

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
GRACE_S = 5.0
"""Seconds between SIGTERM and SIGKILL; less than the platform's own grace period."""
LEFTOVER_GRACE_S = 0.5
_PAUSE_S = 0.02


def descendants(root: int) -> list[int]:
    """Return all descendants of a process, from /proc."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):  # noqa: PTH208 - only the names
        if name.isdigit():
            with contextlib.suppress(OSError, ValueError, IndexError), open(f"/proc/{name}/stat", "rb") as file:  # noqa: PTH123 - without pathlib
                children.setdefault(int(file.read().rsplit(b")", 1)[1].split()[1]), []).append(int(name))
    found: list[int] = []
    queue = [root]
    while queue:
        below = children.get(queue.pop(), [])
        found += below
        queue += below
    return found


def signal_all(number: int) -> None:
    """Signal all descendants of this process."""
    for pid in descendants(os.getpid()):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def kill_descendants(grace_s: float) -> None:
    """End all descendants of this process; return when all are reaped."""
    signal_all(signal.SIGTERM)
    kill_at = time.monotonic() + grace_s
    while reap() is not None:
        if time.monotonic() >= kill_at:
            signal_all(signal.SIGKILL)
        time.sleep(_PAUSE_S)


def reap() -> dict[int, int] | None:
    """Reap children that have ended and return their statuses; None if there are no children."""
    ended: dict[int, int] = {}
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended or None
        if pid == 0:
            return ended
        ended[pid] = status


def start(command: list[str]) -> int:
    """Start the command; the kernel kills it if this process dies."""
    keeper = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    try:
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != keeper:
            os._exit(1)
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        os.execvp(command[0], command)  # noqa: S606 - becoming the command is the purpose
    except BaseException as error:
        os.write(2, f"cannot start {command[0]}: {error}\n".encode())
    os._exit(127)


def main(worker: int, command: list[str]) -> None:
    """Run the command until it ends or has to; never return."""
    # After an interruption, sigtimedwait of CPython 3.11 may return a siginfo without a signal number.
    waited = {signal.SIGTERM, signal.SIGINT, signal.SIGCHLD}
    signal.pthread_sigmask(signal.SIG_BLOCK, waited)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1)
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != worker:
        os._exit(1)  # the worker died before PDEATHSIG was set
    pid = start(command)
    status: int | None = None
    stop_at: float | None = None
    while status is None:
        left = 3600.0 if stop_at is None else max(0.0, stop_at - time.monotonic())
        info = signal.sigtimedwait(waited, left)
        if info is None and stop_at is not None:
            signal_all(signal.SIGKILL)
            stop_at = time.monotonic() + _PAUSE_S
        elif info is not None and info.si_signo in {signal.SIGTERM, signal.SIGINT} and stop_at is None:
            signal_all(signal.SIGTERM)
            stop_at = time.monotonic() + GRACE_S
        status = (reap() or {}).get(pid)
    kill_descendants(LEFTOVER_GRACE_S)
    end_like(status)


def end_like(status: int) -> None:
    """End this process as another one ended."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        if number != signal.SIGKILL:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
        os.kill(os.getpid(), number)
    os._exit(os.waitstatus_to_exitcode(status) if os.WIFEXITED(status) else 1)


libc = ctypes.CDLL(None, use_errno=True)

if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
