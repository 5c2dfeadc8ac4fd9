"""Bad input gets a clear answer, stays visible, and affects no other run."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING

import pytest

from mosaic_bus import CommandRefusedError
from mosaic_bus.commands import Episodes, Events, Logs, Runs, Series, Submit
from mosaic_bus.messages import RunSpec

if TYPE_CHECKING:
    from stack import Stack


@pytest.fixture
def stack(shared_stack) -> Stack:
    """All tests share one stack, which shows that bad input does not damage it."""
    return shared_stack


def run_raw(stack: Stack, *lines: bytes, **config) -> str:
    """Run a worker that writes these bytes to stdout, beside a healthy one, until both are stored."""
    healthy = stack.submit(name="healthy", config={"events": 500})
    run = stack.submit(name="bad", config={"raw": [base64.b64encode(line).decode() for line in lines], **config})
    assert stack.wait_final(healthy).state == "succeeded"
    stack.wait_final(run)
    for each in (run, healthy):
        stack.wait_stored(each)
    assert stack.assert_stored_exactly_once(healthy) == 502
    return run


def events(stack: Stack, run: str, *kinds: str) -> list[dict]:
    return stack.bus.request("telemetry", Events(run=run, kinds=list(kinds))).rows


@pytest.mark.parametrize(
    "line",
    [
        pytest.param(b'{"event":"step","step":\n', id="broken JSON"),
        pytest.param(b'{"event":"step","note":"\xff\xfe\xc3"}\n', id="invalid UTF-8", marks=pytest.mark.slow),
        pytest.param(bytes(range(256)).replace(b"\n", b"") + b"\n", id="binary noise", marks=pytest.mark.slow),
        pytest.param(b"[1, 2, 3]\n", id="JSON but no object", marks=pytest.mark.slow),
        pytest.param(b"hello from a library\n", id="a print", marks=pytest.mark.slow),
        pytest.param(b"[" * 100_000 + b"\n", id="deep nesting", marks=pytest.mark.slow),
        pytest.param(b"\n", id="empty line", marks=pytest.mark.slow),
    ],
)
def test_line_that_is_no_event_is_kept_as_malformed_and_the_run_goes_on(stack, line):
    run = run_raw(stack, line, events=10)
    assert stack.state(run).state == "succeeded"
    (bad,) = events(stack, run, "malformed")
    assert bad["number"] == 1
    assert [each["event"] for each in events(stack, run)][-1] == "run_completed"
    assert stack.summary(run).malformed == 1
    number, kept = stack.stored_lines(run)[1]
    assert number == 1
    assert (kept if isinstance(kept, bytes) else kept.encode()) == line[:-1]


@pytest.mark.slow
def test_line_of_20_mb_is_replaced(stack):
    run = run_raw(stack, long_line=20_000_000, events=10)
    assert stack.state(run).state == "succeeded"
    (bad,) = events(stack, run, "malformed")
    stand_in = json.loads(bad["line"])
    assert stand_in["reason"] == "line too long"
    assert stand_in["bytes"] == 20_000_000
    assert stand_in["head"].startswith('{"blob":"xxx')
    assert len(stack.stored_lines(run)) == 13


@pytest.mark.slow
def test_nan_infinity_and_null_are_understood(stack):
    run = run_raw(
        stack,
        b'{"event":"step","ts":1,"step":1,"reward":NaN}\n',
        b'{"event":"step","ts":1,"step":2,"reward":null}\n',
        b'{"event":"step","ts":1,"step":3,"reward":"NaN"}\n',
        b'{"event":"scalars","ts":1,"step":4,"values":{"loss":Infinity,"lr":0.5}}\n',
        b'{"event":"episode","ts":1,"step":5,"episode":0,"return":-Infinity}\n',
    )
    assert stack.summary(run).malformed == 0
    assert len(events(stack, run, "step")) == 3
    assert stack.bus.request("telemetry", Series(runs=[run], metrics=["lr"])).only.values == [0.5]


def test_last_line_without_newline_is_stored(stack):
    run = run_raw(stack, b'{"event":"log","ts":1,"level":"info","message":"last words"}', end="silent")
    last = events(stack, run)[-1]
    assert json.loads(last["line"])["message"] == "last words"


@pytest.mark.slow
def test_older_dialect_is_stored_under_present_names(stack):
    run = run_raw(
        stack,
        b'{"type":"step","step_index":7,"episode_index":1,"reward":0.5,"timestamp":"2026-01-01T00:00:00+00:00"}\n',
        b'{"type":"episode","episode_index":1,"total_reward":12.5,"step_index":8,"timestamp":1767225600}\n',
        b'{"event":"heartbeat","payload":{"step":9},"ts":1767225601}\n',
    )
    step, episode = events(stack, run, "step", "episode")
    assert (step["step"], step["value"], step["ts"]) == (7, 0.5, 1767225600.0)
    assert (episode["step"], episode["value"]) == (8, 12.5)
    (row,) = stack.bus.request("telemetry", Episodes(run=run)).rows
    assert (row["episode"], row["return"]) == (1, 12.5)
    assert stack.summary(run).malformed == 0


@pytest.mark.slow
def test_flood_of_stderr_is_stored_in_part_with_a_note(stack):
    lines = 400_000
    run = run_raw(stack, log_lines=lines, events=10)
    assert stack.state(run).state == "succeeded"
    first = stack.bus.request("telemetry", Logs(run=run, limit=3)).rows
    last = stack.bus.request("telemetry", Logs(run=run, tail=5)).rows
    assert [row["line"].split(" of ")[0] for row in first] == ["log line 0", "log line 1", "log line 2"]
    assert last[-1]["line"].startswith(f"log line {lines - 1} ")
    stored = [line for _, line in stack.stored_lines(run, "log")]
    assert len([line for line in stored if "left out" in line]) == 1
    assert 200_000 < len(stored) < lines


@pytest.mark.slow
def test_exit_codes_and_signals_end_up_in_the_reason(stack):
    crash = stack.submit(config={"end": "crash"})
    segfault = stack.submit(config={"end": "segfault"})
    state = stack.wait_final(crash)
    assert (state.state, state.category, state.exit_code) == ("failed", "application", 1)
    assert "loss is NaN at step 40960" in state.reason
    state = stack.wait_final(segfault)
    assert (state.state, state.category) == ("failed", "application")
    assert "signal 11" in state.reason


@pytest.mark.parametrize(
    ("spec", "code", "said"),
    [
        ({"worker": "stres"}, "unknown_worker", ["stres", "stress"]),
        ({"worker": "stress", "profile": "defualt"}, "unknown_profile", ["defualt", "default"]),
        ({"worker": "stress", "config": {"evnts": 1}}, "invalid_config", ["evnts", "events"]),
        ({"worker": "stress", "config": {"events": -3}}, "invalid_config", ["events", "-3", "0"]),
        ({"worker": "stress", "config": {"events": "many"}}, "invalid_config", ["events", "many", "integer"]),
        ({"worker": "stress", "config": {"end": "explode"}}, "invalid_config", ["end", "explode", "complete", "hang"]),
        ({"worker": "stress", "config": {"raw": ["x" * 2_000_000]}}, "invalid_config", ["2000", "1048576", "file"]),
        ({"worker": "stress", "resources": {"cpus": 1000}}, "impossible_resources", ["1000", "8"]),
    ],
)
def test_bad_spec_is_refused_at_submit_with_field_value_and_what_is_allowed(stack, spec, code, said):
    if not stack.bus.request("scheduler", Runs()).total:
        stack.wait_final(stack.submit(config={}))  # By then the scheduler knows the worker's schema.
    before = stack.bus.request("scheduler", Runs()).total
    with pytest.raises(CommandRefusedError) as refused:
        stack.bus.request("scheduler", Submit(spec=RunSpec.model_validate(spec)))
    assert refused.value.code == code
    told = f"{refused.value.message} {refused.value.details}"
    for word in said:
        assert word in told
    assert stack.bus.request("scheduler", Runs()).total == before


@pytest.mark.slow
def test_identical_config_twice_makes_two_runs(stack):
    first, second = (stack.submit(config={"events": 5}) for _ in range(2))
    assert first != second
    for run in (first, second):
        assert stack.wait_final(run).state == "succeeded"
        stack.wait_stored(run)
        assert stack.assert_stored_exactly_once(run) == 7
