"""The gateway as a service: a web server in the event loop of the bus."""

from __future__ import annotations

import asyncio
import contextlib
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import uvicorn
from starlette.applications import Starlette
from starlette.routing import WebSocketRoute

import mosaic_services
from mosaic_bus.logs import Logger
from mosaic_bus.service import Service
from mosaic_services.gateway.access import Access
from mosaic_services.gateway.connection import Connection
from mosaic_services.gateway.guard import Guard
from mosaic_services.gateway.hub import Hub
from mosaic_services.gateway.listening import allowed_hosts, listen
from mosaic_services.gateway.page import Page
from mosaic_services.gateway.routes import Routes
from mosaic_services.gateway_files import Note, Role, read_token

if TYPE_CHECKING:
    from collections.abc import Iterator

    from starlette.types import ASGIApp
    from starlette.websockets import WebSocket

    from mosaic_services.home import StackHome
    from mosaic_services.settings.model import Settings

__all__ = ["GatewayService"]

_log = Logger()

_MOST_PAGES = 64
_MOST_CONNECTIONS = 512
_TOO_MANY = 4429
_SHUTDOWN_S = 2
_MESSAGE_BYTES = 64 * 1024
# Where scripts/setup builds the dashboard.
_PAGE = Path(mosaic_services.__file__).parents[1] / "dashboard" / "dist"


class _Server(uvicorn.Server):
    """A server that leaves the signals to the service."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class GatewayService(Service):
    """Lets browsers and HTTP clients see and drive a stack."""

    home: StackHome

    def __init__(self, home: StackHome, bus_address: str | None, settings: Settings) -> None:
        home.create()
        self._lock = home.lock("gateway")
        super().__init__("gateway", home, bus_address, heartbeat_s=settings.services.heartbeat_s)
        tuning = settings.gateway
        self._socket = listen(tuning)
        self.port = self._socket.getsockname()[1]
        secure = bool(tuning.tls_certificate and tuning.tls_key)
        host = tuning.bind if ":" not in tuning.bind else f"[{tuning.bind}]"
        host = "127.0.0.1" if tuning.bind == "0.0.0.0" else host  # noqa: S104 - where to look, not what to bind
        self.url = f"{'https' if secure else 'http'}://{host}:{self.port}/"
        access = Access({role: read_token(home.gateway, role) for role in Role}, self.port)
        self._note = Note(home.gateway_note)
        self.hub = Hub(self.bus)
        self._pages = 0
        self._closing = asyncio.Event()
        page = Path(tuning.page).expanduser() if tuning.page else _PAGE
        routes = Routes(self.bus, self.hub, page, home.experiments)
        inner = Starlette(routes=[WebSocketRoute("/ws", self._serve_page), *routes.table()])
        self.app: ASGIApp = Guard(inner, access, allowed_hosts(tuning, self.port), secure=secure)
        self._server = _Server(
            uvicorn.Config(
                self.app,
                ws="websockets-sansio",
                ws_per_message_deflate=False,
                ws_max_size=_MESSAGE_BYTES,
                http=Connection,
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                limit_concurrency=_MOST_CONNECTIONS,
                timeout_graceful_shutdown=_SHUTDOWN_S,
                ssl_certfile=tuning.tls_certificate or None,
                ssl_keyfile=tuning.tls_key or None,
            )
        )

    async def start(self) -> None:
        """Listen to the bus, then to browsers."""
        await self.hub.start()
        self.spawn(self.hub.listen(), "listen")
        self.spawn(self.hub.tick(), "tick")
        self.spawn(self._server.serve(sockets=[self._socket]), "server")
        deadline = time.monotonic() + 10
        while not self._server.started and time.monotonic() < deadline:
            await asyncio.sleep(0.01)
        self._note.write(self.url)
        _log.info("listening", url=self.url)

    async def finish(self) -> None:
        """Close all pages and the server."""
        self._note.remove()
        self._closing.set()
        self._server.should_exit = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_SHUTDOWN_S + 1):
                while self._server.started and self._server.servers and not self._socket_closed():
                    await asyncio.sleep(0.02)
        await self.hub.close()
        self._socket.close()
        self._lock.close()

    def _socket_closed(self) -> bool:
        return self._pages == 0 and not self._server.server_state.connections

    def counters(self) -> dict[str, int | float]:
        """Count pages and questions to telemetry."""
        return {"pages": self._pages, "pulls": self.hub.pulls}

    def details(self) -> dict[str, Any]:
        """Where it listens."""
        return {"url": self.url}

    async def _serve_page(self, socket: WebSocket) -> None:
        if self._pages >= _MOST_PAGES:
            await socket.accept()
            await socket.close(_TOO_MANY, "too many pages")
            return
        self._pages += 1
        serving = asyncio.create_task(Page(socket, self.hub, socket.scope["role"]).serve())
        closing = asyncio.create_task(self._closing.wait())
        try:
            await asyncio.wait([serving, closing], return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._pages -= 1
            closing.cancel()
            serving.cancel()
            await asyncio.gather(serving, closing, return_exceptions=True)
