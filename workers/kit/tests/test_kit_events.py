"""Parsing and reading event lines, valid and invalid."""

import subprocess
import sys

import pytest

from mosaic_worker.errors import EventError
from mosaic_worker.events import Kind, read_line
from mosaic_worker.events.models import EVENTS, Episode, Event, parse_event

GOOD = [
    '{"event":"run_started","ts":1.5,"run_id":"r","worker":"w","total_steps":10,"config":{"a":null}}',
    '{"event":"run_completed","ts":1}',
    '{"event":"run_failed","ts":1,"category":"application","error":"x","traceback":null}',
    '{"event":"run_cancelled","ts":1,"reason":"SIGTERM"}',
    '{"event":"heartbeat","ts":1,"uptime_s":30.1}',
    '{"event":"checkpoint_saved","ts":1,"path":"a"}',
    '{"event":"checkpoint_loaded","ts":1,"path":"a"}',
    '{"event":"step","ts":1,"step":3,"reward":"NaN","action":[0.5],"unknown":{}}',
    '{"event":"step","ts":1,"step":null,"reward":null}',
    '{"event":"episode","ts":1,"episode":0,"return":"-Infinity","length":3}',
    '{"event":"scalars","ts":1,"step":3,"values":{"loss":"Infinity","x":1,"y":null}}',
    '{"event":"log","ts":1,"level":"info","message":""}',
    '{"event":"artifact","ts":1,"kind":"video","path":"v.mp4"}',
    '{"event":"of_my_own","ts":1,"x":1}',
]
BAD = [
    ("", "not JSON"),
    ("[]", "not a JSON object"),
    ('{"event":"step","ts":1,"step":1,"reward":NaN}', 'NaN is not JSON; write it as the string "NaN"'),
    ('{"event":"step","ts":1}', "step: Field required"),
    ('{"event":"step","step":1}', "ts: Field required"),
    ('{"ts":1}', "event: Field required"),
    ('{"event":3,"ts":1}', "event: Input should be a valid string"),
    ('{"event":"step","ts":1,"step":"3"}', "step: Input should be a valid integer"),
    ('{"event":"step","ts":1,"step":1,"reward":"big"}', "reward"),
    ('{"event":"step","ts":1,"step":1,"terminated":1}', "terminated"),
    ('{"event":"episode","ts":1,"episode":1}', "return: Field required"),
    ('{"event":"run_failed","ts":1,"category":"bad luck","error":"x"}', "category"),
    ('{"event":"log","ts":1,"level":"loud","message":"x"}', "level"),
]


@pytest.mark.parametrize("line", GOOD)
def test_good_lines_parse(line):
    event = parse_event(line)
    assert type(event) is EVENTS.get(event.event, Event)


@pytest.mark.parametrize(("line", "reason"), BAD)
def test_bad_lines_are_refused_with_a_reason(line, reason):
    with pytest.raises(EventError) as caught:
        parse_event(line)
    assert reason in str(caught.value)


def test_unknown_fields_are_kept_and_return_keeps_its_name_in_dumps():
    event = parse_event('{"event":"episode","ts":1,"episode":0,"return":2.5,"mine":[1]}')
    assert isinstance(event, Episode)
    assert event.return_ == 2.5
    assert event.model_dump(by_alias=True)["return"] == 2.5
    assert event.model_dump()["mine"] == [1]


@pytest.mark.parametrize("line", [each for each, _ in BAD[:2]] + ["{", '"step"', "{}", b"\xff", "[" * 10_000])
def test_line_that_is_no_event_reads_as_malformed(line):
    event = read_line(line)
    assert event.kind == Kind.MALFORMED
    assert event.text("reason")


def test_former_name_counts_only_where_the_present_one_is_missing():
    event = read_line('{"event":"episode","ts":2,"ts_unix_ns":5,"agent":"a","agent_id":"b","steps":7,"length":0}')
    assert (event.ts, event.agent, event.integer("length")) == (2, "a", 0)
    assert read_line('{"event":"scalars","steps":7,"values":{}}').integer("length") is None


@pytest.mark.parametrize(
    ("given", "name"), [('"a"', "a"), ("0", "0"), ('""', None), ("null", None), ("[1]", None), ("true", None)]
)
def test_agent_is_named_by_a_string_or_a_whole_number(given, name):
    assert read_line(f'{{"event":"step","agent":{given}}}').agent == name


def test_return_of_an_episode_is_that_of_the_team_or_the_sum_over_its_agents():
    line = '{"event":"episode","return":%s,"returns":{"a":1,"b":"NaN","c":null,"d":2}}'
    assert read_line(line % "9").value == 9
    assert read_line(line.replace('"NaN"', "4") % "null").value == 7
    assert read_line('{"event":"episode","returns":[1]}').value is None


def test_reading_events_needs_the_standard_library_only():
    """Services import this package, so it must not pull in heavy dependencies."""
    code = "import sys, mosaic_worker.events; print([each for each in ('pydantic', 'numpy') if each in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert found.stdout == "[]\n"
