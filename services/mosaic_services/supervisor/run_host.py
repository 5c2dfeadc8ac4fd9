"""The run host: a small process that starts one attempt, outlives the supervisor, and records how it ended.

It is started by path (`python -I -S run_host.py FOLDER`) and imports little of the standard library and nothing else,
so it starts in milliseconds. What it promises:

- The worker's stdout is the journal and its stderr the log. Both are files, so no reader can block the worker.
- The stdin of an interactive attempt is a FIFO that stays open when the supervisor ends.
- It is the subreaper of all descendants of the worker, so none escapes, even into a new session.
- It passes SIGTERM on to the worker's process group and kills all descendants after the grace period.
- It stops an attempt that reaches its memory or time limit in the same way, after a warning at 80 %.
- If it is killed, the worker dies with it (PDEATHSIG).
- It writes `exit.json` last, in one piece, once all processes and frames of the attempt are gone.

In a warm start the same code runs in a process that was forked from a template (see `mosaic_worker.template`).
"""

import contextlib
import ctypes
import fcntl
import json
import os
import select
import signal
import sys
import time
from importlib.machinery import SourceFileLoader
from types import ModuleType
from typing import TYPE_CHECKING, Any


def _load(name: str) -> ModuleType:
    """Load a module of `mosaic_services.attempt_folder` by its path.

    Neither a bare interpreter nor a worker's virtualenv can import our packages.
    """
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    loader = SourceFileLoader(f"mosaic_attempt_{name}", os.path.join(package, "attempt_folder", f"{name}.py"))
    module = ModuleType(loader.name)
    loader.exec_module(module)
    return module


if TYPE_CHECKING:
    from mosaic_services.attempt_folder import layout, proc
else:
    layout, proc = _load("layout"), _load("proc")

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
STOP_SIGNALS = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}
SIGNALS = {signal.SIGCHLD, *STOP_SIGNALS}
# Seconds between SIGTERM and SIGKILL for descendants that outlive the worker.
LEFTOVER_GRACE_S = 0.5
HURRY_AGAIN_S = 0.1
# Seconds until descendants are first noted in family.json (most short runs are over by then), and between notes.
FIRST_FAMILY_S = 1.0
FAMILY_EVERY_S = 5.0
# Attempts to write exit.json on a full disk, one a second.
RECORD_TRIES = 600
# Bytes by which the middle of a log may grow before it is punched out.
LOG_SLACK_BYTES = 32 * 1024 * 1024
_FALLOC_KEEP_SIZE_AND_PUNCH_HOLE = 0x01 | 0x02
_PAGE = 65536
# Fraction of a limit at which to warn.
WARN_AT = 0.8
# Seconds between two looks at memory. On a machine with many processes looks are rarer, so that they take at most
# LOOK_SHARE of the time.
LOOK_EVERY_S = 1.0
LOOK_SHARE = 0.02
_MINUTE_S = 60
_F_SETPIPE_SZ = 1031
# Sizes of `struct signalfd_siginfo`, whose first field is the signal number, and of glibc's `sigset_t`.
_SIGNAL_INFO_BYTES = 128
_SIGSET_BYTES = 128

libc = ctypes.CDLL(None, use_errno=True)


def duration(seconds: float) -> str:
    """Format a duration as `01:00:00`, or as `2.5 s` if it is under a minute."""
    return f"{round(seconds, 1):g} s" if seconds < _MINUTE_S else layout.clock(seconds)


