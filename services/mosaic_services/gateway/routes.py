"""The routes: commands, their description, files of runs, live frames for `curl`, the page's own files."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

import orjson
from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import FileResponse, Response, StreamingResponse
from starlette.routing import Route

from mosaic_bus import topics
from mosaic_bus.commands import ReadFile, Show
from mosaic_bus.errors import BusError, CommandRefusedError, NoAnswerError
from mosaic_bus.refusals import Problem, RefusalCode, RefusalDetails, explain, find_problems
from mosaic_services.gateway.guard import refuse
from mosaic_services.gateway.registry import STATUS, find_command, is_query, openapi
from mosaic_services.gateway.reports import Reports
from mosaic_services.gateway_files import Role
from mosaic_services.masking import MASK, find_mask, mask

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.requests import Request

    from mosaic_bus.client import BusClient
    from mosaic_bus.commands import FileChunk
    from mosaic_services.gateway.hub import Hub

__all__ = ["MAX_DEPTH", "Routes"]

MAX_DEPTH = 64
"""Nested lists and maps in the body of a request."""
_ANSWER_S = 30.0
_CHUNK_BYTES = 1024 * 1024
# Files that a browser may show by itself; all others are downloads.
_SHOWN = {
    ".png": "image/png",
    ".jpg": "image/jpeg",
    ".jpeg": "image/jpeg",
    ".gif": "image/gif",
    ".webp": "image/webp",
    ".mp4": "video/mp4",
    ".webm": "video/webm",
    ".txt": "text/plain; charset=utf-8",
    ".log": "text/plain; charset=utf-8",
    ".json": "text/plain; charset=utf-8",
    ".jsonl": "text/plain; charset=utf-8",
    ".csv": "text/plain; charset=utf-8",
    ".yaml": "text/plain; charset=utf-8",
}
_RANGE = re.compile(r"bytes=(\d{1,15})-(\d{0,15})")
_NO_PAGE = (
    "The dashboard is not built: run scripts/setup. Commands are below /api/, live data at /ws: see docs/gateway.md."
)
_BOUNDARY = "frame"
_STRING = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_LEAST_DIMENSION, _MOST_DIMENSION = 16, 4096


class Routes:
    """The handlers, on a connection to the bus."""

    def __init__(self, bus: BusClient, hub: Hub, page: Path, experiments: Path) -> None:
        self._bus = bus
        self._reports = Reports(experiments)
        self._hub = hub
        self._page = page
        self._missing = "no such file" if page.is_dir() else _NO_PAGE

    def table(self) -> list[Route]:
        """Return all routes but that of the WebSocket."""
        return [
            Route("/healthz", self.health),
            Route("/api/openapi.json", self.describe),
            Route("/api/{service}/{command}", self.command, methods=["POST"]),
            Route("/files/{run}/{path:path}", self.file),
            Route("/frames/{run}.mjpeg", self.frames),
            Route("/reports/{experiment}", self._reports.about),
            Route("/reports/{experiment}/{path:path}", self._reports.file),
            Route("/{path:path}", self.static),
        ]

    async def health(self, _: Request) -> Response:
        """Name the services that are silent; nothing else, since anybody may ask."""
        silent = self._hub.silent
        return _json({"ok": not silent, "silent": sorted(silent)}, 503 if silent else 200)

    async def describe(self, _: Request) -> Response:
        """Return the OpenAPI document."""
        return _json(openapi())

    async def command(self, request: Request) -> Response:
        """Send a command to a service and return its result, or its refusal."""
        service, name = request.path_params["service"], request.path_params["command"]
        kind = find_command(service, name)
        if kind is None:
            return refuse(404, "unknown_command", f"no service {service} has a command {name}: see /api/openapi.json")
        if request.scope["role"] is not Role.OWNER and not is_query(kind):
            return refuse(403, "viewer", f"{name} changes something, and this token may only look")
        # A form of another page cannot send this type without being asked first.
        if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
            return refuse(415, "not_json", "send application/json")
        try:
            body = await request.body()
        except ClientDisconnect:
            return refuse(413, "too_large", "the request is too large")
        try:
            if not is_shallow(body, MAX_DEPTH):
                return refuse(422, "too_deep", f"at most {MAX_DEPTH} lists and maps may be nested")
            document = orjson.loads(body or b"{}")
            if (masked := find_mask(document)) is not None:
                return refused(_is_masked(masked))
            command = kind.model_validate(document)
        except ValidationError as error:
            problems = RefusalDetails(problems=find_problems(error))
            return refused(CommandRefusedError(RefusalCode.INVALID_ARGUMENTS, explain(error), problems))
        except ValueError as error:
            return refuse(422, "not_json", f"the body is not JSON: {error}")
        try:
            result = await self._bus.request(service, command, timeout=_ANSWER_S)
        except CommandRefusedError as error:
            return refused(error)
        except NoAnswerError as error:
            return refuse(504, "no_answer", str(error))
        except BusError as error:
            return refuse(503, "no_bus", str(error))
        return _json(mask(result.model_dump(mode="json")))

    # ── files ───────────────────────────────────────────────────────────────────────────────────

    async def file(self, request: Request) -> Response:
        """Return a file of a run from the host that has it: a download, or shown in a sandbox with `?show`."""
        run, path = request.path_params["run"], request.path_params["path"]
        try:
            host = await self._host_of(run, path)
            asked = _RANGE.fullmatch(request.headers.get("range", ""))
            start = int(asked[1]) if asked else 0
            first = await self._read(host, run, path, start)
        except CommandRefusedError as error:
            return refused(error)
        except BusError as error:
            return refuse(504, "no_answer", str(error))
        except ValidationError as error:
            return refuse(404, "unknown_file", explain(error))
        end = min(int(asked[2]) + 1, first.bytes) if asked and asked[2] else first.bytes
        if asked and start >= end:
            return Response(status_code=416, headers={"content-range": f"bytes */{first.bytes}"})
        name = PurePosixPath(path).name
        kind = _SHOWN.get(PurePosixPath(name).suffix.lower()) if "show" in request.query_params else None
        ascii_name = re.sub(r"[^A-Za-z0-9._-]", "_", name)
        headers = {
            "content-length": str(end - start),
            "accept-ranges": "bytes",
            "content-disposition": f'{"inline" if kind else "attachment"}; filename="{ascii_name}"',
            "content-security-policy": "default-src 'none'; sandbox",
        }
        if asked:
            headers["content-range"] = f"bytes {start}-{end - 1}/{first.bytes}"
        stream = self._stream(host, run, path, first, start, end)
        return StreamingResponse(stream, 206 if asked else 200, headers, kind or "application/octet-stream")

    async def _host_of(self, run: str, path: str) -> str:
        """Find the host of the attempt that a path begins with."""
        attempt = path.partition("/")[0]
        detail = await self._bus.request("scheduler", Show(run=run), timeout=_ANSWER_S)
        for each in detail.attempts:
            if str(each["attempt"]) == attempt and each.get("host"):
                return str(each["host"])
        said = f"run {run} has no attempt {attempt!r}: a path begins with the number of an attempt"
        raise CommandRefusedError(RefusalCode.UNKNOWN_FILE, said, RefusalDetails(value=attempt))

    async def _read(self, host: str, run: str, path: str, start: int) -> FileChunk:
        command = ReadFile(run=run, path=path, start=start, limit=_CHUNK_BYTES)
        return await self._bus.request(topics.supervisor(host), command, timeout=_ANSWER_S)

    async def _stream(
        self, host: str, run: str, path: str, chunk: FileChunk, start: int, end: int
    ) -> AsyncIterator[bytes]:
        while start < end:
            if not chunk.data:
                raise ConnectionError(f"{path} became shorter while it was read")
            data = chunk.data[: end - start]
            yield data
            start += len(data)
            if start < end:
                chunk = await self._read(host, run, path, start)

    # ── frames ──────────────────────────────────────────────────────────────────────────────────

    async def frames(self, request: Request) -> Response:
        """Stream the frames of a run as MJPEG. For `curl` and players: a browser allows few such streams."""
        run = request.path_params["run"]
        given = request.query_params.get("max_dim", "640")
        if not given.isdecimal() or not _LEAST_DIMENSION <= int(given) <= _MOST_DIMENSION:
            return refuse(422, "invalid_arguments", f"max_dim is from {_LEAST_DIMENSION} to {_MOST_DIMENSION}")
        if run not in self._hub.view.runs:
            return refuse(404, "unknown_run", f"run {run!r} is not known, or ended long ago; give its whole id")
        kind = f"multipart/x-mixed-replace; boundary={_BOUNDARY}"
        return StreamingResponse(self._pictures(run, int(given)), media_type=kind)

    async def _pictures(self, run: str, max_dim: int) -> AsyncIterator[bytes]:
        async with self._hub.frames.watch(run, max_dim) as relay:
            seen = 0
            while not self._hub.has_ended(run):
                seen, picture = await relay.newer_than(seen, timeout=1.0)
                if picture is not None:
                    head = f"--{_BOUNDARY}\r\nContent-Type: image/jpeg\r\nContent-Length: {len(picture.jpeg)}\r\n\r\n"
                    yield head.encode() + picture.jpeg + b"\r\n"
        yield f"--{_BOUNDARY}--\r\n".encode()

    # ── the page ────────────────────────────────────────────────────────────────────────────────

    async def static(self, request: Request) -> Response:
        """Return a file of the page, if it was built; all addresses without a file are views of it."""
        asked = request.path_params["path"]
        if asked.startswith(("api/", "files/", "frames/", "reports/")):
            return refuse(404, "unknown_route", f"there is no /{asked}")
        found = await asyncio.to_thread(self._find, asked or "index.html")
        if found is None and "." not in PurePosixPath(asked).name:
            found = await asyncio.to_thread(self._find, "index.html")
        if found is None:
            raise HTTPException(404, self._missing)
        fresh = "public, max-age=31536000, immutable" if "/assets/" in f"/{asked}" else "no-cache"
        return FileResponse(found, headers={"cache-control": fresh})

    def _find(self, asked: str) -> Path | None:
        root = self._page.resolve()
        try:
            path = (root / asked).resolve()
        except (OSError, ValueError):  # such as a NUL in the name
            return None
        return path if path.is_relative_to(root) and path.is_file() else None


def is_shallow(body: bytes, limit: int) -> bool:
    """Whether a JSON text nests at most so many lists and maps; counts without parsing."""
    if body.count(b"[") + body.count(b"{") <= limit:
        return True
    depth = 0
    for byte in _STRING.sub(b"", body).translate(None, _NO_BRACKETS):
        depth += 1 if byte in b"[{" else -1
        if depth > limit:
            return False
    return True


def _is_masked(path: str) -> CommandRefusedError:
    said = f"{path} holds {MASK}, which stands for a secret that is not shown: give the secret itself, or leave it out"
    problem = Problem(field=path, message=said)
    return CommandRefusedError(RefusalCode.INVALID_ARGUMENTS, said, RefusalDetails(field=path, problems=[problem]))


def refused(error: CommandRefusedError) -> Response:
    """Make the answer of a refusal."""
    status = STATUS.get(RefusalCode.read(error.code), 409)
    details = error.details.model_dump(mode="json", exclude_defaults=True)
    return _json(mask({"code": str(error.code), "message": error.message, "details": details}), status)


def _json(document: Any, status: int = 200) -> Response:
    try:
        content = orjson.dumps(document)
    except TypeError:  # an integer beyond 64 bits
        content = json.dumps(document).encode()
    return Response(content, status, media_type="application/json")
