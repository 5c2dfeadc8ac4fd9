"""Lines of the dialect are told from lines that are not."""

import pytest

from mosaic_worker.errors import EventError
from mosaic_worker.events import EVENTS, Episode, Event, parse_event

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


def test_unknown_fields_are_kept_and_return_has_its_name():
    event = parse_event('{"event":"episode","ts":1,"episode":0,"return":2.5,"mine":[1]}')
    assert isinstance(event, Episode)
    assert event.return_ == 2.5
    assert event.model_dump(by_alias=True)["return"] == 2.5
    assert event.model_dump()["mine"] == [1]
