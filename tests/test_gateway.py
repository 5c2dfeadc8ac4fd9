"""The gateway of a real stack: commands over HTTP, everything live over one WebSocket, files and frames."""

from __future__ import annotations

import asyncio
import http.client
import json
import random
import signal
import socket
import subprocess
import sys
import time

import pytest
from fake_bridge import FakeBridge
from gateway_client import PATIENCE_S, Gateway, read, read_to_the_end, say, until
from stack import Stack, wait_until
from ulid import ULID
from websockets.exceptions import ConnectionClosed

from mosaic_bus.commands import Series, Stats
from mosaic_bus.service import Service

RUNNING = {"events": 10**9, "rate": 200.0}


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture(scope="module")
def stack(tmp_path_factory, workers):
    # The same port after every restart: a cookie is valid for its port only.
    environ = {"MOSAIC_GATEWAY__PORT": str(free_port())}
    with Stack(tmp_path_factory.mktemp("gateway") / "home", cpus=16, also=("gateway",), environ=environ) as stack:
        yield stack
    assert stack.leftovers() == []


@pytest.fixture
def gateway(stack):
    return Gateway(stack)


@pytest.fixture
def run(stack):
    run = stack.submit(config=RUNNING)
    stack.wait_state(run, "running")
    yield run
    stack.cancel(run)
    stack.wait_final(run)


def test_every_command_is_described_and_answers(stack, gateway):
    document = gateway.get("/api/openapi.json").json()
    assert document["paths"]["/api/scheduler/submit"]["post"]["x-viewer"] is False
    assert document["paths"]["/api/telemetry/series"]["post"]["x-viewer"] is True
    assert "/api/supervisor.{host}/describe" in document["paths"]
    assert not any(
        path.endswith(("/place", "/forget", "/remove_files", "/remove_events")) for path in document["paths"]
    )
    answer = gateway.command("scheduler", "submit", spec={"worker": "stress", "config": {"events": 5}, "name": "web"})
    assert answer.status == 200
    run = answer.json()["run"]
    assert stack.wait_final(run).state == "succeeded"
    assert gateway.command("scheduler", "show", run="web").json()["run"]["state"] == "succeeded"
    refused = gateway.command("scheduler", "submit", spec={"worker": "stres"})
    assert (refused.status, refused.json()["code"], refused.json()["details"]["near"]) == (
        404,
        "unknown_worker",
        ["stress"],
    )
    wrong = gateway.command("scheduler", "runs", limit="many")
    assert (wrong.status, wrong.json()["details"]["problems"][0]["field"]) == (422, "limit")
    assert gateway.command("supervisor.testhost", "ping").json() == {"note": "pong"}
    assert gateway.command("supervisor.testhost", "place", run=run).status == 404
    assert gateway.command("nobody", "ping").status == 404
    # A service may miss a few seconds on a busy machine.
    wait_until("all are heard", lambda: gateway.ask("GET", "/healthz").json() == {"ok": True, "silent": []})


def test_page_sees_states_from_the_queue_to_the_end(stack, gateway):
    with gateway.page() as page:
        assert read(page) == {"type": "welcome", "protocol": 1, "role": "owner", "credits": 32}
        say(page, type="watch_states")
        first = until(page, lambda message: message["type"] == "states")
        assert first["whole"]
        # States come four times a second: the run takes longer than that.
        run = stack.submit(config={"events": 60, "rate": 30}, name="seen")
        seen: list[str] = []
        complete = False
        # The last summary may come before the last state, after it, or in the same message.
        while not (complete and seen[-1:] == ["succeeded"]):
            message = until(page, lambda message: message["type"] == "states")
            assert not message["whole"]
            seen += [each["state"] for each in message["runs"] if each["run"] == run]
            complete |= any(each["run"] == run and each["complete"] for each in message["summaries"])
        assert seen[0] in {"queued", "preparing", "starting", "running"}
        gateway.command("scheduler", "delete", runs=[run])
        until(page, lambda message: run in message["gone"])


