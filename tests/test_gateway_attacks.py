"""Attacks on the gateway of a real stack: foreign pages, foreign names, forged cookies, viewers, floods."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import http.client
import json
import socket
import ssl
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import uvicorn
from gateway_client import PATIENCE_S, Gateway, read, read_to_the_end, say, until
from stack import Stack, wait_until
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route, WebSocketRoute
from websockets.asyncio.client import connect as connect_async
from websockets.exceptions import ConnectionClosed, InvalidStatus

from mosaic_services.gateway.connection import Connection
from mosaic_services.gateway.errors import UnsafeAddressError
from mosaic_services.gateway.guard import MAX_BODY_BYTES
from mosaic_services.gateway.listening import allowed_hosts, check_address
from mosaic_services.gateway_files import Note, Role, read_token
from mosaic_services.settings.model import GatewaySettings

# For 127.0.0.1 and localhost, with its key. It is in public, and so protects nothing.
CERTIFICATE = Path(__file__).parent / "support" / "self_signed.pem"
SECRET = "sk-12345-do-not-tell"
# All that a viewer may send besides `info`, `ping` and `stats`. Add a query here only if it changes nothing, shows no
# secret and reads nothing that is not of MOSAIC.
QUERIES = {
    "operator": "check_experiment experiments plan_experiment sessions show_experiment show_session",
    "scheduler": "check groups hosts runs show snapshot why",
    "supervisor.{host}": "describe disk_use files frame_streams read_file",
    "telemetry": "checkpoints episodes events logs metrics scalars series stored_bytes streams summaries",
    "gateway": "",
}


@pytest.fixture(scope="module")
def stack(tmp_path_factory, workers):
    home = tmp_path_factory.mktemp("attacks") / "home"
    page = tmp_path_factory.mktemp("page")
    (page / "index.html").write_text("<!doctype html><title>MOSAIC</title>")
    (page / "assets").mkdir()
    (page / "assets" / "app.js").write_text("1")
    (page.parent / "outside.txt").write_text("outside")
    (page / "link.txt").symlink_to(page.parent / "outside.txt")
    environ = {"MOSAIC_GATEWAY__PAGE": str(page), "MOSAIC_GATEWAY__HOSTS": "Mosaic.example, gpu1"}
    with Stack(home, cpus=8, also=("gateway",), environ=environ) as stack:
        yield stack
    assert stack.leftovers() == []


@pytest.fixture(scope="module")
def gateway(stack):
    return Gateway(stack)


JSON = {"Content-Type": "application/json"}


def test_nothing_is_answered_without_a_token(gateway):
    for method, path in (
        ("GET", "/"),
        ("GET", "/assets/app.js"),
        ("GET", "/api/openapi.json"),
        ("POST", "/api/scheduler/runs"),
        ("GET", "/files/x/1/log.txt"),
        ("GET", "/frames/x.mjpeg"),
        ("GET", "/reports/x"),
        ("GET", "/reports/x/index.html"),
        ("GET", "/nowhere"),
        ("HEAD", "/"),
    ):
        assert gateway.ask(method, path, b"{}" if method == "POST" else None, JSON).status == 401
    for method in ("PUT", "DELETE", "OPTIONS", "PATCH", "TRACE"):
        assert (
            gateway.ask(method, "/api/scheduler/runs", None, {"Authorization": f"Bearer {gateway.token}"}).status == 405
        )
    for wrong in ("", "x", gateway.token[:-1], gateway.token + "x", "ö"):
        assert (
            gateway.ask("GET", "/", None, {"Authorization": f"Bearer {wrong}".encode().decode("latin-1")}).status == 401
        )
        assert gateway.ask("GET", f"/?token={wrong.encode().hex()}").status == 401
    with pytest.raises((InvalidStatus, ConnectionClosed)), gateway.page(Cookie="") as page:
        read(page)
    for path in ("/", "/runs/abc", f"/?token={'x' * 43}"):
        answer = gateway.ask("GET", path, None, {"Accept": "text/html,*/*;q=0.8"})
        assert (answer.status, answer.headers["content-type"]) == (401, "text/html; charset=utf-8")
        assert b"<code>mosaic open</code>" in answer.body
    assert gateway.ask("GET", "/", None, {"Accept": "*/*"}).json()["code"] == "not_logged_in"


def test_token_becomes_a_cookie_that_is_not_the_token(stack, gateway):
    answer = gateway.ask("GET", f"/runs?token={gateway.token}&sort=name")
    assert (answer.status, answer.headers["location"]) == (303, "/runs?sort=name")
    cookie = answer.headers["set-cookie"]
    assert cookie.startswith(f"mosaic-{gateway.port}=")
    assert {"HttpOnly", "SameSite=Strict", "Path=/"} <= {part.strip() for part in cookie.split(";")}
    assert gateway.token not in cookie
    value = cookie.partition(";")[0]
    assert gateway.ask("GET", "/", None, {"Cookie": value}).status == 200
    assert gateway.ask("GET", "/", None, {"Cookie": f"mosaic-{gateway.port}={gateway.token}"}).status == 401
    # A name that begins with two slashes would be another host.
    assert gateway.ask("GET", f"//evil.example/?token={gateway.token}").headers["location"] == "/evil.example/"
    for path in stack.home.gateway.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0 or stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_forged_and_altered_cookies_are_worth_nothing(gateway):
    name, _, value = gateway.log_in(gateway.viewer).partition("=")
    role, until, nonce, signature = value.split(".")
    assert role == "viewer"
    for forged in (
        f"owner.{until}.{nonce}.{signature}",
        f"viewer.{int(until) + 1}.{nonce}.{signature}",
        f"viewer.{until}.{nonce}.",
        f"viewer.{until}.{nonce}",
        "owner.99999999999..",
        "....",
        "owner",
    ):
        assert gateway.ask("GET", "/", None, {"Cookie": f"{name}={forged}"}).status == 401


def test_cookies_of_other_programs_do_not_hide_ours(gateway):
    """A browser sends the cookies of all ports of 127.0.0.1, and they may be anything."""
    cookie = gateway.log_in()
    for junk in ('theme={"a":1}', "x=a b", "plain", "bad[name]=1", "name=grün", '"', "=", ";;", 'open="', "$Path=/"):
        sent = junk.encode().decode("latin-1")
        for both in (f"{sent}; {cookie}", f"{cookie}; {sent}"):
            assert gateway.ask("GET", "/", None, {"Cookie": both}).status == 200, junk
        assert gateway.ask("GET", "/", None, {"Cookie": sent}).status == 401


def test_other_names_of_this_address_are_refused(gateway):
    cookie = gateway.log_in()
    for host in ("evil.example", f"evil.example:{gateway.port}", "127.0.0.1", f"127.0.0.1:{gateway.port + 1}", ""):
        for headers in ({"Cookie": cookie}, {"Authorization": f"Bearer {gateway.token}"}):
            assert gateway.ask("GET", "/api/openapi.json", None, {"Host": host, **headers}).status == 421
    assert gateway.ask("GET", "/healthz", None, {"Host": "evil.example"}).status == 421
    assert gateway.ask("GET", f"/?token={gateway.token}", None, {"Host": "evil.example"}).status == 421
    assert gateway.ask("GET", "/", None, {"Host": f"localhost:{gateway.port}", "Cookie": cookie}).status == 200


def test_names_in_the_settings_are_answered_like_the_address(gateway):
    cookie = gateway.log_in()
    for name in (f"mosaic.example:{gateway.port}", f"gpu1:{gateway.port}"):
        asked = {"Host": name, "Cookie": cookie, **JSON}
        for origin, status in ((f"http://{name}", 200), (f"http://evil.example:{gateway.port}", 403)):
            assert gateway.ask("POST", "/api/scheduler/runs", b"{}", {**asked, "Origin": origin}).status == status
    for name in ("mosaic.example", f"www.mosaic.example:{gateway.port}", f"gpu:{gateway.port}"):
        assert gateway.ask("GET", "/", None, {"Host": name, "Cookie": cookie}).status == 421
    # An address that stands for all addresses is no name.
    assert allowed_hosts(GatewaySettings(bind="0.0.0.0"), 8720) == {"127.0.0.1:8720", "localhost:8720", "[::1]:8720"}


def test_foreign_pages_can_neither_command_nor_listen(gateway):
    cookie = gateway.log_in()
    for origin in ("http://evil.example", "null", f"https://{gateway.netloc}", f"http://127.0.0.1:{gateway.port + 1}"):
        headers = {"Cookie": cookie, "Origin": origin, **JSON}
        assert gateway.ask("POST", "/api/scheduler/runs", b"{}", headers).status == 403
        with pytest.raises((InvalidStatus, ConnectionClosed)), gateway.page(Origin=origin) as page:
            read(page)
    # A browser always says where a command comes from; without that, a cookie is not enough.
    assert gateway.ask("POST", "/api/scheduler/runs", b"{}", {"Cookie": cookie, **JSON}).status == 403
    own = {"Cookie": cookie, "Origin": f"http://{gateway.netloc}"}
    answer = gateway.ask("POST", "/api/scheduler/runs", b"{}", {**own, **JSON})
    assert answer.status == 200
    assert not [name for name in answer.headers if name.lower().startswith("access-control-")]
    # A form can only send types that need no permission.
    for kind in ("text/plain", "application/x-www-form-urlencoded", ""):
        assert gateway.ask("POST", "/api/scheduler/runs", b"{}", {**own, "Content-Type": kind}).status == 415


def test_every_answer_has_the_headers_that_protect_it(gateway):
    for answer in (
        gateway.ask("GET", "/"),
        gateway.get("/"),
        gateway.get("/assets/app.js"),
        gateway.get("/assets/none.js"),
        gateway.command("scheduler", "runs"),
        gateway.ask("GET", "/healthz"),
    ):
        headers = {name.lower(): value for name, value in answer.headers.items()}
        assert "unsafe" not in headers["content-security-policy"]
        assert "default-src 'none'" in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"
        assert headers["cross-origin-opener-policy"] == headers["cross-origin-resource-policy"] == "same-origin"


def test_page_is_served_from_its_folder_and_nothing_else(gateway):
    assert gateway.get("/").body.startswith(b"<!doctype html>")
    assert gateway.get("/runs/abc").body.startswith(b"<!doctype html>"), "a view of the page"
    assert gateway.get("/assets/app.js").body == b"1"
    for path in ("/none.js", "/link.txt", "/../outside.txt", "/%2e%2e/outside.txt", "/..%2foutside.txt", "/a%00.js"):
        assert gateway.get(path).status == 404


def test_reports_run_no_script_and_lead_nowhere_else(stack, gateway):
    folder = stack.home.experiments / "trial"
    (folder / "report").mkdir(parents=True)
    page = "<style>p { margin: 0 }</style><style>p { display: none }</style><script>alert(1)</script>"
    (folder / "report" / "index.html").write_text(page)
    (folder / "report" / "plot.svg").write_text("<svg><style>p { margin: 0 }</style></svg>")
    (folder / "state.json").write_text("secret")
    (folder / "report" / "link.json").symlink_to(folder / "state.json")
    (folder / "experiment.json").write_text(json.dumps({"operators": {"a": {"config": {"api_key": SECRET}}}}))
    (folder / "report" / "experiment.json").write_bytes((folder / "experiment.json").read_bytes())
    assert b"******" in gateway.get("/reports/trial/experiment.json", gateway.viewer).body
    assert SECRET.encode() not in gateway.get("/reports/trial/experiment.json", gateway.viewer).body
    page = gateway.get("/reports/trial/index.html")
    policy = page.headers["content-security-policy"]
    assert page.status == 200
    assert "default-src 'none'" in policy
    assert "sandbox" in policy
    assert "script" not in policy  # neither a source of scripts nor `allow-scripts`
    assert "frame-ancestors 'self'" in policy
    assert "unsafe" not in policy
    digest = base64.b64encode(hashlib.sha256(b"p { margin: 0 }").digest()).decode()
    assert f"style-src 'sha256-{digest}';" in policy, "the style sheet in the head, and no other"
    figure = gateway.get("/reports/trial/plot.svg").headers
    assert figure["content-disposition"] == "attachment"
    assert "unsafe" not in figure["content-security-policy"]
    assert gateway.get("/reports/trial").json()["written_at"] > 0
    assert gateway.get("/reports/nothing").json() == {"written_at": None}
    for path in (
        "trial/link.json",
        "trial/../state.json",
        "trial/%2e%2e/state.json",
        "trial/..%2fstate.json",
        "../experiments/trial/index.html",
        "%2e%2e/x",
        "trial/report",
        "trial//index.html",
        "trial/%00",
    ):
        answer = gateway.get(f"/reports/{path}")
        assert answer.status == 404, path
        assert b"secret" not in answer.body


def test_viewer_can_look_but_not_command(gateway):
    viewer = gateway.viewer
    assert gateway.command("scheduler", "runs", viewer).status == 200
    assert gateway.command("telemetry", "summaries", viewer).status == 200
    paths = gateway.get("/api/openapi.json").json()["paths"]
    queries = {path for path, about in paths.items() if about["post"]["x-viewer"]}
    assert queries == {
        f"/api/{service}/{name}" for service, names in QUERIES.items() for name in ("info ping stats " + names).split()
    }
    assert len(paths) > len(queries)
    for path in sorted(paths.keys() - queries):
        service, name = path.removeprefix("/api/").replace("{host}", "testhost").split("/")
        answer = gateway.command(service, name, viewer)
        assert (answer.status, answer.json()["code"]) == (403, "viewer"), path


def test_requests_have_limits(gateway):
    auth = {"Authorization": f"Bearer {gateway.token}", **JSON}
    deep = b'{"spec": ' + b'{"a":' * 500 + b"1" + b"}" * 501
    assert gateway.ask("POST", "/api/scheduler/check", deep, auth).json()["code"] == "too_deep"
    assert gateway.ask("POST", "/api/scheduler/check", b'{"spec": {"name": "' + b"[" * 500 + b'"}}', auth).status == 200
    assert gateway.ask("POST", "/api/scheduler/runs", b"{", auth).status == 422
    large = {**auth, "Content-Length": str(MAX_BODY_BYTES + 1)}
    assert gateway.ask("POST", "/api/scheduler/runs", b"", large).status == 413
    # Without a length, the body is cut off where the limit is.
    with socket.create_connection(("127.0.0.1", gateway.port), timeout=60) as wire:
        head = f"POST /api/scheduler/runs HTTP/1.1\r\nHost: {gateway.netloc}\r\nTransfer-Encoding: chunked\r\n"
        head += "".join(f"{name}: {value}\r\n" for name, value in auth.items())
        wire.sendall(head.encode() + b"\r\n")
        block = b"10000\r\n" + b" " * 0x10000 + b"\r\n"
        try:
            for _ in range(MAX_BODY_BYTES // 0x10000 + 2):
                wire.sendall(block)
            answer = wire.recv(100)
        except (BrokenPipeError, ConnectionResetError):
            answer = b""  # it closed while we were still sending: what it said may be lost
    assert answer.startswith(b"HTTP/1.1 413") or not answer
    assert gateway.ask("GET", "/healthz").status == 200


def test_page_that_sends_too_much_or_is_one_too_many_is_closed(stack, gateway):
    with gateway.page() as page:
        read(page)
        page.send("x" * 100_000)
        with pytest.raises(ConnectionClosed):
            read_to_the_end(page)
    pages = []
    try:
        for _ in range(64):
            pages.append(gateway.page())
            read(pages[-1])
        pages.append(gateway.page())
        with pytest.raises(ConnectionClosed) as closed:
            read(pages[-1])
        assert closed.value.rcvd.code == 4429
    finally:
        for page in pages:
            page.close()
    with gateway.page() as page:
        assert read(page)["type"] == "welcome"


def test_connection_without_a_request_is_closed():
    """Silent ones need no token, and 512 of them would lock all others out. With a shorter limit than the real one."""

    class Hasty(Connection):
        silence_s = 0.2

    answer_now = asyncio.Event()

    async def slow(_):
        await answer_now.wait()
        return PlainTextResponse("late")

    async def at_once(_):
        return PlainTextResponse("early", 401)

    async def echo(page):
        await page.accept()
        await page.send_text(await page.receive_text())
        await page.close()

    async def scenario() -> None:
        routes = [Route("/slow", slow), Route("/", at_once, methods=["GET", "POST"]), WebSocketRoute("/ws", echo)]
        config = uvicorn.Config(Starlette(routes=routes), http=Hasty, ws="websockets-sansio", lifespan="off", port=0)
        config.log_config = None
        server = uvicorn.Server(config)
        with socket.create_server(("127.0.0.1", 0)) as listening:
            port = listening.getsockname()[1]
            serving = asyncio.create_task(server.serve([listening]))
            head = b" HTTP/1.1\r\nHost: x\r\n"

            async def begin(sent: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(sent)
                return reader, writer

            async with asyncio.timeout(PATIENCE_S), connect_async(f"ws://127.0.0.1:{port}/ws") as page:
                asked, asked_writer = await begin(b"GET /slow" + head + b"Connection: close\r\n\r\n")
                for sent, answer in (
                    (b"", b""),
                    (b"GET /", b""),
                    (b"GET /" + head, b""),
                    (b"GET /" + head + b"\r\nGET /again", b"early"),
                    (b"POST /" + head + b"Content-Length: 100\r\n\r\nonly some", b"early"),
                ):
                    reader, writer = await begin(sent)
                    assert (await reader.read()).endswith(answer), sent
                    writer.close()
                # A request that is being answered and a WebSocket have waited for longer, and go on.
                answer_now.set()
                assert (await asked.read()).endswith(b"late")
                asked_writer.close()
                await page.send("hello")
                assert await page.recv() == "hello"
            server.should_exit = True
            await serving

    asyncio.run(scenario())


@pytest.mark.slow
def test_page_that_never_reads_is_closed(stack, gateway):
    """It watches frames and states but takes nothing from its socket: the gateway must let go of it."""
    run = stack.submit(config={"events": 10**9, "rate": 2000.0})
    stack.wait_state(run, "running")
    with socket.create_connection(("127.0.0.1", gateway.port), timeout=60) as wire:
        wire.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        head = f"GET /ws HTTP/1.1\r\nHost: {gateway.netloc}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        head += f"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {'A' * 22}==\r\n"
        head += f"Authorization: Bearer {gateway.token}\r\n\r\n"
        wire.sendall(head.encode())

        def masked(text: str) -> bytes:
            body = text.encode()
            return bytes([0x81, 0x80 | 126]) + len(body).to_bytes(2, "big") + bytes(4) + body

        for number in range(100):
            said = {"type": "watch_series", "id": number, "run": run, "metrics": [f"m{number}", "reward"] * 20}
            wire.sendall(masked(json.dumps(said)))
        wire.sendall(masked('{"type": "watch_states"}'))
        wire.sendall(masked('{"type": "credit", "n": 1024}'))

        def pages() -> int:
            return gateway.command("gateway", "stats").json()["counters"]["pages"]

        wait_until("the gateway has the page", lambda: pages() == 1)
        wait_until("the gateway closes it", lambda: pages() == 0)
    stack.cancel(run)
    stack.wait_final(run)


def test_secrets_in_configs_are_masked(stack, gateway):
    config = {"events": 1, "ask_used": [{"api_key": SECRET, "max_tokens": 5, "list": [{"password": SECRET}]}]}
    run = stack.submit(config=config)
    stack.wait_final(run)
    stack.wait_stored(run)
    show = gateway.command("scheduler", "show", run=run)
    assert SECRET.encode() not in show.body
    [note] = show.json()["spec"]["config"]["ask_used"]
    assert (note["api_key"], note["max_tokens"], note["list"][0]["password"]) == ("•••", 5, "•••")
    assert SECRET.encode() not in gateway.command("telemetry", "events", run=run).body
    for path in ("1/worker.json", "1/placed.json"):
        assert gateway.get(f"/files/{run}/{path}").status == 404
    with gateway.page() as page:
        say(page, type="watch_events", id=1, run=run)
        told = until(page, lambda message: message["type"] == "events")
    assert told["rows"][0]["event"] == "run_started"
    assert SECRET not in json.dumps(told)


def test_secrets_are_in_no_file_that_a_viewer_downloads(stack, gateway):
    """The journal has the config in its first line, and a worker may write it to any file."""
    run = stack.submit(config={"events": 1, "ask_used": [{"openaiApiKey": SECRET, "args": ["--token", SECRET]}]})
    stack.wait_final(run)
    folder = stack.home.runs / run / "1"
    assert SECRET in (folder / "journal.jsonl").read_text()
    (folder / "args.yaml").write_text(f"key: {SECRET}\nother: 5\n")
    for name in ("journal.jsonl", "args.yaml"):
        original = (folder / name).read_bytes()
        hidden = original.replace(SECRET.encode(), b"*" * len(SECRET))
        path = f"/files/{run}/1/{name}"
        assert gateway.get(path, gateway.viewer).body == hidden
        # A part that begins or ends in the middle of a secret has nothing of it either.
        middle = original.index(SECRET.encode()) + 5
        for first, last in ((0, middle - 1), (middle, len(original) - 1), (middle, middle)):
            part = gateway.get(path, gateway.viewer, Range=f"bytes={first}-{last}")
            assert (part.status, part.body) == (206, hidden[first : last + 1])
        chunk = gateway.command("supervisor.testhost", "read_file", gateway.viewer, run=run, path=f"1/{name}").json()
        assert base64.b64decode(chunk["data"]) == hidden


def test_mask_is_not_taken_for_a_secret(stack, gateway):
    """A page that sends back what it was shown would otherwise run with three dots for a key."""
    text = "name: kept\nenvironment: {id: CartPole-v1}\noperators: {random: {worker: random}}\nepisodes: 1\n"
    for service, name, arguments in (
        ("scheduler", "submit", {"spec": {"worker": "stress", "config": {"ask_used": [{"api_key": "•••"}]}}}),
        ("scheduler", "check", {"spec": {"worker": "stress", "config": {"ask_used": [{"args": ["--token=•••"]}]}}}),
        ("operator", "start_experiment", {"experiment": {"name": "x", "operators": {"a": {"api_key": "•••"}}}}),
        ("operator", "check_experiment", {"text": text + "description: •••\n"}),
    ):
        answer = gateway.command(service, name, **arguments)
        assert (answer.status, answer.json()["code"]) == (422, "invalid_arguments")
        assert "holds •••, which stands for a secret" in answer.json()["message"]
    for arguments in ({}, {"text": text, "experiment": {"name": "kept"}}):
        assert gateway.command("operator", "start_experiment", **arguments).status == 422
    refused = gateway.command("operator", "start_experiment", text="name: [a").json()
    assert (refused["code"], "line 1: not YAML" in refused["message"]) == ("invalid_experiment", True)


def test_with_a_certificate_everything_is_encrypted(tmp_path):
    """Also the cookie says so, and a page that was not encrypted may neither command nor listen."""
    environ = {"MOSAIC_GATEWAY__TLS_CERTIFICATE": str(CERTIFICATE), "MOSAIC_GATEWAY__TLS_KEY": str(CERTIFICATE)}
    stack = Stack(tmp_path / "home", also=("gateway",), environ=environ)
    stack.services = ("broker", "scheduler", "gateway")
    with stack:
        url = Note(stack.home.gateway_note).read()
        assert url is not None
        assert url.startswith("https://")
        netloc = url.removeprefix("https://").rstrip("/")
        trusting = ssl.create_default_context(cafile=CERTIFICATE)

        def ask(method: str, path: str, **headers: str) -> http.client.HTTPResponse:
            connection = http.client.HTTPSConnection(netloc, timeout=PATIENCE_S, context=trusting)
            connection.request(method, path, b"{}" if method == "POST" else None, headers)
            answer = connection.getresponse()
            answer.read()
            connection.close()
            return answer

        token = read_token(stack.home.gateway, Role.OWNER)
        given = ask("GET", f"/?token={token}").getheader("set-cookie", "")
        assert {"Secure", "HttpOnly"} <= {part.strip() for part in given.split(";")}
        cookie = given.partition(";")[0]
        for origin, status in ((f"https://{netloc}", 200), (f"http://{netloc}", 403)):
            asked = {"Cookie": cookie, "Origin": origin, **JSON}
            assert ask("POST", "/api/scheduler/runs", **asked).status == status
        listening = {"additional_headers": {"Cookie": cookie}, "ssl": trusting}

        # The client with threads reads and writes a TLS connection at the same time, and now and then waits for ever.
        async def listen() -> None:
            async with connect_async(f"wss://{netloc}/ws", origin=f"https://{netloc}", **listening) as page:
                assert json.loads(await page.recv())["type"] == "welcome"
            with pytest.raises(InvalidStatus):
                await connect_async(f"wss://{netloc}/ws", origin=f"http://{netloc}", **listening)

        asyncio.run(asyncio.wait_for(listen(), PATIENCE_S))
        # Who does not speak TLS learns nothing.
        plain = http.client.HTTPConnection(netloc, timeout=PATIENCE_S)
        plain.request("GET", "/healthz")
        with pytest.raises((http.client.HTTPException, ConnectionError)):
            plain.getresponse()
        plain.close()
    assert stack.leftovers() == []


@pytest.mark.parametrize(
    ("environ", "said"),
    [
        ({"MOSAIC_GATEWAY__BIND": "0.0.0.0"}, "is not loopback"),
        ({"MOSAIC_GATEWAY__BIND": "::"}, "is not loopback"),
        ({"MOSAIC_GATEWAY__BIND": "0.0.0.0", "MOSAIC_GATEWAY__TLS_KEY": "/x"}, "is not loopback"),
        ({"MOSAIC_GATEWAY__BIND": "example.org"}, "is an IP address"),
    ],
)
def test_address_that_others_can_reach_needs_tls_or_a_flag(tmp_path, environ, said):
    done = subprocess.run(
        [sys.executable, "-m", "mosaic_services.gateway", "--home", str(tmp_path)],
        env={**__import__("os").environ, **environ},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert said in done.stderr + done.stdout
    assert not (tmp_path / "gateway" / "address.json").exists()


def test_plain_http_beyond_loopback_must_be_asked_for():
    """Only the decision: a test that listened there would be open to others."""
    for bind in ("0.0.0.0", "::", "192.0.2.1"):
        with pytest.raises(UnsafeAddressError):
            check_address(GatewaySettings(bind=bind))
        for allowed in ({"plain_http": True}, {"tls_certificate": "/a.pem", "tls_key": "/a.pem"}):
            assert str(check_address(GatewaySettings(bind=bind, **allowed))) == bind
