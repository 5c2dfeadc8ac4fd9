"""The files by which a gateway is found and entered: its address and its tokens. The command line reads them, too."""

from __future__ import annotations

import json
import os
import secrets
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from mosaic_services.home import StackHome

__all__ = ["Note", "Role", "login_url", "read_token"]

_OWNER_ONLY = 0o600


class Role(StrEnum):
    """What the holder of a token may do."""

    OWNER = "owner"
    VIEWER = "viewer"


def read_token(folder: Path, role: Role) -> str:
    """Return the token of a role; make it if there is none. Only the owner of the stack can read the file."""
    path = folder / f"{role}-token"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _OWNER_ONLY), "w") as file:
            file.write(secrets.token_urlsafe(32))
    except FileExistsError:
        path.chmod(_OWNER_ONLY)
    return path.read_text().strip()


@dataclass(frozen=True)
class Note:
    """A file that says where the gateway of a home is."""

    path: Path

    def write(self, url: str) -> None:
        """Leave the note."""
        scratch = self.path.with_suffix(".new")
        scratch.write_text(json.dumps({"url": url, "pid": os.getpid()}))
        scratch.replace(self.path)

    def read(self) -> str | None:
        """Return the address; None if no gateway has left one."""
        try:
            return str(json.loads(self.path.read_bytes())["url"])
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def remove(self) -> None:
        """Take the note away."""
        self.path.unlink(missing_ok=True)


def login_url(home: StackHome, role: Role = Role.OWNER) -> str | None:
    """Return the address of a home's gateway with a token in it; None if it has none."""
    url = Note(home.gateway_note).read()
    return None if url is None else f"{url}?token={read_token(home.gateway, role)}"
