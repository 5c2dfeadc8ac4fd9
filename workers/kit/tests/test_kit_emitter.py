"""The emitter: each event is one whole line, despite full disks, threads and signals."""

import json
import os
import threading

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mosaic_worker.emitter import MAX_LINE, Emitter
from mosaic_worker.errors import AlreadyEndedError, RunCancelled
from mosaic_worker.events.models import parse_event

NOW = 1_700_000_000.123456


@pytest.fixture
def journal(tmp_path):
    path = tmp_path / "journal.jsonl"
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    yield path, fd
    os.close(fd)


@pytest.fixture
def emitter(journal):
    return Emitter(journal[1], clock=lambda: NOW)


def lines(journal):
    return [json.loads(line) for line in journal[0].read_bytes().splitlines()]


def test_every_event_of_the_dialect_is_valid(journal, emitter):
    emitter.run_started(
        "r1", "tiny", config={"a": 1}, env_id="E-v0", seed=1, total_steps=9, task="t", versions={"x": "1"}
    )
    emitter.heartbeat(uptime_s=1.5, step=3)
    emitter.checkpoint_saved("a/b.pt", step=3)
    emitter.checkpoint_loaded(journal[0], step=3)
    emitter.step(4, episode=0, reward=1.0, terminated=False, truncated=True, action=1, agent="a", info={"k": 1})
    emitter.step(5)
    emitter.episode(0, -3.5, length=4, step=4, seed=1, agent="a", success=True, info={})
    emitter.scalars(4, {"loss": float("nan"), "entropy": 0.5})
    emitter.log("warning", "mind the gap", step=4)
    emitter.artifact("video", "v.mp4", step=4, info={"fps": 30})
    emitter.emit("something_new", anything=[1, 2])
    emitter.run_completed(step=4, episodes=1, summary={"return_mean": -3.5})
    events = [parse_event(line) for line in journal[0].read_bytes().splitlines()]
    assert [event.event for event in events] == [
        *("run_started", "heartbeat", "checkpoint_saved", "checkpoint_loaded", "step", "step", "episode"),
        *("scalars", "log", "artifact", "something_new", "run_completed"),
    ]
    assert all(event.ts == 1700000000.123456 for event in events)


def test_a_step_leaves_out_what_is_none(journal, emitter):
    emitter.step(5, reward=None, mine=None, other=1)
    assert lines(journal) == [{"event": "step", "step": 5, "other": 1, "ts": NOW}]


def test_log_events_go_to_stderr_too(journal, emitter, capfd):
    emitter.log("warning", "mind the gäp", step=4)
    assert lines(journal)[-1]["message"] == "mind the gäp"
    assert capfd.readouterr().err == "warning: mind the gäp\n"


def test_an_unwritable_stderr_loses_no_event(journal, emitter):
    kept = os.dup(2)
    os.close(2)
    try:
        emitter.log("info", "nobody reads this")
    finally:
        os.dup2(kept, 2)
        os.close(kept)
    assert lines(journal)[-1]["message"] == "nobody reads this"


def test_a_step_looks_like_this(journal, emitter):
    emitter.step(4, episode=0, reward=1.0, terminated=False, truncated=True, action=1)
    assert journal[0].read_text() == (
        '{"event":"step","step":4,"episode":0,"reward":1.0,"terminated":false,"truncated":true,"action":1,'
        '"ts":1700000000.123456}\n'
    )


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.fixed_dictionaries(
        {"step": st.integers()},
        optional={
            "episode": st.integers() | st.none(),
            "reward": st.floats() | st.integers() | st.none(),
            "terminated": st.booleans() | st.none(),
            "truncated": st.booleans(),
            "action": st.integers() | st.lists(st.floats()) | st.text(st.characters()) | st.booleans(),
            "agent": st.text(st.characters()),
            "info": st.dictionaries(st.text(), st.floats() | st.text(st.characters())),
            "more": st.floats(),
        },
    )
)
def test_step_writes_the_same_event_as_emit(journal, emitter, fields):
    emitter.step(**fields)
    emitter.emit("step", **fields)
    quick, plain = lines(journal)[-2:]
    assert quick == plain


def test_none_fields_are_left_out_and_event_and_ts_cannot_be_replaced(journal, emitter):
    emitter.emit("log", level="info", message="m", step=None, event="x", ts=3)
    emitter.step(1, event="x", ts=3)
    assert lines(journal) == [
        {"event": "log", "level": "info", "message": "m", "ts": 1700000000.123456},
        {"event": "step", "step": 1, "ts": 1700000000.123456},
    ]