class Limits:
    """The limits of an attempt: warns when it comes close to one, and tells when it has reached one."""

    def __init__(self, memory_mb: float | None, wall_s: float | None, started: float) -> None:
        self.memory_mb = memory_mb
        self.wall_s = wall_s
        self.started = started
        self.warnings: dict[str, str] = {}
        self.look_at = self.next_look(started, 0.0)

    def next_look(self, now: float, took: float) -> float:
        """Return when to look again: if only time is limited, at the next warning or limit."""
        moments = [float("inf")]
        if self.wall_s is not None:
            moments += [at for part in (WARN_AT, 1) if (at := self.started + part * self.wall_s) > now]
        if self.memory_mb is not None:
            moments.append(now + max(LOOK_EVERY_S, took / LOOK_SHARE))
        return min(moments)

    def look(self, now: float) -> tuple[str, str] | None:
        """Return the limit that the attempt has reached, and the reason in words."""
        reached = self.look_at_time(now) or self.look_at_memory()
        self.look_at = self.next_look(now, time.monotonic() - now)
        return reached

    def look_at_time(self, now: float) -> tuple[str, str] | None:
        """Compare the time since the start with its limit."""
        if self.wall_s is None:
            return None
        used = now - self.started
        if used >= self.wall_s:
            return "wall", f"wall-clock limit of {duration(self.wall_s)} reached"
        self.warn("wall", used / self.wall_s, f"time {duration(used)} of {duration(self.wall_s)}")
        return None

    def look_at_memory(self) -> tuple[str, str] | None:
        """Compare the memory of all descendants with its limit."""
        if self.memory_mb is None:
            return None
        family = proc.descendants(os.getpid())
        used = sum(family.values()) / 2**20
        if used >= WARN_AT * self.memory_mb:
            # Shared pages were counted once per process. The exact figure costs more, so it is taken only now.
            used = sum(proc.fair_share(pid, resident) for pid, resident in family.items()) / 2**20
        amount = f"{used:.0f} of {self.memory_mb:g} MB"
        if used >= self.memory_mb:
            return "memory", f"memory limit: {amount} used"
        self.warn("memory", used / self.memory_mb, f"memory {amount}")
        return None

    def warn(self, limit: str, part: float, text: str) -> None:
        """Warn once per limit, in the log and in the file that the supervisor reads."""
        if part < WARN_AT or limit in self.warnings:
            return
        self.warnings[limit] = f"{text} ({100 * part:.0f} %)"
        write_to_log(f"warning: {self.warnings[limit]}")
        with contextlib.suppress(OSError):
            layout.write_json(layout.WARNINGS, {"warnings": list(self.warnings.values())})


def write_to_log(text: str) -> None:
    """Append a line of the platform to the worker's log."""
    with contextlib.suppress(OSError), open(layout.LOG, "a") as file:
        file.write(f"mosaic: {text}\n")


def open_signals() -> int:
    """Open a signalfd for SIGNALS, which must be blocked.

    `signal.sigtimedwait` of CPython 3.11 returns an uninitialised signal number when the process is paused past the
    time-out and continued.
    """
    wanted = ctypes.create_string_buffer(_SIGSET_BYTES)
    libc.sigemptyset(wanted)
    for number in SIGNALS:
        libc.sigaddset(wanted, int(number))
    signals: int = libc.signalfd(-1, wanted, os.O_NONBLOCK | os.O_CLOEXEC)
    if signals < 0:
        raise OSError(ctypes.get_errno(), "signalfd")
    return signals


def next_signal(signals: int, seconds: float) -> int | None:
    """Wait for a signal; return None if none arrives in time."""
    if not select.select([signals], [], [], seconds)[0]:
        return None
    return int.from_bytes(os.read(signals, _SIGNAL_INFO_BYTES)[:4], sys.byteorder)


def open_stdin() -> int:
    """Make the FIFO of an interactive attempt and hold both its ends.

    The worker then sees no end of file when a supervisor ends, and a supervisor can write while the worker starts.
    """
    os.mkfifo(layout.STDIN, 0o600)
    fifo = os.open(layout.STDIN, os.O_RDWR)
    with contextlib.suppress(OSError):  # Past the limit for one user, the pipe keeps its default size.
        fcntl.fcntl(fifo, _F_SETPIPE_SZ, layout.STDIN_BYTES)
    return fifo


class Forked(BaseException):
    """Raised in the process that is to become the worker when it is forked from a template."""

    def __init__(self, order: dict[str, Any]) -> None:
        super().__init__()
        self.order = order


