"""The golden messages hold byte for byte, and docs/protocol.md alone is enough to write a client."""

import base64
import contextlib
import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import msgpack
import pytest
import zmq

from mosaic_bus import messages
from mosaic_bus.wire.envelope import Message, decode, encode
from mosaic_worker.events import read_event
from mosaic_worker.events.models import EVENTS, parse_event

ROOT = Path(__file__).resolve().parent.parent
GOLDEN = json.loads((ROOT / "tests" / "golden" / "messages.json").read_text())
EVENT_LINES = [json.loads(line) for line in (ROOT / "tests" / "golden" / "events.jsonl").read_text().splitlines()]


def script(path):
    """A script of the repository as a module: scripts are no package."""
    import importlib.util

    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


DOCS = script(ROOT / "scripts" / "generate_message_docs.py")


def description(entry):
    return entry["description"]


# ── bytes ────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("entry", GOLDEN, ids=description)
def test_message_decodes_to_what_is_written_and_encodes_to_the_same_bytes(entry):
    parts = [bytes.fromhex(part) for part in entry["parts_hex"]]
    message = decode(parts)
    assert message.topic == entry["topic"]
    assert {"v": 2, **entry["header"]} == msgpack.unpackb(parts[1])
    assert message.payload == entry["payload"]
    assert [each.hex() for each in message.buffers] == entry["buffers_hex"]
    assert encode(Message(message.topic, message.header, message.payload, message.buffers)) == parts


@pytest.mark.parametrize("entry", [each for each in GOLDEN if each["body"]], ids=description)
def test_body_is_valid_and_comes_back_unchanged(entry):
    model = getattr(messages, entry["body"])
    assert model.model_validate(entry["payload"]).model_dump(mode="json") == entry["payload"]


@pytest.mark.parametrize("entry", [each for each in GOLDEN if each["body"] == "Batch"], ids=description)
def test_batch_says_what_its_buffer_holds(entry):
    body, lines = entry["payload"], bytes.fromhex(entry["buffers_hex"][0])
    assert lines.count(b"\n") == body["count"]
    assert lines.endswith(b"\n")
    assert body["end"] - body["offset"] == len(lines)


def test_every_body_that_is_published_has_a_golden_message():
    assert {entry["body"] for entry in GOLDEN} - {None} == set(DOCS.TOPICS)


def test_golden_file_is_what_its_script_writes(tmp_path):
    module = script(ROOT / "tests" / "golden" / "write.py")
    module.TARGET = tmp_path / "messages.json"
    module.main()
    assert json.loads(module.TARGET.read_text()) == GOLDEN


def test_message_reference_is_up_to_date():
    assert DOCS.TARGET.read_text() == DOCS.render(), "run scripts/generate_message_docs.py"


# ── lines of workers ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "entry", [each for each in EVENT_LINES if each["dialect"] == "new"], ids=lambda e: e["line"][:30]
)
def test_line_of_the_dialect_is_valid(entry):
    fields = json.loads(entry["line"])
    event = parse_event(entry["line"])
    assert type(event) is EVENTS.get(fields["event"], type(event))
    assert event.model_dump(by_alias=True, exclude_unset=True) == fields


@pytest.mark.parametrize(
    "entry", [each for each in EVENT_LINES if each["dialect"] == "old"], ids=lambda e: e["line"][:30]
)
def test_old_line_stands_for_a_valid_line(entry):
    means = entry["means"]
    parse_event(json.dumps(means))
    event = read_event(json.loads(entry["line"]))
    assert (event.kind, event.ts, event.step) == (means["event"], means["ts"], means.get("step"))
    named = {name: value for name, value in means.items() if name not in {"event", "ts", "step"}}
    assert {name: event.fields.get(name) for name in named} == named


def test_every_event_has_a_golden_line():
    named = {json.loads(each["line"])["event"] for each in EVENT_LINES if each["dialect"] == "new"}
    assert set(EVENTS) <= named


# ── a client that knows nothing but the document ─────────────────────────────────────────────────────


