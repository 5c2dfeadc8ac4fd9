"""A real Chromium with the dashboard of a stack open in it. It fails on anything that a user's console would show."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import socket
import subprocess
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from gateway_client import Gateway
from playwright.sync_api import expect, sync_playwright

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page
    from stack import Stack

CHROMIUM = "/usr/bin/chromium"
AXE = Path(__file__).parents[2] / "services" / "dashboard" / "node_modules" / "axe-core" / "axe.min.js"
# Deadline of a wait in the page; generous, so that a busy machine does not fail tests.
PATIENCE_MS = 60_000
expect.set_options(timeout=PATIENCE_MS)
# Folder for a picture of every page that a test checks; without it, none is taken.
SCREENSHOTS = os.environ.get("MOSAIC_SCREENSHOTS", "")
PHONE = {"width": 390, "height": 844}
DESK = {"width": 1280, "height": 900}


def why_no_chromium() -> str:
    """Return why no browser can be had, or an empty text. Debian's is installed if it is missing."""
    if Path(CHROMIUM).exists():
        return ""
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        return f"{CHROMIUM} is missing, and only root on Debian can install it: apt-get install chromium"
    # Several test processes may come here at once, and apt-get does not wait for another one.
    with Path(tempfile.gettempdir(), "mosaic-chromium.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if Path(CHROMIUM).exists():
            return ""
        print("installing Debian's chromium for the browser tests (once)", flush=True)
        for words in (["update"], ["install", "-y", "--no-install-recommends", "chromium"]):
            done = subprocess.run(["apt-get", "-q", *words], capture_output=True, text=True, check=False)
    return "" if Path(CHROMIUM).exists() else f"apt-get could not install chromium: {done.stderr[-500:]}"


def free_port() -> int:
    """Return a port that nobody listens on: a gateway that is restarted must come back where pages look for it."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextlib.contextmanager
def chromium() -> Iterator[Browser]:
    """Start a browser that can resolve no name but this machine's."""
    arguments = ["--disable-dev-shm-usage", "--disable-gpu", "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"]
    if os.geteuid() == 0:
        arguments.append("--no-sandbox")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=arguments)
        yield browser
        browser.close()


@dataclass
class Dashboard:
    """A logged-in page, and everything that went wrong in it."""

    page: Page
    gateway: Gateway
    troubles: list[str] = field(default_factory=list)
    # Whether connections that fail are expected: the browser reports each in its console.
    cut_off: bool = False

    def open(self, path: str) -> None:
        """Load an address of the page."""
        self.page.goto(f"{self.gateway.url.rstrip('/')}{path}")
        self.page.wait_for_selector('#link[data-link="open"]', timeout=PATIENCE_MS)

    def wait(self, expression: str, argument: Any = None) -> Any:
        """Wait until a JavaScript expression is true; return its value."""
        handle = self.page.wait_for_function(expression, arg=argument, timeout=PATIENCE_MS)
        return handle.json_value()

    def points(self, run: str, metric: str) -> dict[str, Any]:
        """Return what the page has of a curve: its position in the store, and its columns."""
        script = """([run, metric]) => {
            const found = mosaic.points().find((each) => each.run === run && metric in each.curves);
            return found ? { position: found.position, ...found.curves[metric] } : null;
        }"""
        return self.page.evaluate(script, [run, metric]) or {"position": [], "steps": [], "counts": [], "values": []}

    def axe(self, what: str = "") -> list[str]:
        """Return the violations of accessibility rules that axe-core finds; `what` names the picture, too."""
        self._take_picture(what)
        self.page.add_script_tag(path=AXE)
        script = "axe.run().then((r) => r.violations.map((v) => `${v.id}: ${v.nodes.map((n) => n.html).join(' | ')}`))"
        return self.page.evaluate(script)

    def width(self) -> int:
        """Return the width of the page in pixels; a page that is wider than its window is scrolled sideways."""
        self._take_picture()
        return self.page.evaluate("() => document.documentElement.scrollWidth")

    def _take_picture(self, what: str = "") -> None:
        if not SCREENSHOTS:
            return
        parts = urlsplit(self.page.url)
        words = re.sub(r"\b[0-9A-Z]{26}\b", "id", f"{parts.path} {parts.query} {what}")
        dark = self.page.evaluate("() => matchMedia('(prefers-color-scheme: dark)').matches")
        size = self.page.viewport_size or DESK
        name = [re.sub(r"\W+", "-", words).strip("-") or "overview", "dark" if dark else "light", str(size["width"])]
        self.page.screenshot(path=Path(SCREENSHOTS) / f"{'.'.join(name)}.png", full_page=True)

    def note(self, text: str) -> None:
        """Remember a trouble, unless it is one of a connection that was cut off on purpose."""
        words = ("net::ERR_", "WebSocket", "status of 401", "status of 50")
        expected = self.cut_off and any(word in text for word in words)
        if not expected:
            self.troubles.append(text)


@contextlib.contextmanager
def dashboard(
    browser: Browser,
    stack: Stack,
    *,
    theme: str = "light",
    viewer: bool = False,
    size: dict[str, int] | None = None,
    axe: bool = False,
) -> Iterator[Dashboard]:
    """Open the dashboard of a stack by the address that `mosaic open` prints."""
    gateway = Gateway(stack)
    context: BrowserContext = browser.new_context(color_scheme=theme, viewport=size or DESK, bypass_csp=axe)
    context.set_default_timeout(PATIENCE_MS)
    page = context.new_page()
    board = Dashboard(page, gateway)
    page.on("console", lambda message: _hear(board, message))
    page.on("pageerror", lambda error: board.troubles.append(f"exception: {error}"))
    page.on("request", lambda request: _check_address(board, request.url))
    page.goto(f"{gateway.url}?token={gateway.viewer if viewer else gateway.token}")
    page.wait_for_selector('#link[data-link="open"]', timeout=PATIENCE_MS)
    try:
        yield board
    finally:
        context.close()
    assert board.troubles == [], board.troubles


def _hear(board: Dashboard, message: ConsoleMessage) -> None:
    if message.type == "error":
        board.note(f"console: {message.text} ({message.location['url']})")


def _check_address(board: Dashboard, url: str) -> None:
    parts = urlsplit(url)
    if parts.scheme not in {"data", "blob"} and parts.hostname != "127.0.0.1":
        board.troubles.append(f"a request left this machine: {url}")
