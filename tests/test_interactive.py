"""Interactive runs through a real stack: lines to the worker's stdin, its answers as events in the journal."""

from __future__ import annotations

import json
import os
import signal
from typing import TYPE_CHECKING, Any

import psutil
import pytest
from stack import HOST, Stack, wait_until

from mosaic_bus import CommandRefusedError, topics
from mosaic_bus.commands import Tell

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mosaic_bus import Message

SUPERVISOR = topics.supervisor(HOST)


def submit(stack: Stack, **more: Any) -> str:
    config = {"env_id": "CartPole-v1", "seed": 3}
    run = stack.submit(**{"worker": "baseline", "config": config, "interactive": True, "grace_s": 20, **more})
    stack.wait_state(run, "running")
    return run


def tell(stack: Stack, run: str, attempt: int = 1, **request: Any) -> None:
    stack.bus.request(SUPERVISOR, Tell(run=run, attempt=attempt, line=json.dumps(request)))


def refused(stack: Stack, run: str, attempt: int = 1, line: str = "{}") -> str:
    with pytest.raises(CommandRefusedError) as caught:
        stack.bus.request(SUPERVISOR, Tell(run=run, attempt=attempt, line=line))
    return str(caught.value.code)


def tell_until_refused(stack: Stack, run: str, line: str) -> tuple[int, str]:
    for told in range(100):
        try:
            stack.bus.request(SUPERVISOR, Tell(run=run, attempt=1, line=line))
        except CommandRefusedError as error:
            return told, str(error.code)
    raise AssertionError("a hundred lines were taken")


def answer(live: Iterator[Message], request_id: int) -> dict[str, Any]:
    """The live answer to a request."""
    for message in live:
        for line in message.buffers[0].splitlines():
            event = json.loads(line)
            if event["event"] == "reply" and event["id"] == request_id:
                return event["reply"]
    raise AssertionError("no answer came")


def test_answers_come_back_live_and_a_killed_supervisor_does_not_end_the_conversation(stack):
    run = submit(stack)
    live = stack.bus.listen(topics.journal(run), timeout=60)
    tell(stack, run, cmd="reset", seed=7, id=1)
    first = answer(live, 1)
    tell(stack, run, cmd="step", action=1, id=2)
    assert answer(live, 2)["reward"] == 1.0
    stack.kill_and_restart("supervisor")
    stack.wait_for("supervisor")
    tell(stack, run, cmd="reset", seed=7, id=3)
    assert answer(live, 3) == first
    tell(stack, run, cmd="dance", id=4)
    assert answer(live, 4)["type"] == "error"
    tell(stack, run, cmd="stop", id=5)
    assert answer(live, 5) == {"type": "stopped"}
    assert stack.wait_final(run).state == "succeeded"
    stack.wait_stored(run)
    stack.assert_stored_exactly_once(run)
    events = [json.loads(line)["event"] for line in stack.journal(run).read_text().splitlines()]
    assert [each for each in events if each != "heartbeat"] == ["run_started", *5 * ["reply"], "run_completed"]
    assert not (stack.home.runs / run / "1" / "stdin.fifo").exists()
    assert refused(stack, run) == "already_ended"


def test_tell_is_refused_with_a_code_and_never_waits_for_a_worker_that_does_not_read(shared_stack):
    stack = shared_stack
    run = submit(stack)
    assert refused(stack, "01NOSUCHRUN") == "unknown_attempt"
    assert refused(stack, run, attempt=2) == "unknown_attempt"
    deaf = stack.submit(config={"end": "hang"})
    stack.wait_state(deaf, "running")
    assert refused(stack, deaf) == "not_interactive"
    stack.cancel(deaf)

    host = json.loads((stack.home.runs / run / "1" / "host.json").read_text())["pid"]
    (worker,) = psutil.Process(host).children()
    worker.suspend()
    line = json.dumps({"cmd": "ping", "id": 8, "padding": "x" * 40_000})
    told, code = tell_until_refused(stack, run, line)
    assert code == "not_reading"
    assert told > 1
    worker.resume()
    replies = '"reply":{"type":"pong"}'
    wait_until("every line that was taken is answered", lambda: stack.journal(run).read_text().count(replies) == told)
    stack.cancel(run)
    assert stack.wait_final(run).state == "cancelled"
    assert '"run_cancelled"' in stack.journal(run).read_text().splitlines()[-1]


def test_interactive_run_of_a_worker_without_that_mode_fails_with_a_reason(shared_stack):
    run = shared_stack.submit(interactive=True)
    state = shared_stack.wait_final(run)
    assert (state.state, state.category) == ("failed", "configuration")
    assert "interactive" in state.reason


@pytest.mark.slow
def test_run_host_of_an_interactive_run_killed_ends_it(shared_stack):
    stack = shared_stack
    run = submit(stack)
    os.kill(json.loads((stack.home.runs / run / "1" / "host.json").read_text())["pid"], signal.SIGKILL)
    assert stack.wait_final(run).category == "infrastructure"
    assert refused(stack, run) == "already_ended"
    assert not (stack.home.runs / run / "1" / "stdin.fifo").exists()
