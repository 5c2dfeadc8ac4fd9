"""Tells who may do what: by a token, or by a signed cookie that is not the token. Pure."""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
import time
from typing import TYPE_CHECKING

from mosaic_services.gateway_files import Role

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Access"]

_COOKIE_S = 30 * 86_400
_NONCE_BYTES = 16


class Access:
    """Tells the role of a token or a cookie. A cookie stays valid over restarts; a new token makes it invalid."""

    def __init__(self, tokens: dict[Role, str], port: int, wall: Callable[[], float] = time.time) -> None:
        self.cookie_name = f"mosaic-{port}"
        self._tokens = tokens
        self._wall = wall

    def of_token(self, token: str) -> Role | None:
        """Return the role of a token; None if it is none. Takes the same time for every wrong token."""
        found = None
        for role, known in self._tokens.items():
            if known and hmac.compare_digest(known.encode(), token.encode()):
                found = role
        return found

    def make_cookie(self, role: Role) -> str:
        """Return the value of a new cookie."""
        until = int(self._wall()) + _COOKIE_S
        text = f"{role}.{until}.{secrets.token_urlsafe(_NONCE_BYTES)}"
        return f"{text}.{self._sign(role, text)}"

    def of_cookie(self, value: str) -> Role | None:
        """Return the role of a cookie; None if it is forged, altered or too old."""
        text, _, signature = value.rpartition(".")
        name, _, rest = text.partition(".")
        until = rest.partition(".")[0]
        if name not in self._tokens or not until.isdecimal() or not until.isascii():
            return None
        role = Role(name)
        if not hmac.compare_digest(self._sign(role, text).encode(), signature.encode()):
            return None
        return role if int(until) > self._wall() else None

    def set_cookie(self, role: Role, *, secure: bool) -> str:
        """Return the header that gives a browser its cookie."""
        text = f"{self.cookie_name}={self.make_cookie(role)}; Path=/; Max-Age={_COOKIE_S}; HttpOnly; SameSite=Strict"
        return f"{text}; Secure" if secure else text

    def _sign(self, role: Role, text: str) -> str:
        key = hashlib.sha256(b"mosaic cookie " + self._tokens[role].encode()).digest()
        digest = hmac.new(key, f"{self.cookie_name} {text}".encode(), hashlib.sha256).digest()
        return base64.urlsafe_b64encode(digest).decode().rstrip("=")
