"""Where everything of one stack lies on disk: sockets, stores, run folders, logs."""

from __future__ import annotations

import fcntl
import hashlib
import ipaddress
import os
import stat
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO
from urllib.parse import urlsplit

from mosaic_bus.errors import BusError, CannotBindError, HomeInUseError, UnsafeAddressError

__all__ = ["Address", "Home", "hold_lock", "make_private"]

# A Unix socket path holds at most 103 bytes on macOS (107 on Linux); "/out.sock" takes nine.
_OWNER_ONLY = 0o700
_LONGEST_SOCKET_FOLDER = 103 - len("/out.sock")
_LAST_PORT = 65535
# Whoever looks whether a lock is held has it for an instant: that is no reason to refuse.
_LOCK_PATIENCE_S = 0.5
_LOCK_LOOK_S = 0.02


@dataclass(frozen=True)
class Address:
    """The two endpoints of a broker: what clients send to (`ingress`) and what they read from (`egress`)."""

    ingress: str
    egress: str

    @classmethod
    def parse(cls, text: str) -> Address:
        """Read `tcp://host:port` (out is port + 1) or `ipc:///folder`."""
        # A folder is taken as it is: "#" and "?" mean nothing in it, though they would in a URL.
        if text.startswith("ipc:///") and (folder := text.removeprefix("ipc://").rstrip("/")):
            return cls(f"ipc://{folder}/in.sock", f"ipc://{folder}/out.sock")
        try:
            parts = urlsplit(text)
            name, port = parts.hostname, parts.port
        except ValueError:
            name, port = None, None
        if not text.startswith("tcp://") or not name or not port:
            raise BusError(f"bus address {text!r} is neither tcp://host:port nor ipc:///folder")
        if port >= _LAST_PORT:
            raise BusError(f"bus address {text!r} needs two ports, {port} and the next, which does not exist")
        host = f"[{name}]" if ":" in name else name
        return cls(f"tcp://{host}:{port}", f"tcp://{host}:{port + 1}")

    def __str__(self) -> str:
        """As `parse` reads it, and as people give it."""
        folder = self.socket_folder
        return self.ingress if folder is None else f"ipc://{folder}"

    @property
    def socket_folder(self) -> Path | None:
        """Where the socket files lie; None for tcp."""
        if not self.ingress.startswith("ipc://"):
            return None
        return Path(self.ingress.removeprefix("ipc://")).parent

    @property
    def is_ipv6(self) -> bool:
        """Whether ZeroMQ must be told that this is an address of IP version 6."""
        return "[" in self.ingress and self.ingress.startswith("tcp://")

    def require_private(self) -> None:
        """Refuse an address that other machines or other users could reach: there are no keys yet."""
        if (folder := self.socket_folder) is not None:
            try:
                folder.mkdir(mode=_OWNER_ONLY, parents=True, exist_ok=True)
            except OSError as error:
                raise CannotBindError(self.ingress, str(error)) from error
            found = folder.stat()
            if found.st_uid != os.getuid() or stat.S_IMODE(found.st_mode) & 0o077:
                raise UnsafeAddressError(self.ingress, f"{folder} is open to other users (chmod 700 it)")
            return
        host = urlsplit(self.ingress).hostname or ""
        try:
            private = host == "localhost" or ipaddress.ip_address(host).is_loopback
        except ValueError:
            private = False
        if not private:
            raise UnsafeAddressError(self.ingress)