def test_states_come_four_times_a_second_however_often_a_page_gets_frames_and_gives_credits(stack, gateway):
    runs = [stack.submit(config={**RUNNING, "frames": 10**6, "frames_by_child": True}) for _ in range(3)]
    for run in runs:
        stack.wait_state(run, "running")
    with gateway.page() as page:
        read(page)
        say(page, type="watch_states")
        for number, run in enumerate(runs):
            say(page, type="watch_frames", id=number, run=run, max_dim=160)
        until(page, lambda message: message["type"] == "frame")
        states, frames, began = 0, 0, time.monotonic()
        while (passed := time.monotonic() - began) < 8:
            kind = until(page, lambda _: True)["type"]
            states, frames = states + (kind == "states"), frames + (kind == "frame")
    # Some may have been on their way, if this process was held up. Without the limit it was seven a second.
    assert 0 < states <= 4 * passed + 8
    for run in runs:
        stack.cancel(run)
        stack.wait_final(run)


def test_page_hears_that_a_service_is_silent(stack, gateway):
    with gateway.page() as page:
        read(page)
        say(page, type="watch_states")
        until(page, lambda message: message["type"] == "states" and not message["silent"])
        scheduler = stack.processes["scheduler"]
        scheduler.send_signal(signal.SIGSTOP)
        try:
            until(page, lambda message: "scheduler" in message["silent"])
            health = gateway.ask("GET", "/healthz")
            assert (health.status, health.json()["ok"], "scheduler" in health.json()["silent"]) == (503, False, True)
        finally:
            scheduler.send_signal(signal.SIGCONT)
        until(page, lambda message: not message["silent"])