def start_worker(order: dict[str, Any]) -> int:
    """Fork the worker into a session of its own, with the journal as stdout and the log as stderr; return its pid."""
    host = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    try:
        os.setsid()
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != host:
            os._exit(1)
        proc.lower_priority()
        files = (
            os.open(layout.STDIN if order.get("interactive") else os.devnull, os.O_RDONLY),
            os.open(layout.JOURNAL, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600),
            os.open(layout.LOG, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600),
        )
        for target, file in enumerate(files):
            os.dup2(file, target)
        os.closerange(3, 256)
        for number in SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        os.chdir(order["cwd"])
        if not order["warm"]:
            os.execve(order["argv"][0], order["argv"], order["environ"])
    except BaseException as error:
        with contextlib.suppress(OSError):
            os.write(2, f"cannot start {order.get('argv')}: {error}\n".encode())
        os._exit(127)
    raise Forked(order)


class Host:
    """Watches one worker from its start until it and all its descendants are gone."""

    def __init__(self, order: dict[str, Any]) -> None:
        self.grace_s = float(order["grace_s"])
        self.signals = open_signals()
        self.stdin = open_stdin() if order.get("interactive") else None
        self.worker = start_worker(order)
        self.status: int | None = None
        self.max_rss_kb = 0
        self.stopped = False
        # The limit that the attempt was stopped for, and the reason in words.
        self.reached: tuple[str, str] | None = None
        limits = order.get("limits", {})
        self.limits = Limits(limits.get("memory_mb"), limits.get("wall_s"), time.monotonic())
        self.kill_at: float | None = None
        # Whether to raise the worker's priority again.
        self.hurry = False
        self.log_punched = int(order["log_head"])
        self.family: list[dict[str, Any]] = []
        self.family_at = time.monotonic() + FIRST_FAMILY_S

    def watch(self) -> None:
        """Return when the worker and all its descendants are gone."""
        while self.reap():
            now = time.monotonic()
            if self.status is not None and self.kill_at is None:
                self.signal_all(signal.SIGTERM)
                self.kill_at = now + LEFTOVER_GRACE_S
            if self.kill_at is not None and now >= self.kill_at:
                self.signal_all(signal.SIGKILL)
                self.kill_at = now + 0.05
            self.bound_log()
            self.note_family(now)
            self.keep_limits(now)
            if self.hurry:
                self.hurry = self.status is None and proc.restore_priority(self.worker)
            left = 1.0 if self.kill_at is None else min(1.0, max(0.01, self.kill_at - now))
            if self.hurry:
                left = min(left, HURRY_AGAIN_S)
            if not self.ending:
                left = min(left, max(0.0, self.limits.look_at - time.monotonic()))
            if next_signal(self.signals, left) in STOP_SIGNALS:
                self.stop()

    @property
    def ending(self) -> bool:
        """Whether the worker has ended or was told to stop."""
        return self.stopped or self.reached is not None or self.status is not None

    def stop(self) -> None:
        """Stop the attempt because of a signal."""
        if not self.ending:
            self.stopped = True
            self.begin_end()

    def keep_limits(self, now: float) -> None:
        """Stop an attempt that has reached a limit, unless it is stopping or a stop signal is pending."""
        if now < self.limits.look_at or self.ending:
            return
        reached = self.limits.look(now)
        if reached is not None and not signal.sigpending() & STOP_SIGNALS:
            self.reached = reached
            write_to_log(f"{reached[1]}: stopping the run")
            self.begin_end()

    def begin_end(self) -> None:
        """Send SIGTERM to the worker's process group now; SIGKILL follows after the grace period."""
        self.kill_at = time.monotonic() + self.grace_s
        self.hurry = proc.restore_priority(self.worker)
        try:
            os.killpg(self.worker, signal.SIGTERM)
        except ProcessLookupError:
            # It was forked a moment ago and has no group yet. It is not reaped, so the pid is still its own.
            os.kill(self.worker, signal.SIGTERM)

    def reap(self) -> bool:
        """Reap children that have ended; return False once none are left."""
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            self.max_rss_kb = max(self.max_rss_kb, usage.ru_maxrss)
            if pid == self.worker:
                self.status = status
                # Its descendants get LEFTOVER_GRACE_S, whatever was left of the worker's own grace period.
                self.kill_at = None

    def signal_all(self, number: int) -> None:
        """Signal every descendant, in whatever session it is."""
        for pid in proc.descendants(os.getpid()):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)

    def note_family(self, now: float) -> None:
        """Note all descendants, so that `processes.sweep` finds them if this run host is killed."""
        if now < self.family_at:
            return
        self.family_at = now + FAMILY_EVERY_S
        found = []
        for pid in sorted(proc.descendants(os.getpid())):
            with contextlib.suppress(OSError, ValueError, IndexError):
                found.append(proc.identity(pid))
        if found != self.family:
            self.family = found
            with contextlib.suppress(OSError):
                layout.write_json(layout.FAMILY, {"processes": found})

    def bound_log(self) -> None:
        """Punch a hole into the middle of a log that grows too large; offsets stay valid."""
        with contextlib.suppress(OSError):
            end = os.stat(layout.LOG).st_size - layout.LOG_TAIL_BYTES
            if end - self.log_punched < LOG_SLACK_BYTES:
                return
            end -= end % _PAGE
            file = os.open(layout.LOG, os.O_WRONLY)
            start, length = ctypes.c_long(self.log_punched), ctypes.c_long(end - self.log_punched)
            libc.fallocate(file, _FALLOC_KEEP_SIZE_AND_PUNCH_HOLE, start, length)
            os.close(file)
            self.log_punched = end