@dataclass(frozen=True)
class Home:
    """The folder of one stack, `$MOSAIC_HOME` or `~/.mosaic`, and the names of what is in it."""

    path: Path

    @classmethod
    def find(cls, path: str | os.PathLike[str] | None = None) -> Home:
        """Take the given folder, else `$MOSAIC_HOME`, else `~/.mosaic`; it need not exist yet."""
        chosen = path or os.environ.get("MOSAIC_HOME") or Path("~/.mosaic").expanduser()
        return cls(Path(chosen).expanduser().absolute())

    @property
    def runs(self) -> Path:
        """One folder per run, one folder per attempt inside: `runs/<run>/<attempt>/`."""
        return self.path / "runs"

    @property
    def sweeps(self) -> Path:
        """One folder per sweep that has a driver, with its study: `sweeps/<group>/study.db`."""
        return self.path / "sweeps"

    @property
    def logs(self) -> Path:
        """What the services print: `logs/<service>.log`."""
        return self.path / "logs"

    @property
    def scheduler_store(self) -> Path:
        """The scheduler's SQLite file."""
        return self.path / "scheduler" / "scheduler.db"

    @property
    def telemetry_store(self) -> Path:
        """The telemetry aggregator's SQLite file."""
        return self.path / "telemetry" / "telemetry.db"

    @property
    def sockets(self) -> Path:
        """The folder of the ipc sockets, short enough for a Unix socket path."""
        # Links are resolved, so that all who mean the same folder find the same sockets, however they write it.
        home = os.path.realpath(self.path)
        if len(os.fsencode(home)) + len("/bus") <= _LONGEST_SOCKET_FOLDER:
            return Path(home) / "bus"
        digest = hashlib.sha256(os.fsencode(home)).hexdigest()[:16]
        return Path(f"/tmp/mosaic-{os.getuid()}/{digest}")  # noqa: S108 - created 0700 and its owner checked below

    @property
    def frames(self) -> Path:
        """The folder of pictures in shared memory, on this machine: one folder per attempt, `<run>.<attempt>/`."""
        digest = hashlib.sha256(os.fsencode(os.path.realpath(self.path))).hexdigest()[:16]
        return Path(f"/dev/shm/mosaic-{os.getuid()}-{digest}")  # noqa: S108 - made 0700 and its owner checked by whoever makes it

    def address(self, override: str | None = None) -> Address:
        """Where the bus of this home is: the override, else `$MOSAIC_BUS`, else what `up --bind` left, else ipc."""
        text = override or os.environ.get("MOSAIC_BUS")
        if not text:
            try:
                text = (self.path / "bus-address").read_text().strip()
            except FileNotFoundError:
                text = ""
        return Address.parse(text or f"ipc://{self.sockets}")

    def create(self) -> None:
        """Make the folders, readable by their owner only, and refuse a socket folder that is somebody else's."""
        self.path.mkdir(mode=_OWNER_ONLY, parents=True, exist_ok=True)
        for folder in (self.runs, self.logs, self.scheduler_store.parent, self.telemetry_store.parent):
            folder.mkdir(mode=_OWNER_ONLY, exist_ok=True)
            folder.chmod(_OWNER_ONLY)  # The home may be a folder that was there before, and open to others.
        sockets = self.sockets
        if sockets.parent != Path(os.path.realpath(self.path)):
            make_private(sockets.parent)
        make_private(sockets)

    def lock(self, what: str) -> IO[str]:
        """Hold `<what>.lock` until the returned file is closed; raise if another process holds it."""
        return hold_lock(self.path / f"{what}.lock", what)

    def next_epoch(self, service: str) -> int:
        """Count one more start of a service in this home, and return the count."""
        folder = self.path / "epochs"
        folder.mkdir(exist_ok=True)
        path = folder / service
        with path.open("a+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(0)
            counted = file.read().strip()
            # A counter that a full disk or a crash spoiled must not keep the service from starting.
            epoch = int(counted) + 1 if counted.isdigit() else 1
            # A new file in place of the old would be another lock; and a truncated one could lose the count.
            digits = str(epoch).encode()
            with open(path, "r+b", buffering=0) as same:  # noqa: PTH123 - unbuffered, not appending
                same.write(digits)
                same.truncate(len(digits))
        return epoch


def make_private(folder: Path) -> None:
    """Make a folder that only we can enter; refuse one that somebody else put there."""
    folder.mkdir(mode=_OWNER_ONLY, exist_ok=True)
    found = folder.lstat()
    if stat.S_ISLNK(found.st_mode):
        raise BusError(f"{folder} is a link, not a folder: remove it or set MOSAIC_HOME")
    if found.st_uid != os.getuid():
        raise BusError(f"{folder} belongs to user {found.st_uid}, not to you: remove it or set MOSAIC_HOME")
    if stat.S_IMODE(found.st_mode) != _OWNER_ONLY:
        folder.chmod(_OWNER_ONLY)


def hold_lock(path: Path, what: str) -> IO[str]:
    """Hold a lock file until the returned file is closed; raise if another process holds it."""
    file = path.open("a+")
    deadline = time.monotonic() + _LOCK_PATIENCE_S
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            if time.monotonic() < deadline:
                time.sleep(_LOCK_LOOK_S)
                continue
            file.seek(0)
            pid = file.read().strip() or "unknown"
            file.close()
            raise HomeInUseError(what, str(path.parent), pid) from None
    file.truncate(0)
    file.write(str(os.getpid()))
    file.flush()
    return file
