"""The part of the gateway bench with pages: a real stack, a real Chromium, and twenty WebSocket clients.

Needs the packages of scripts/setup --dev.
"""

from __future__ import annotations

import gzip
import json
import multiprocessing
import os
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "support"))

from chromium import chromium, dashboard, free_port, why_no_chromium  # noqa: E402
from gateway_client import Gateway  # noqa: E402
from stack import STRESS, Stack, wait_until  # noqa: E402
from websockets.exceptions import ConnectionClosed  # noqa: E402

from mosaic_bus.commands import CancelGroup, SubmitMany  # noqa: E402
from mosaic_bus.messages import RunSpec  # noqa: E402
from mosaic_services.attempt_folder.proc import lower_priority  # noqa: E402
from mosaic_services.environments import build, read_recipe  # noqa: E402

if TYPE_CHECKING:
    from multiprocessing.synchronize import Event as Stop

__all__ = ["measure"]

PAGES = 20
LOADS = 5
FRAMES = 300
STREAM_S = 10.0
TRAINING_ROUNDS = 9
TRAINING_S = 4.0
# Events per second of the run that is streamed. Twenty pages multiply it.
EVENT_RATE = 8000.0

# Runs in the page before everything else: remembers when the first row of a run was painted.
_FIRST_ROW = """
new MutationObserver((_, observer) => {
    if (!document.querySelector('tbody a[href^="/run/"]')) return;
    observer.disconnect();
    requestAnimationFrame(() => setTimeout(() => { window.firstRow = performance.now(); }));
}).observe(document, { childList: true, subtree: true });
"""


def measure(say: Any) -> dict[str, float]:
    """Return all figures that need pages."""
    if why := why_no_chromium():
        raise SystemExit(f"no browser: {why}")
    for worker in (STRESS, ROOT / "workers" / "baseline_worker"):
        build(read_recipe(worker), "default", lambda _step, _percent: None)
    figures: dict[str, float] = {"js_kb": round(script_kb(), 1)}
    environ = {"MOSAIC_GATEWAY__PORT": str(free_port())}
    with (
        tempfile.TemporaryDirectory(prefix="mosaic-bench-") as scratch,
        Stack(Path(scratch) / "home", cpus=64, also=("gateway",), environ=environ) as stack,
    ):
        with chromium() as browser:
            say("500 runs")
            store_runs(stack, 500)
            small = first_paint(browser, stack)
            say("frames")
            figures["frame_p50_ms"] = round(frame_delay(browser, stack), 1)
            say("5,000 runs")
            store_runs(stack, 4500)
            large = first_paint(browser, stack)
        figures["first_paint_ms"] = round(small)
        figures["paint_ratio"] = round(large / small, 2)
        say(f"{PAGES} pages: events")
        figures.update(stream(stack))
        say(f"{PAGES} pages: training")
        figures["training_ratio"] = round(training(stack), 3)
    return figures


def script_kb() -> float:
    """Return the size of all scripts of the page, as a browser would get them compressed."""
    scripts = sorted((ROOT / "services" / "dashboard" / "dist" / "assets").glob("*.js"))
    if not scripts:
        raise SystemExit("the dashboard is not built: run scripts/setup")
    return sum(len(gzip.compress(script.read_bytes(), 9)) for script in scripts) / 1000


def store_runs(stack: Stack, count: int) -> None:
    """Store runs that have ended: they wait for a host that never comes, and are cancelled."""
    group = f"stored-{count}"
    for first in range(0, count, 500):
        specs = [
            RunSpec(worker="stress", name=f"{group}-{i}", group=group, requires=("nowhere",), wait_for_host=True)
            for i in range(first, first + 500)
        ]
        stack.bus.request("scheduler", SubmitMany(runs=[{"spec": spec} for spec in specs]), timeout=120)
    stack.bus.request("scheduler", CancelGroup(group=group), timeout=120)


def first_paint(browser: Any, stack: Stack) -> float:
    """Return the median time in ms from the address to the first painted row of the table of runs."""
    with dashboard(browser, stack) as board:
        board.page.add_init_script(_FIRST_ROW)
        times = []
        for _ in range(LOADS):
            board.open("/runs")
            times.append(board.wait("() => window.firstRow"))
    return statistics.median(times)


def frame_delay(browser: Any, stack: Stack) -> float:
    """Return the median time in ms from the publication of a frame by its worker to its drawing on the canvas."""
    config = {"events": 10**9, "rate": 10.0, "frames": 10**6, "frames_by_child": True, "frame_shape": [480, 640, 3]}
    run = stack.submit(config={**config, "frame_rate": 30})
    with dashboard(browser, stack) as board:
        board.open(f"/run/{run}")
        canvas = ".run-frame canvas"
        board.wait(f"() => document.querySelector('{canvas}')?.dataset.drawn")
        script = f"""(wanted) => new Promise((done) => {{
            const canvas = document.querySelector('{canvas}'), delays = [];
            new MutationObserver(() => {{
                delays.push(canvas.dataset.drawn - canvas.dataset.wall);
                if (delays.length >= wanted) done(delays);
            }}).observe(canvas, {{ attributeFilter: ['data-drawn'] }});
        }})"""
        delays = board.page.evaluate(script, FRAMES)
    stack.cancel(run)
    stack.wait_final(run)
    return 1000 * statistics.median(delays)


