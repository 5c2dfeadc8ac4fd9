"""The parts of a stack's folder that the bus needs: sockets, address, locks, start counters."""

from __future__ import annotations

import fcntl
import hashlib
import os
import stat
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Self

from mosaic_bus.errors import BusError, HomeInUseError
from mosaic_bus.wire.address import Address

__all__ = ["OWNER_ONLY", "Home", "hold_lock", "make_private"]

OWNER_ONLY = 0o700
# A Unix socket path holds at most 103 bytes on macOS (107 on Linux); "/out.sock" takes nine.
_LONGEST_SOCKET_FOLDER = 103 - len("/out.sock")
# A process that checks a lock holds it for an instant, so a held lock is tried again for this long.
_LOCK_PATIENCE_S = 0.5
_LOCK_LOOK_S = 0.02


@dataclass(frozen=True)
class Home:
    """The folder of one stack, `$MOSAIC_HOME` or `~/.mosaic`. What the services keep in it is theirs to name."""

    path: Path

    @classmethod
    def find(cls, path: str | os.PathLike[str] | None = None) -> Self:
        """Take the given folder, else `$MOSAIC_HOME`, else `~/.mosaic`; it need not exist yet."""
        chosen = path or os.environ.get("MOSAIC_HOME") or Path("~/.mosaic").expanduser()
        return cls(Path(chosen).expanduser().absolute())

    @property
    def sockets(self) -> Path:
        """The folder of the ipc sockets, short enough for a Unix socket path."""
        # Links are resolved, so that every spelling of the folder leads to the same sockets.
        home = os.path.realpath(self.path)
        if len(os.fsencode(home)) + len("/bus") <= _LONGEST_SOCKET_FOLDER:
            return Path(home) / "bus"
        digest = hashlib.sha256(os.fsencode(home)).hexdigest()[:16]
        return Path(f"/tmp/mosaic-{os.getuid()}/{digest}")  # noqa: S108 - created 0700 and its owner checked below

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
        """Make the folders, readable by their owner only, and refuse a socket folder of another user."""
        self.path.mkdir(mode=OWNER_ONLY, parents=True, exist_ok=True)
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
            # A counter spoiled by a full disk or a crash must not prevent the service from starting.
            epoch = int(counted) + 1 if counted.isdigit() else 1
            # Replacing the file would create another lock, and truncating it could lose the count.
            digits = str(epoch).encode()
            with open(path, "r+b", buffering=0) as same:  # noqa: PTH123 - unbuffered, not appending
                same.write(digits)
                same.truncate(len(digits))
        return epoch


def make_private(folder: Path) -> None:
    """Make a folder that only we can enter; refuse one that belongs to another user."""
    folder.mkdir(mode=OWNER_ONLY, exist_ok=True)
    found = folder.lstat()
    if stat.S_ISLNK(found.st_mode):
        raise BusError(f"{folder} is a link, not a folder: remove it or set MOSAIC_HOME")
    if found.st_uid != os.getuid():
        raise BusError(f"{folder} belongs to user {found.st_uid}, not to you: remove it or set MOSAIC_HOME")
    if stat.S_IMODE(found.st_mode) != OWNER_ONLY:
        folder.chmod(OWNER_ONLY)


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