def test_nothing_follows_a_terminal_event(journal, emitter, capsys):
    emitter.run_completed()
    emitter.heartbeat(uptime_s=1)
    emitter.log("info", "too late")
    with pytest.raises(
        AlreadyEndedError, match="run_failed cannot be written: the run already ended with run_completed"
    ):
        emitter.run_failed("application", "x")
    assert [event["event"] for event in lines(journal)] == ["run_completed"]
    assert emitter.dropped == 2


def test_a_line_too_long_for_readers_keeps_its_small_fields(journal, emitter):
    emitter.step(1, episode=2, reward=0.0, terminated=False, truncated=False, info={"frame": "x" * MAX_LINE})
    emitter.log("info", "y" * MAX_LINE)
    step, log = lines(journal)
    assert (step["step"], step["reward"], step["info"]) == (1, 0.0, f"<left out: {MAX_LINE + 12} bytes>")
    assert log["message"].startswith("<left out: ")


def test_threads_do_not_mix_their_lines(journal):
    emitter = Emitter(journal[1])

    def write(agent):
        for step in range(500):
            emitter.step(step, episode=0, reward=0.5, terminated=False, truncated=False, agent=agent)

    threads = [threading.Thread(target=write, args=(f"a{number}",)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    events = lines(journal)
    for thread in range(4):
        assert [e["step"] for e in events if e["agent"] == f"a{thread}"] == list(range(500))


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")  # noqa: PTH110
def test_a_full_disk_is_waited_out_and_nothing_is_lost(journal, capfd):
    _, good = journal
    fd = os.open("/dev/full", os.O_WRONLY)
    pauses = []

    def make_room_at_the_third_pause(seconds):
        pauses.append(seconds)
        if len(pauses) == 3:
            os.dup2(good, fd)

    emitter = Emitter(fd, pause=make_room_at_the_third_pause)
    emitter.log("info", "first")
    emitter.log("info", "second")
    os.close(fd)
    assert [event["message"] for event in lines(journal)] == ["first", "second"]
    assert len(pauses) == 3
    assert capfd.readouterr().err.count("No space left on device") == 1


class Pipe:
    """A pipe that accepts 64 KiB until it is read, so that a long line needs several writes."""

    def __init__(self):
        self.reader, self.writer = os.pipe()
        os.set_blocking(self.writer, False)
        self.read = b""

    def drain(self, _seconds=None):
        self.read += os.read(self.reader, 1 << 20)


@pytest.fixture
def pipe():
    made = Pipe()
    yield made
    os.close(made.reader)
    os.close(made.writer)


def test_short_writes_are_continued(pipe):
    emitter = Emitter(pipe.writer, pause=pipe.drain)
    emitter.log("info", "x" * 300_000)
    pipe.drain()
    assert len(json.loads(pipe.read)["message"]) == 300_000


def test_a_signal_in_the_middle_of_a_line_waits_until_the_line_is_whole(pipe):
    def drain_and_interrupt(_seconds):
        pipe.drain()
        emitter.interrupt(RunCancelled("SIGTERM"))
        assert emitter.last_words("run_cancelled") is False

    emitter = Emitter(pipe.writer, pause=drain_and_interrupt)
    with pytest.raises(RunCancelled):
        emitter.log("info", "x" * 300_000)
    pipe.drain()
    assert len(json.loads(pipe.read)["message"]) == 300_000
    emitter.run_cancelled(reason="SIGTERM")  # the emitter still works


def test_an_interrupt_between_lines_raises_at_once(emitter):
    with pytest.raises(RunCancelled):
        emitter.interrupt(RunCancelled("SIGTERM"))


def test_a_journal_that_is_gone_is_an_error(tmp_path):
    fd = os.open(tmp_path / "x", os.O_WRONLY | os.O_CREAT)
    os.close(fd)
    with pytest.raises(OSError, match="Bad file descriptor"):
        Emitter(fd).log("info", "m")


def test_last_words_end_a_run_once(journal, emitter):
    assert emitter.last_words("run_cancelled", reason="SIGTERM again") is True
    assert emitter.last_words("run_cancelled") is False
    assert [event["event"] for event in lines(journal)] == ["run_cancelled"]