def test_open_prints_the_address_with_a_token(stack, gateway, tmp_path):
    def mosaic_open(home, *words: str) -> subprocess.CompletedProcess[str]:
        words = ("open", "--json", "--home", str(home), *words)
        command = [sys.executable, "-m", "mosaic_services.cli", *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    assert json.loads(mosaic_open(stack.home.path).stdout) == {"url": f"{gateway.url}?token={gateway.token}"}
    viewer = json.loads(mosaic_open(stack.home.path, "--viewer").stdout)["url"]
    assert viewer == f"{gateway.url}?token={gateway.viewer}"
    assert mosaic_open(tmp_path).returncode == 3


class Curve:
    """What a page keeps of one curve, by the rules of docs/gateway.md."""

    def __init__(self) -> None:
        self.position: list[int] = []
        self.points: list[tuple[int, int, float]] = []  # step, count, mean

    def take(self, message: dict) -> bool:
        """Apply a chunk; return False if it does not fit on to what is there."""
        if message["since"] is not None and message["since"] != self.position:
            return False
        [curve] = message["curves"]
        if curve["whole"]:
            self.points = []
        elif message["cut"] is not None:
            self.points = [each for each in self.points if each[0] <= message["cut"]]
        self.points += zip(curve["steps"], curve["counts"], curve["values"], strict=True)
        self.points.sort(key=lambda each: each[0])
        self.position = message["position"]
        return True


@pytest.mark.slow
def test_fifty_reloads_and_kills_leave_no_hole_and_no_duplicate(stack, gateway):
    """A page that is closed, reloaded and cut off at random has exactly the points of the store in the end."""
    chance = random.Random(5)
    # Slow enough that every point stays by itself: beyond 20,000, buckets hold several.
    run = stack.submit(config={"events": 10**9, "rate": 100.0})
    stack.wait_state(run, "running")
    curve, page, cuts, lines = Curve(), None, 0, 0
    while True:
        if page is None:
            page = gateway.page()
            read(page)
            kept = curve.position if chance.random() < 0.5 else []  # a reload forgets what it had
            if not kept:
                curve = Curve()
            watch = {"type": "watch_series", "id": 1, "run": run, "metrics": ["reward"], "since": kept}
            say(page, **watch, max_points=20_000)
        try:
            message = until(page, lambda message: message["type"] == "series")
            assert curve.take(message)
        except ConnectionClosed:
            page = None
            continue
        if cuts < 50:
            cuts += 1
            page.socket.close() if chance.random() < 0.5 else page.close()
            page = None
            if cuts in {10, 30}:
                stack.kill_and_restart("gateway")
                stack.wait_for("gateway")
                gateway.__init__(stack)
            elif cuts == 20:
                stack.kill_and_restart("telemetry")
            elif cuts == 50:
                stack.cancel(run)
                stack.wait_final(run)
                lines = stack.wait_stored(run).events
        elif curve.position == [lines]:
            break
    page.close()
    whole = stack.bus.request("telemetry", Series(runs=[run], metrics=["reward"], max_points=100_000), timeout=30).only
    assert [step for step, _, _ in curve.points] == whole.steps
    assert {count for _, count, _ in curve.points} == {1}


def test_pages_that_want_the_same_share_a_question(stack, gateway, run):
    watch = {"type": "watch_series", "id": 1, "run": run, "metrics": ["reward"]}
    pages = [gateway.page() for _ in range(5)]
    for page in pages:
        read(page)
        say(page, **watch)
    for page in pages:  # now all are at the same position
        for _ in range(3):
            until(page, lambda message: message["type"] == "series")
    before = stack.bus.request("gateway", Stats(), timeout=20).counters["pulls"]
    for _ in range(6):
        for page in pages:
            until(page, lambda message: message["type"] == "series")
    pulls = stack.bus.request("gateway", Stats(), timeout=20).counters["pulls"] - before
    assert pulls <= 25, "30 chunks were sent; one question serves five pages"
    for page in pages:
        page.close()


def test_log_is_pulled_by_number(stack, gateway):
    run = stack.submit(config={"events": 5, "log_lines": 1200})
    stack.wait_final(run)
    stack.wait_stored(run)
    with gateway.page() as page:
        read(page)
        say(page, type="watch_log", id=3, run=run)
        lines: list[int] = []
        while len(lines) < 1200:
            message = until(page, lambda message: message["type"] == "log")
            assert message["start"] == len(lines)
            lines += [row["number"] for row in message["rows"]]
        assert lines == list(range(len(lines)))


def test_events_are_pulled_by_number_and_kind(stack, gateway):
    run = stack.submit(config={"events": 40, "episode_steps": 4})
    stack.wait_final(run)
    stack.wait_stored(run)
    with gateway.page() as page:
        say(page, type="watch_events", id=4, run=run, attempt=None, kinds=["episode"])
        told = until(page, lambda message: message["type"] == "events")
        assert {row["event"] for row in told["rows"]} == {"episode"}
        assert [json.loads(row["line"])["event"] for row in told["rows"]] == ["episode"] * len(told["rows"])
        second = told["rows"][1]["number"]
        say(page, type="watch_events", id=4, run=run, kinds=["episode"], start=second)
        later = until(page, lambda message: message["type"] == "events" and message["start"] == second)
        assert later["rows"] == told["rows"][1:]


def test_scripts_of_a_host_are_described_by_their_comments(stack, gateway, tmp_path):
    (tmp_path / "two.sh").write_text(
        "# @description Two trainings\n# @phases first, second\n# @total_timesteps 6_000\n"
    )
    (tmp_path / "bare.sh").write_text("echo hello\n")
    (tmp_path / "notes.txt").write_text("# @description no script\n")
    found = gateway.command("supervisor.testhost", "scripts", folder=str(tmp_path)).json()
    assert found["folder"] == str(tmp_path)
    assert found["scripts"] == [
        {"path": str(tmp_path / "bare.sh"), "description": "", "phases": [], "total_timesteps": None},
        {
            "path": str(tmp_path / "two.sh"),
            "description": "Two trainings",
            "phases": ["first", "second"],
            "total_timesteps": 6000,
        },
    ]
    assert gateway.command("supervisor.testhost", "scripts").json()["scripts"] == []
    assert gateway.command("supervisor.testhost", "scripts", folder=str(tmp_path / "gone")).status == 404
    assert gateway.command("supervisor.testhost", "scripts", token=gateway.viewer).status == 403


def test_text_of_an_experiment_file_is_checked(gateway):
    text = "name: checked\nenvironment: {id: CartPole-v1}\noperators: {random: {worker: random}}\nepisodes: 5\n"
    found = gateway.command("operator", "check_experiment", token=gateway.viewer, text=text).json()
    assert (found["ok"], found["experiment"]["episodes"], found["plan"]["missing"]) == (True, 5, 5)
    for wrong, field, said in (
        ("name: [a", "", "line 1: not YAML"),
        ("just words", "", "a map of fields"),
        (text.replace("episodes: 5", "episodes: many"), "episodes", "many"),
    ):
        told = gateway.command("operator", "check_experiment", text=wrong)
        assert (told.status, told.json()["ok"], told.json()["plan"]) == (200, False, None)
        assert told.json()["problems"][0]["field"] == field
        assert said in told.json()["problems"][0]["message"]


def test_page_without_credit_gets_nothing_then_the_newest(stack, gateway, run):
    with gateway.page() as page:
        read(page)
        say(page, type="watch_series", id=1, run=run, metrics=["reward"])
        curve, messages = Curve(), 0
        while messages < 32:
            message = read(page)
            messages += 1
            assert curve.take(message)
        with pytest.raises(TimeoutError):
            page.recv(timeout=2)
        say(page, type="credit", n=1)
        message = read(page)
        assert curve.take(message), "one chunk holds all that came meanwhile"
        assert message["curves"][0]["points"] > 20


def test_telemetry_that_hangs_holds_up_neither_states_nor_frames(stack, gateway):
    run = stack.submit(config={**RUNNING, "frames": 10**6, "frames_by_child": True})
    stack.wait_state(run, "running")
    telemetry = stack.processes["telemetry"]
    with gateway.page() as page:
        say(page, type="watch_states")
        say(page, type="watch_frames", id=3, run=run, max_dim=160)
        until(page, lambda message: message["type"] == "frame")
        telemetry.send_signal(signal.SIGSTOP)
        try:
            say(page, type="watch_series", id=1, run=run, metrics=["reward"])
            say(page, type="watch_log", id=2, run=run)
            # Both questions are given up after ten seconds. Frames and states come meanwhile.
            frames, silent, unanswered = 0, False, set()
            while len(unanswered) < 2 or not silent:
                message = until(page, lambda message: True)
                frames += message["type"] == "frame" and not unanswered
                silent |= message["type"] == "states" and "telemetry" in message["silent"]
                if message["type"] == "error":
                    assert message["code"] == "no_answer"
                    unanswered.add(message["id"])
            assert frames > 3
        finally:
            telemetry.send_signal(signal.SIGCONT)
        until(page, lambda message: message["type"] == "series")
    stack.cancel(run)
    stack.wait_final(run)


def test_run_of_which_only_the_log_is_stored_has_no_curves_yet(stack, gateway):
    run = str(ULID())

    def talk() -> None:
        with gateway.page() as page:
            say(page, type="watch_series", id=1, run=run, metrics=["reward"])
            say(page, type="watch_log", id=2, run=run)
            until(page, lambda message: message["type"] == "log")
            say(page, type="watch_states")
            until(page, lambda message: message["type"] == "states")

    async def scenario() -> None:
        async with FakeBridge(stack.home.address()) as bridge:
            file = bridge.open(run, "log")
            file.write(b"importing")
            await bridge.until("it is stored", lambda: file.stored == 1)
            await asyncio.to_thread(talk)
            file.ended = True
            await bridge.until_whole(file)

    asyncio.run(scenario())


def test_wrong_messages_end_the_page(gateway):
    for wrong in ("", "x", "[]", '{"type": "nothing"}', '{"type": "credit", "n": -1}', "{" * 1000):
        with gateway.page() as page:
            read(page)
            page.send(wrong)
            with pytest.raises(ConnectionClosed) as closed:
                read_to_the_end(page)
            assert closed.value.rcvd.code == 4400


def test_files_of_a_run(stack, gateway):
    run = stack.submit(config={"events": 50})
    stack.wait_final(run)
    listed = gateway.command("supervisor.testhost", "files", run=run).json()["files"]
    size = next(each["bytes"] for each in listed if each["path"] == "1/journal.jsonl")
    journal = (stack.home.runs / run / "1" / "journal.jsonl").read_bytes()
    whole = gateway.get(f"/files/{run}/1/journal.jsonl")
    assert (whole.status, whole.body, len(journal)) == (200, journal, size)
    assert whole.headers["content-disposition"].startswith("attachment")
    assert "sandbox" in whole.headers["content-security-policy"]
    part = gateway.get(f"/files/{run}/1/journal.jsonl", Range="bytes=10-19")
    assert (part.status, part.body) == (206, journal[10:20])
    for beyond in (f"bytes={size + 1}-", f"bytes={size}-", "bytes=10-5"):
        part = gateway.get(f"/files/{run}/1/journal.jsonl", Range=beyond)
        assert (part.status, part.headers["content-range"], part.body) == (416, f"bytes */{size}", b"")
    for path in (
        "1/none",
        "9/journal.jsonl",
        "x/y",
        "1/../../x",
        "1/%2e%2e/%2e%2e/scheduler/scheduler.db",
        "1/worker.json",
    ):
        assert gateway.get(f"/files/{run}/{path}").status == 404
    # An HTML file that a worker wrote must not run in the page's name.
    (stack.home.runs / run / "1" / "evil.html").write_text("<script>alert(1)</script>")
    evil = gateway.get(f"/files/{run}/1/evil.html?show")
    assert (evil.headers["content-type"], evil.headers["content-disposition"].partition(";")[0]) == (
        "application/octet-stream",
        "attachment",
    )


def test_frames_reach_pages_and_curl(stack, gateway):
    run = stack.submit(config={**RUNNING, "frames": 10**6, "frames_by_child": True})
    stack.wait_state(run, "running")
    with gateway.page() as page:
        read(page)
        say(page, type="watch_frames", id=7, run=run, max_dim=160)
        first = until(page, lambda message: message["type"] == "frame")
        second = until(page, lambda message: message["type"] == "frame" and message["number"] > first["number"])
        assert second["id"] == 7
        assert second["jpeg"][:2] == b"\xff\xd8"
        assert "file" not in second

    connection = http.client.HTTPConnection("127.0.0.1", gateway.port, timeout=60)
    connection.request("GET", f"/frames/{run}.mjpeg?max_dim=160", headers={"Authorization": f"Bearer {gateway.token}"})
    answer = connection.getresponse()
    assert answer.getheader("content-type").startswith("multipart/x-mixed-replace")
    assert b"image/jpeg" in answer.read(2000)
    connection.close()
    stack.cancel(run)
    stack.wait_final(run)

    # What a page shows of a stream that has died, also after a reload: when its last frame was published.
    def ended() -> list[dict]:
        told = gateway.command("supervisor.testhost", "frame_streams", gateway.viewer, run=run).json()["streams"]
        return [each["newest"] for each in told if each["writer"] == "ended"]

    newest = wait_until("its frames have ended", ended)[-1]
    assert newest["stream"] == "main"
    assert newest["wall"] >= first["wall"]


def test_gateway_that_is_stopped_leaves_nothing(stack, gateway):
    page, cookie = gateway.page(), gateway.log_in()
    read(page)
    process = stack.processes["gateway"]
    process.terminate()
    assert process.wait(timeout=30) == 0
    with pytest.raises(ConnectionClosed):
        read_to_the_end(page)
    assert not stack.home.gateway_note.exists()
    stack.start("gateway")
    stack.wait_for("gateway")
    wait_until("it leaves its address", stack.home.gateway_note.exists)
    # The cookie of a page outlives the gateway.
    assert Gateway(stack).port == gateway.port
    assert gateway.ask("GET", "/api/openapi.json", None, {"Cookie": cookie}).status == 200


def test_gateway_that_cannot_follow_the_scheduler_ends(tmp_path):
    """It is restarted then; its pages would stay empty otherwise."""

    async def scenario(stack: Stack) -> int:
        scheduler = Service("scheduler", stack.home)  # knows no `snapshot`
        serving = asyncio.create_task(scheduler.run())
        stack.start("gateway")
        code = await asyncio.to_thread(stack.processes["gateway"].wait, PATIENCE_S)
        scheduler.stop()
        await serving
        return code

    stack = Stack(tmp_path / "home")
    stack.services = ("broker",)
    with stack:
        assert asyncio.run(scenario(stack)) == 2, stack.log("gateway")
        assert "snapshot" in stack.log("gateway")
        assert not stack.home.gateway_note.exists()
    assert stack.leftovers() == []
