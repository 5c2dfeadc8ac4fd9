"""A plain HTTP and WebSocket client of a stack's gateway, with control over every header."""

from __future__ import annotations

import http.client
import json
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from websockets.sync.client import connect

from mosaic_services.gateway_files import Note, Role, read_token

if TYPE_CHECKING:
    from stack import Stack
    from websockets.sync.client import ClientConnection

PATIENCE_S = 60.0


@dataclass
class Answer:
    """An HTTP response."""

    status: int
    headers: http.client.HTTPMessage
    body: bytes

    def json(self) -> Any:
        """Parse the body."""
        return json.loads(self.body)


class Gateway:
    """The gateway of a stack."""

    def __init__(self, stack: Stack) -> None:
        url = Note(stack.home.gateway_note).read()
        assert url is not None
        self.url = url
        self.netloc = url.removeprefix("http://").rstrip("/")
        self.port = int(self.netloc.rpartition(":")[2])
        self.token = read_token(stack.home.gateway, Role.OWNER)
        self.viewer = read_token(stack.home.gateway, Role.VIEWER)

    def ask(self, method: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None) -> Answer:
        """Send a request with these headers; add only Host, and Content-Length for a body, unless given."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
        given = {"Host": self.netloc, **(headers or {})}
        try:
            connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
            for name, value in given.items():
                connection.putheader(name, value)
            if body is not None and "Content-Length" not in given:
                connection.putheader("Content-Length", str(len(body)))
            connection.endheaders(body)
            answer = connection.getresponse()
            return Answer(answer.status, answer.headers, answer.read())
        finally:
            connection.close()

    def get(self, path: str, token: str | None = None, **headers: str) -> Answer:
        """Send a GET request with a token."""
        return self.ask("GET", path, None, {"Authorization": f"Bearer {token or self.token}", **headers})

    def command(self, service: str, name: str, token: str | None = None, **arguments: Any) -> Answer:
        """Send a command with a token."""
        headers = {"Authorization": f"Bearer {token or self.token}", "Content-Type": "application/json"}
        return self.ask("POST", f"/api/{service}/{name}", json.dumps(arguments).encode(), headers)

    def log_in(self, token: str | None = None) -> str:
        """Log in with the token in the URL; return the cookie as a browser would send it."""
        answer = self.ask("GET", f"/?token={token or self.token}")
        assert answer.status == 303, answer.body
        return answer.headers["set-cookie"].partition(";")[0]

    def page(self, **headers: str) -> ClientConnection:
        """Open a WebSocket as a logged-in page does."""
        given = {"Cookie": self.log_in(), "Origin": f"http://{self.netloc}", **headers}
        origin = given.pop("Origin")
        return connect(
            f"ws://{self.netloc}/ws",
            additional_headers=given,
            origin=origin or None,
            compression=None,
            max_size=2**26,
            legacy=True,  # usable without `with`
        )


def read(page: ClientConnection) -> dict[str, Any]:
    """Return the next message; a frame message is its header plus the image as `jpeg`."""
    message = page.recv(timeout=PATIENCE_S)
    if isinstance(message, bytes):
        length = int.from_bytes(message[:4], "big")
        return {**json.loads(message[4 : 4 + length]), "jpeg": message[4 + length :]}
    return json.loads(message)


def read_to_the_end(page: ClientConnection) -> None:
    """Read until the gateway closes the connection, which raises an exception."""
    while True:
        page.recv(timeout=PATIENCE_S)


def say(page: ClientConnection, **message: Any) -> None:
    """Send a message."""
    page.send(json.dumps(message))


def until(page: ClientConnection, condition: Any) -> dict[str, Any]:
    """Read until a message meets the condition; return a credit for every message."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        message = read(page)
        say(page, type="credit", n=1)
        if condition(message):
            return message
    raise AssertionError(f"no message met the condition within {PATIENCE_S} s")
