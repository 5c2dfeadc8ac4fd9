"""Where everything of one stack lies on disk: sockets, stores, run folders, logs."""

from __future__ import annotations

import fcntl
import hashlib
import ipaddress
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import IO
from urllib.parse import urlsplit

from mosaic_bus.errors import BusError, HomeInUseError, UnsafeAddressError

__all__ = ["Address", "Home"]

# A Unix socket path holds at most 107 bytes on Linux; "/out.sock" takes nine.
_OWNER_ONLY = 0o700
_LONGEST_SOCKET_FOLDER = 107 - len("/out.sock")


@dataclass(frozen=True)
class Address:
    """The two endpoints of a broker: what clients send to (`ingress`) and what they read from (`egress`)."""

    ingress: str
    egress: str

    @classmethod
    def parse(cls, text: str) -> Address:
        """Read `tcp://host:port` (out is port + 1) or `ipc:///folder`."""
        parts = urlsplit(text)
        if parts.scheme == "ipc" and parts.path:
            return cls(f"ipc://{parts.path}/in.sock", f"ipc://{parts.path}/out.sock")
        try:
            port = parts.port
        except ValueError:
            port = None
        if parts.scheme != "tcp" or not parts.hostname or not port:
            raise BusError(f"bus address {text!r} is neither tcp://host:port nor ipc:///folder")
        host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
        return cls(f"tcp://{host}:{port}", f"tcp://{host}:{port + 1}")

    def require_private(self) -> None:
        """Refuse an address that other machines could reach: there are no keys yet."""
        if self.ingress.startswith("ipc://"):
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
        return cls(Path(chosen).absolute())

    @property
    def runs(self) -> Path:
        """One folder per run, one folder per attempt inside: `runs/<run>/<attempt>/`."""
        return self.path / "runs"

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
        folder = self.path / "bus"
        if len(os.fsencode(folder)) <= _LONGEST_SOCKET_FOLDER:
            return folder
        digest = hashlib.sha256(os.fsencode(self.path)).hexdigest()[:16]
        return Path(f"/tmp/mosaic-{os.getuid()}/{digest}")  # noqa: S108 - created 0700 and its owner checked below

    def address(self, override: str | None = None) -> Address:
        """Where the bus of this home is: the override, else `$MOSAIC_BUS`, else what `up --bind` left, else ipc."""
        text = override or os.environ.get("MOSAIC_BUS")
        if not text:
            try:
                text = (self.path / "bus-address").read_text().strip()
            except FileNotFoundError:
                text = f"ipc://{self.sockets}"
        return Address.parse(text)

    def create(self) -> None:
        """Make the folders, readable by their owner only, and refuse a socket folder that is somebody else's."""
        for folder in (self.path, self.runs, self.logs, self.sockets.parent, self.sockets):
            folder.mkdir(mode=_OWNER_ONLY, parents=True, exist_ok=True)
        folder = self.sockets
        for each in (folder, folder.parent) if folder.parent != self.path else (folder,):
            found = each.stat()
            if found.st_uid != os.getuid():
                raise BusError(f"{each} belongs to user {found.st_uid}, not to you: remove it or set MOSAIC_HOME")
            if stat.S_IMODE(found.st_mode) != _OWNER_ONLY:
                each.chmod(_OWNER_ONLY)

    def lock(self, what: str) -> IO[str]:
        """Hold `<what>.lock` until the returned file is closed; raise if another process holds it."""
        path = self.path / f"{what}.lock"
        file = path.open("a+")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            pid = file.read().strip() or "unknown"
            file.close()
            raise HomeInUseError(what, str(self.path), pid) from None
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        return file

    def next_epoch(self, service: str) -> int:
        """Count one more start of a service in this home, and return the count."""
        folder = self.path / "epochs"
        folder.mkdir(exist_ok=True)
        path = folder / service
        with path.open("a+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(0)
            epoch = int(file.read().strip() or 0) + 1
            file.truncate(0)
            file.write(str(epoch))
        return epoch
