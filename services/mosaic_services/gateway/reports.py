"""The pages of reports of experiments: HTML without scripts, shown in a frame of the dashboard or by itself."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import os
import re
import stat
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from starlette.responses import JSONResponse, Response

from mosaic_services.experiments.errors import FolderError
from mosaic_services.experiments.folder import ExperimentFolder
from mosaic_services.gateway.guard import refuse
from mosaic_services.masking import blank, secrets_in
from mosaic_services.open_below import open_below, parts_of

if TYPE_CHECKING:
    from pathlib import Path

    from starlette.requests import Request

__all__ = ["Reports"]

_KINDS = {
    ".html": "text/html; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".gif": "image/gif",
    ".mp4": "video/mp4",
    ".pdf": "application/pdf",
    ".csv": "text/csv; charset=utf-8",
    ".json": "application/json",
    ".md": "text/plain; charset=utf-8",
    ".tex": "text/plain; charset=utf-8",
}
# No script, no form, no other origin. It keeps its own origin, or its videos would be asked for without the cookie.
_POLICY = (
    "default-src 'none'; style-src {styles}; img-src 'self'; media-src 'self'; base-uri 'none';"
    " form-action 'none'; frame-ancestors 'self'; sandbox allow-same-origin allow-downloads"
)
_STYLE = re.compile(rb"<style>(.*?)</style>", re.DOTALL)
# A figure by itself has styles of its own, and is not shown but downloaded.
_DOWNLOADED = ".svg"
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_MOST_BYTES = 512 * 1024 * 1024


class Reports:
    """Serves `report/` of each experiment's folder."""

    def __init__(self, experiments: Path) -> None:
        self._experiments = experiments

    async def about(self, request: Request) -> Response:
        """Say when the report of an experiment was written; null if there is none."""
        name = request.path_params["experiment"]
        index = self._experiments / name / "report" / "index.html"
        known = _NAME.fullmatch(name) is not None
        written = index.stat().st_mtime if known and await asyncio.to_thread(index.is_file) else None
        return JSONResponse({"written_at": written})

    async def file(self, request: Request) -> Response:
        """Return a file of a report, with `*` in the place of secrets of the experiment."""
        name, path = request.path_params["experiment"], request.path_params["path"] or "index.html"
        try:
            data = await asyncio.to_thread(self._read, name, path)
        except (OSError, ValueError):
            said = f"experiment {name!r} has no report with a file {path!r}: mosaic report {name}"
            return refuse(404, "unknown_file", said)
        suffix = PurePosixPath(path).suffix.lower()
        headers = {"content-security-policy": _POLICY.format(styles=_styles(data)), "x-frame-options": "SAMEORIGIN"}
        if suffix == _DOWNLOADED:
            headers["content-disposition"] = "attachment"
        return Response(data, headers=headers, media_type=_KINDS.get(suffix, "application/octet-stream"))

    def _read(self, name: str, path: str) -> bytes:
        if not _NAME.fullmatch(name):
            raise ValueError("not the name of an experiment")
        with open_below(self._experiments, [name, "report", *parts_of(path)]) as file:
            status = os.fstat(file)
            if not stat.S_ISREG(status.st_mode) or status.st_size > _MOST_BYTES:
                raise ValueError("not a file to show")
            with os.fdopen(os.dup(file), "rb") as reader:
                data = reader.read()
        try:
            plan = ExperimentFolder(self._experiments / name).read_plan()
        except FolderError:
            return data
        return blank(data, secrets_in(plan))


def _styles(data: bytes) -> str:
    """Allow the first style sheet of a page, which stands in its head, before anything that names could reach."""
    found = _STYLE.search(data)
    if found is None:
        return "'none'"
    return f"'sha256-{base64.b64encode(hashlib.sha256(found[1]).digest()).decode()}'"
