"""Writes messages.json, the golden messages, anew: python tests/golden/write.py.

Run it when a message is added or the protocol gets a new version, and look at the difference: bytes of a message that
was there before change only with the version of the protocol.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from mosaic_bus import topics
from mosaic_bus.commands import Ack, Cancel
from mosaic_bus.messages import (
    AgentSummary,
    AttemptPhase,
    AttemptReport,
    Batch,
    BuildProgress,
    EnvironmentStatus,
    ExitReport,
    ExperimentState,
    ExperimentStateName,
    FailureCategory,
    FrameHandle,
    HostState,
    LineupProgress,
    Model,
    Position,
    Resources,
    RunState,
    RunStateName,
    RunSummary,
    ServiceState,
    ShardProgress,
    StoredPosition,
    StoredPositions,
    StreamTail,
    StreamTails,
    Usage,
)
from mosaic_bus.wire.envelope import Header, Message, encode

TARGET = Path(__file__).parent / "messages.json"
RUN = "01K5A0Q4T1M7Z8V9W2X3Y4B5C6"
CLIENT = "01K5A0Q4T1CAFE0000000000AB"
COMMAND = "01K5A0Q4T1C0MMAND000000000"
NOW = 1760000000.25
LINES = b'{"event":"heartbeat","ts":1760000000.0}\n{"event":"step","ts":1760000000.1,"step":1}\nnot JSON\n'

BODIES: list[tuple[str, str, str, Model]] = [
    (
        "heartbeat of a service",
        topics.service_state("scheduler"),
        "scheduler",
        ServiceState(service="scheduler", pid=4711, started_at=NOW, counters={"received": 12, "lag_s": 0.5}),
    ),
    (
        "a host with one environment and one failed attempt",
        topics.host_state("node-1"),
        "supervisor.node-1",
        HostState(
            host="node-1",
            total=Resources(cpus=8, memory_mb=16384),
            environments=[
                EnvironmentStatus(worker="baseline", profile="default", status="installed", fingerprint="f1")
            ],
            attempts=[
                AttemptReport(
                    run=RUN,
                    attempt=1,
                    phase=AttemptPhase.ENDED,
                    resources=Resources(),
                    started_at=NOW,
                    exit=ExitReport(
                        code=1,
                        category=FailureCategory.APPLICATION,
                        reason="the worker failed: ValueError",
                        started_at=NOW,
                        ended_at=NOW + 1,
                        max_rss_mb=80.5,
                        last_lines=["ValueError: naïve – 数"],
                    ),
                    usage=Usage(cpu_percent=12.5, rss_mb=80.5, processes=2),
                )
            ],
            cpu_percent=25.0,
            memory_used_mb=2048.0,
        ),
    ),
    (
        "how far the streams of a host go",
        topics.streams("node-1"),
        "supervisor.node-1",
        StreamTails(
            host="node-1",
            tails=[StreamTail(run=RUN, attempt=1, kind="log", sent=Position(number=3, offset=120), final=True)],
        ),
    ),
    (
        "progress of a build",
        topics.build("node-1"),
        "supervisor.node-1",
        BuildProgress(host="node-1", worker="cleanrl", profile="legacy", step="installing torch", percent=40),
    ),
    (
        "state of a run",
        topics.run_state(RUN),
        "scheduler",
        RunState(
            run=RUN,
            name="random-CartPole",
            worker="baseline",
            profile="default",
            state=RunStateName.RUNNING,
            reason="started on node-1",
            attempt=1,
            host="node-1",
            submitted_at=NOW,
            changed_at=NOW + 2,
            started_at=NOW + 2,
        ),
    ),
    (
        "live aggregates of a run",
        topics.summary(RUN),
        "telemetry",
        RunSummary(
            run=RUN,
            attempt=1,
            task="CartPole-v1",
            events=300,
            step=2**40,
            episodes=7,
            steps_per_s=1500.5,
            return_last=-21.0,
            return_mean=-20.5,
            returns=[-22.0, -20.0, -21.0],
            agents={"player_0": AgentSummary(episodes=7, return_last=-21.0, return_mean=-20.5)},
            scalars={"loss": 0.125},
            last_event_at=NOW,
            received=300,
        ),
    ),
    (
        "how far telemetry has stored",
        topics.STORED,
        "telemetry",
        StoredPositions(
            storing=True,
            positions=[StoredPosition(run=RUN, attempt=1, kind="journal", stored=Position(number=3, offset=98))],
        ),
    ),
    (
        "an experiment that is being played",
        topics.experiment_state("cartpole-vs-random"),
        "operator",
        ExperimentState(
            experiment="cartpole-vs-random",
            state=ExperimentStateName.RUNNING,
            done=40,
            wanted=100,
            lineups=[LineupProgress(lineup="random", done=40, wanted=100, mean_return=22.5, failures=1)],
            shards=[ShardProgress(number=1, run=RUN, state="running", host="node-1", done=40, total=100)],
            started_at=NOW,
            folder="/home/me/.mosaic/experiments/cartpole-vs-random",
            version=3,
        ),
    ),
]

FRAME = FrameHandle(
    host="node-1",
    run=RUN,
    attempt=1,
    stream="main",
    file=f"/dev/shm/mosaic-1000-0123456789abcdef/{RUN}.1/main.ring",
    epoch=1,
    slot=2,
    number=1234,
    shape=(480, 640, 3),
    wall=NOW,
    step=98765,
    episode=7,
    last_reward=-0.5,
    step_rate_hz=1500.5,
)


def batch(kind: str, first: int, offset: int) -> Batch:
    """Three lines of a stream, of which the last is not JSON."""
    fields = {"host": "node-1", "run": RUN, "attempt": 1, "kind": kind, "first": first, "count": LINES.count(b"\n")}
    return Batch.model_validate({**fields, "offset": offset, "end": offset + len(LINES)})


def header(src: str, seq: int, cor: str | None = None, message_id: str | None = None) -> Header:
    """A header with fixed times."""
    return Header(message_id or f"01K5A0Q4T10000000000000{seq:03d}", src, 2, seq, NOW, 86400.5, cor)


def samples() -> list[tuple[str, str, Message]]:
    """Description, name of the body's model (or empty) and message."""
    found = [
        (what, type(body).__name__, Message(topic, header(src, seq), body.model_dump(mode="json")))
        for seq, (what, topic, src, body) in enumerate(BODIES)
    ]
    for what, topic, body in (
        ("a batch of journal lines with its buffer", topics.journal(RUN), batch("journal", 0, 0)),
        ("a batch of log lines with its buffer", topics.log(RUN), batch("log", 7, 1000)),
        ("a batch that was asked for again", topics.repair(RUN), batch("journal", 0, 0)),
    ):
        message = Message(topic, header("supervisor.node-1", 100), body.model_dump(mode="json"), (LINES,))
        found.append((what, "Batch", message))
    for what, topic, handle, buffers in (
        ("where a run's newest picture is", topics.frame(RUN), FRAME, ()),
        (
            "a picture with its handle (the JPEG is cut short here)",
            topics.picture(RUN, 640, 80),
            FRAME.model_copy(update={"encoding": "jpeg"}),
            (b"\xff\xd8\xff\xe0",),
        ),
    ):
        message = Message(topic, header("supervisor.node-1", 110), handle.model_dump(mode="json"), buffers)
        found.append((what, "FrameHandle", message))
    me = f"client.{CLIENT}"
    cancel = {"command": Cancel.name, "reply_to": CLIENT, "args": Cancel(run=RUN).model_dump(mode="json")}
    refusal = {
        "code": "already_final",
        "message": "the run has ended: failed",
        "details": {"run": RUN, "state": "failed"},
    }
    answers: list[tuple[str, dict[str, Any]]] = [
        ("the command carried out", {"ok": True, "result": Ack(note="stopping").model_dump(mode="json")}),
        ("the command refused", {"ok": False, "error": refusal}),
    ]
    found.append(("a command", "", Message(topics.command("scheduler"), header(me, 0, None, COMMAND), cancel)))
    found.extend(
        (what, "", Message(topics.reply(CLIENT), header("scheduler", 200 + seq, COMMAND), answer))
        for seq, (what, answer) in enumerate(answers)
    )
    welcome = {"protocol": 2, "broker_epoch": 2}
    error = {"code": "wrong_version", "message": "protocol version 1 is not supported, only 2"}
    found.append(("the welcome", "", Message(topics.welcome(CLIENT), header("broker.wire", 0), welcome)))
    found.append(("an error, on your DEALER socket", "", Message("error.", header("broker.wire", 1), error)))
    return found


def main() -> None:
    """Write the file."""
    entries = []
    for what, body, message in samples():
        head = {name: getattr(message.header, name) for name in ("v", "id", "src", "epoch", "seq", "wall", "mono")}
        if message.header.cor is not None:
            head["cor"] = message.header.cor
        entries.append(
            {
                "description": what,
                "body": body or None,
                "topic": message.topic,
                "header": head,
                "payload": message.payload,
                "buffers_hex": [each.hex() for each in message.buffers],
                "parts_hex": [part.hex() for part in encode(message)],
            }
        )
    TARGET.write_text(json.dumps(entries, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