def read_curves(url: str, cookie: str, run: str, metric: str, events: Any, stop: Stop) -> None:
    """Be a page: follow the curve of a run, give every credit back, and count the events that came."""
    from websockets.sync.client import connect  # noqa: PLC0415 - of the process of the page

    origin = url.rstrip("/")
    headers = {"Cookie": cookie, "Origin": origin}
    with connect(origin.replace("http", "ws", 1) + "/ws", additional_headers=headers, compression=None) as page:
        page.recv()
        watch = {"type": "watch_series", "id": 1, "run": run, "metrics": [metric], "max_points": 2000, "since": []}
        page.send(json.dumps({"type": "watch_states"}))
        page.send(json.dumps(watch))
        while not stop.is_set():
            try:
                message = json.loads(page.recv(timeout=0.5))
            except TimeoutError:
                continue
            except ConnectionClosed:
                return
            if message["type"] == "series":
                events.value += sum(sum(curve["counts"]) for curve in message["curves"])
            page.send('{"type": "credit", "n": 1}')


def yield_cpu() -> None:
    """Take only CPU time that nobody else wants, and of one CPU.

    In the session of this bench, which is that of the services, they would go before the worker; see `lower_priority`.
    On any CPU they would also move the worker about, which pages on other machines do not.
    """
    os.setsid()
    lower_priority(19)
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})


def be_pages(url: str, cookie: str, run: str, metric: str, events: list[Any], stop: Stop, last: bool) -> None:
    """Be twenty pages, each a thread; `last` in line for the CPU, if told so."""
    if last:
        yield_cpu()
    pages = [threading.Thread(target=read_curves, args=(url, cookie, run, metric, each, stop)) for each in events]
    for page in pages:
        page.start()
    for page in pages:
        page.join()


class Pages:
    """Twenty pages in a process of their own."""

    def __init__(self, stack: Stack, run: str, metric: str = "reward", *, last: bool = False) -> None:
        gateway = Gateway(stack)
        spawn = multiprocessing.get_context("spawn")
        self.stop = spawn.Event()
        self.events = [spawn.Value("q", 0) for _ in range(PAGES)]
        arguments = (gateway.url, gateway.log_in(), run, metric, self.events, self.stop, last)
        self._process = spawn.Process(target=be_pages, args=arguments)

    def __enter__(self) -> Self:
        self._process.start()
        wait_until("all pages have points", lambda: all(self.counts()))
        return self

    def __exit__(self, *_: object) -> None:
        self.stop.set()
        self._process.join(30)

    def counts(self) -> list[int]:
        """How many events each page has received."""
        return [each.value for each in self.events]


def stream(stack: Stack) -> dict[str, float]:
    """Return the events per second that twenty pages receive together, and the slowest page against the fastest."""
    run = stack.submit(config={"events": 10**9, "rate": EVENT_RATE})
    stack.wait_state(run, "running")
    with Pages(stack, run) as pages:
        before, began = pages.counts(), time.monotonic()
        time.sleep(STREAM_S)
        after, took = pages.counts(), time.monotonic() - began
    stack.cancel(run)
    stack.wait_final(run)
    gained = [late - early for late, early in zip(after, before, strict=True)]
    return {
        "stream_events_per_s": round(sum(gained) / took),
        "fairness": round(min(gained) / max(1, *gained), 2),
    }


def training(stack: Stack) -> float:
    """Return the speed of a run with twenty pages open, as a ratio of its speed with none, in turns.

    Pages are on other machines; here they take only what is left of one CPU.
    """
    config = {"agent": "random", "env_id": "CartPole-v1", "episodes": 10**7, "step_events": False}
    run = stack.submit(worker="baseline", config=config, resources={"cpus": 1, "memory_mb": 512})
    stack.wait_state(run, "running")
    wait_until("episodes end", lambda: newest_step(stack, run) > 0)

    def speed() -> float:
        first, began = newest_step(stack, run), time.monotonic()
        time.sleep(TRAINING_S)
        return (newest_step(stack, run) - first) / (time.monotonic() - began)

    ratios, before = [], speed()
    for _ in range(TRAINING_ROUNDS):
        with Pages(stack, run, metric="episode_return", last=True):
            watched = speed()
        after = speed()
        ratios.append(2 * watched / (before + after))  # of both neighbours, so that a slow drift does not count
        before = after
    stack.cancel(run)
    stack.wait_final(run)
    return statistics.median(ratios)


def newest_step(stack: Stack, run: str) -> int:
    """Return the newest step in the journal: what the worker has done, whatever happens to it afterwards."""
    with stack.journal(run).open("rb") as journal:
        journal.seek(max(0, journal.seek(0, os.SEEK_END) - 4000))
        lines = journal.read().split(b"\n")[1:-1]
    return max((json.loads(line).get("step") or 0 for line in lines), default=0)