def record(ending: dict[str, Any]) -> None:
    """Write `exit.json`; on a full disk, retry until there is room."""
    for left in reversed(range(RECORD_TRIES)):
        try:
            layout.write_json(layout.EXIT, ending)
            return
        except FileNotFoundError:
            return  # The folder was removed.
        except OSError:
            if not left:
                raise
            time.sleep(1.0)


def remove_frames(folder: str | None) -> None:
    """Free the worker's folder in shared memory, even if there is no supervisor to do it."""
    if not folder:
        return
    with contextlib.suppress(OSError):
        for name in os.listdir(folder):
            os.unlink(os.path.join(folder, name))
        os.rmdir(folder)
        os.rmdir(os.path.dirname(folder))


def main(folder: str, environ: dict[str, str] | None = None) -> int:
    """Run one attempt. With `environ` the start is warm: `Forked` is raised in the worker's process."""
    os.chdir(folder)
    lock = os.open(layout.HOST_LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return 0  # Another run host has this attempt: it was both spawned and forked.
    if os.path.exists(layout.EXIT) or os.path.exists(layout.HOST):
        return 0
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1)
    with open(layout.ATTEMPT) as file:
        order = json.load(file)
    order["warm"] = environ is not None
    # Variables come by pipe or socket, since there may be secrets in them.
    order["environ"] = json.load(sys.stdin) if environ is None else environ
    started_at = time.time()
    who = proc.identity(os.getpid())
    layout.write_json(layout.HOST, {**who, "started_at": started_at, "warm": order["warm"]})
    host = Host(order)
    host.watch()
    remove_frames(order["environ"].get("MOSAIC_FASTLANE_DIR"))
    with contextlib.suppress(OSError):
        os.unlink(layout.STDIN)
    status = host.status if host.status is not None else 0
    limit, reason = host.reached or (None, "")
    record(
        {
            "code": os.WEXITSTATUS(status) if os.WIFEXITED(status) else None,
            "signal": os.WTERMSIG(status) if os.WIFSIGNALED(status) else None,
            "stopped": host.stopped,
            "limit": limit,
            "reason": reason,
            "started_at": started_at,
            "ended_at": time.time(),
            "max_rss_mb": host.max_rss_kb / 1024,
        }
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
