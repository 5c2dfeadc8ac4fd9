"""The gate in front of every route: host, size, token or cookie, origin, and the headers of every answer.

A plain ASGI middleware: that of Starlette queues answers without back-pressure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, urlencode

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import cookie_parser
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from mosaic_services.gateway.access import Access
    from mosaic_services.gateway_files import Role

__all__ = ["MAX_BODY_BYTES", "Guard", "refuse"]

MAX_BODY_BYTES = 4 * 1024 * 1024
_SAFE = frozenset({"GET", "HEAD"})
_METHODS = _SAFE | {"POST"}
# Answered to anybody; it only names the services that are silent.
_OPEN = frozenset({"/healthz"})

CONTENT_SECURITY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; media-src 'self' blob:;"
    " connect-src 'self'; font-src 'self'; manifest-src 'self'; frame-src 'self'; form-action 'self'; base-uri 'none';"
    " frame-ancestors 'none'"
)
_HEADERS = {
    "content-security-policy": CONTENT_SECURITY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "x-frame-options": "DENY",
    "cache-control": "no-store",
}
_LOG_IN = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>MOSAIC: not logged in</title>
<main>
<h1>Not logged in</h1>
<p>Run <code>mosaic open</code> on the machine on which MOSAIC runs. It opens this page with a token, once for each
browser. A token that was replaced is not valid any more.</p>
</main>
</html>
"""
# Why a WebSocket is closed before it begins.
_FORBIDDEN = 4403


def refuse(status: int, code: str, message: str) -> Response:
    """Make an answer that says what is wrong."""
    return JSONResponse({"code": code, "message": message, "details": {}}, status)


class Guard:
    """Lets through what may pass, with the caller's role in `scope["role"]`."""

    def __init__(self, app: ASGIApp, access: Access, hosts: frozenset[str], *, secure: bool) -> None:
        self._app = app
        self._access = access
        self._hosts = hosts
        self._origins = frozenset(f"{'https' if secure else 'http'}://{host}" for host in hosts)
        self._secure = secure

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check a request or a WebSocket, then pass it on."""
        if scope["type"] not in {"http", "websocket"}:
            return
        headers = Headers(scope=scope)
        send = _with_headers(send)
        refusal = self._check(scope, headers)
        if refusal is None and scope["type"] == "http":
            receive = _Limited(receive).receive
        if refusal is None:
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": _FORBIDDEN, "reason": "refused"})
        else:
            await refusal(scope, receive, send)

    def _check(self, scope: Scope, headers: Headers) -> Response | None:
        # Another name that leads to this port is that of a page elsewhere, which rebinds it (DNS rebinding).
        if len(headers.getlist("host")) != 1 or headers["host"].lower() not in self._hosts:
            return refuse(421, "unknown_host", f"this gateway answers to {', '.join(sorted(self._hosts))}")
        method = scope.get("method", "GET")
        if method not in _METHODS:
            return refuse(405, "method_not_allowed", f"{method} is not used here")
        length = headers.get("content-length", "0")
        if not length.isdecimal() or int(length) > MAX_BODY_BYTES:
            return refuse(413, "too_large", f"a request has at most {MAX_BODY_BYTES} bytes")
        if scope["path"] in _OPEN and scope["type"] == "http":
            return None
        if scope["type"] == "http" and method in _SAFE and (login := self._log_in(scope)) is not None:
            return login
        role, by_cookie = self._role_of(headers)
        if role is None:
            said = "open the address that `mosaic open` prints, or send `Authorization: Bearer TOKEN`"
            shows_html = method in _SAFE and "text/html" in headers.get("accept", "")
            return HTMLResponse(_LOG_IN, 401) if shows_html else refuse(401, "not_logged_in", said)
        origin = headers.get("origin")
        matters = scope["type"] == "websocket" or method not in _SAFE
        if matters and origin not in self._origins and (origin is not None or by_cookie):
            return refuse(403, "foreign_origin", f"a page of {origin or 'an unknown origin'} may not do this")
        scope["role"] = role
        return None

    def _log_in(self, scope: Scope) -> Response | None:
        """Take the token out of the address: a browser gets a cookie instead, and an address without it."""
        query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        tokens = [value for key, value in query if key == "token"]
        if not tokens:
            return None
        role = self._access.of_token(tokens[0])
        if role is None:
            return HTMLResponse(_LOG_IN, 401)
        rest = urlencode([(key, value) for key, value in query if key != "token"])
        # One slash: two would name another host.
        path = "/" + scope["path"].lstrip("/\\")
        answer = RedirectResponse(f"{path}?{rest}" if rest else path, 303)
        answer.headers["set-cookie"] = self._access.set_cookie(role, secure=self._secure)
        return answer

    def _role_of(self, headers: Headers) -> tuple[Role | None, bool]:
        """Return the role, and whether it is that of a cookie, which a browser sends by itself."""
        scheme, _, token = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            return self._access.of_token(token.strip()), False
        # All ports of a host share their cookies: those of other programs may be anything, and must not hide ours.
        found = cookie_parser(headers.get("cookie", "")).get(self._access.cookie_name)
        return (None if found is None else self._access.of_cookie(found)), True


class _Limited:
    """Ends a body that is longer than its header says it may be."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._left = MAX_BODY_BYTES

    async def receive(self) -> Message:
        message = await self._receive()
        if message["type"] == "http.request":
            self._left -= len(message.get("body", b""))
            if self._left < 0:
                return {"type": "http.disconnect"}
        return message


def _with_headers(send: Send) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in _HEADERS.items():
                headers.setdefault(name, value)
        await send(message)

    return sending