class DocumentClient:
    """A client written from docs/protocol.md with pyzmq and msgpack: nothing of mosaic_bus is used in it."""

    def __init__(self, socket_folder):
        # "ULID of this message": 26 letters of Crockford's base 32, time first.
        self.id = self.ulid()
        self.seqs = {}
        self.context = zmq.Context()
        self.out = self.context.socket(zmq.DEALER)
        self.sub = self.context.socket(zmq.SUB)
        for socket in (self.out, self.sub):
            socket.setsockopt(zmq.LINGER, 0)
            socket.setsockopt(zmq.RCVTIMEO, 20_000)
        self.out.connect(f"ipc://{socket_folder}/in.sock")
        self.sub.connect(f"ipc://{socket_folder}/out.sock")

    @staticmethod
    def ulid():
        number = int(time.time() * 1000) << 80 | random.getrandbits(80)
        return "".join("0123456789ABCDEFGHJKMNPQRSTVWXYZ"[number >> shift & 31] for shift in range(125, -1, -5))

    def send(self, topic, payload, *buffers, version=2):
        seq = self.seqs[topic] = self.seqs.get(topic, -1) + 1
        message_id = self.ulid()
        header = {"v": version, "id": message_id, "src": f"client.{self.id}", "epoch": 1, "seq": seq}
        header |= {"wall": time.time(), "mono": time.monotonic()}
        self.out.send_multipart([topic.encode(), msgpack.packb(header), msgpack.packb(payload), *buffers])
        return message_id

    def receive(self, topic):
        while True:
            got, header, payload, *buffers = self.sub.recv_multipart()
            if got.decode() == topic:
                return msgpack.unpackb(header), msgpack.unpackb(payload), buffers

    def ask(self, service, command, args):
        message_id = self.send(f"command.{service}.", {"command": command, "reply_to": self.id, "args": args})
        while True:
            header, payload, _ = self.receive(f"reply.{self.id}.")
            if header["cor"] == message_id:
                return payload

    def close(self):
        self.out.close()
        self.sub.close()
        self.context.term()


@pytest.fixture
def broker(tmp_path):
    environ = {key: value for key, value in os.environ.items() if not key.startswith("MOSAIC_")}
    command = [sys.executable, "-m", "mosaic_services.broker", "--home", str(tmp_path)]
    with (tmp_path / "broker.log").open("wb") as log, subprocess.Popen(command, stderr=log, env=environ) as process:
        yield tmp_path / "bus"
        process.terminate()


def test_document_is_enough_to_write_a_client(broker):
    with contextlib.closing(DocumentClient(broker)) as client:
        for topic in ("state.service.broker.", "mine.", f"reply.{client.id}.", f"~welcome.{client.id}."):
            client.sub.subscribe(topic.encode())
        header, payload, _ = client.receive(f"~welcome.{client.id}.")
        assert header["v"] == 2
        assert payload == {"protocol": 2, "broker_epoch": 1}

        client.send("mine.", {"a": 1}, b"\x00raw")
        header, payload, buffers = client.receive("mine.")
        assert (header["src"], header["seq"], payload, buffers) == (f"client.{client.id}", 0, {"a": 1}, [b"\x00raw"])

        _, state, _ = client.receive("state.service.broker.")
        assert state["status"] == "ok"
        # The broker answers commands a moment after it forwards: "no answer within a second: send it again".
        assert client.ask("broker", "ping", {}) == {"ok": True, "result": {"note": "pong"}}

        refused = client.ask("broker", "fly", {"height": 3})
        assert refused["ok"] is False
        assert refused["error"]["code"] == "unknown_command"
        assert "'fly'" in refused["error"]["message"]
        refused = client.ask("broker", "ping", {"loud": True})
        assert refused["error"]["code"] == "invalid_arguments"
        assert "loud" in refused["error"]["message"]

        client.send("mine.", {}, version=1)
        topic, _, payload = client.out.recv_multipart()
        assert topic == b"error."
        assert msgpack.unpackb(payload)["code"] == "wrong_version"


def test_golden_messages_pass_through_a_broker_unchanged(broker):
    with contextlib.closing(DocumentClient(broker)) as client:
        client.sub.subscribe(b"")
        client.sub.subscribe(f"~welcome.{client.id}.".encode())
        client.receive(f"~welcome.{client.id}.")
        sent = [[bytes.fromhex(part) for part in entry["parts_hex"]] for entry in GOLDEN]
        for parts in sent:
            client.out.send_multipart(parts)
        wanted = [base64.b64encode(b"|".join(parts)) for parts in sent]
        got = []
        while len(got) < len(wanted):
            received = base64.b64encode(b"|".join(client.sub.recv_multipart()))
            if received in wanted:
                got.append(received)
        assert got == wanted
