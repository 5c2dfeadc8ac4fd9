"""From bytes to columns: both dialects, odd numbers, broken lines, arbitrary bytes."""

from __future__ import annotations

import json
import math
import sys

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mosaic_services.telemetry.columns import LOG_LINE_BYTES, read_journal, read_log
from mosaic_services.telemetry.store import NUMBER_BITS, Store
from mosaic_services.telemetry.summary import Summary


def journal_of(*lines: object):
    texts = [each if isinstance(each, bytes) else json.dumps(each).encode() for each in lines]
    return read_journal(b"".join(text + b"\n" for text in texts))


def test_steps_become_columns_and_no_events():
    journal = journal_of(
        {"event": "step", "step": 1, "reward": 0.5, "ts": 10.0},
        {"event": "step", "step": 2, "reward": None, "ts": 11},
    )
    assert journal.kinds == ["step", "step"]
    assert journal.steps == [1, 2]
    assert journal.values == [0.5, None]
    assert journal.times == [10.0, 11]
    assert journal.events == []
    assert journal.top_step == 2
    assert journal.lines[0] == '{"event": "step", "step": 1, "reward": 0.5, "ts": 10.0}'


@pytest.mark.parametrize(
    ("line", "kind", "ts", "step", "value"),
    [
        ({"type": "step", "step_index": 7, "reward": 1, "timestamp": 5.0}, "step", 5.0, 7, 1),
        ({"type": "episode", "episode_index": 3, "total_reward": 9.5, "time": 6}, "episode", 6, 3, 9.5),
        ({"event": "step", "payload": {"reward": 2.5}, "step": 3, "ts": 1.0}, "step", 1.0, 3, 2.5),
        ({"event": "step", "payload": {"step_index": 4, "reward": 2.0}, "ts": 1.0}, "step", 1.0, 4, 2.0),
        (
            {"event": "heartbeat", "payload": {}, "timestamp": "1970-01-01T00:00:09Z"},
            "heartbeat",
            9.0,
            None,
            None,
        ),
        ({"type": "step", "data": {"step": 5, "reward": "-Infinity"}}, "step", None, 5, -math.inf),
        ({"event": "step", "step": 8, "timestamp": "1970-01-01T00:00:02"}, "step", 2.0, 8, None),
        ({"type": "episode", "step_index": 8, "total_reward": 1, "time": "1970-01-01T00:00:02"}, "episode", 2.0, 8, 1),
    ],
)
def test_older_dialect_is_stored_under_present_names(line, kind, ts, step, value):
    journal = journal_of(line)
    found = (journal.kinds[0], journal.times[0], journal.steps[0], journal.values[0])
    assert found == (kind, ts, step, value)
    assert journal.lines[0] == json.dumps(line)


@pytest.mark.parametrize("older", [{"agent_id": "a"}, {"payload": {"agent_id": "a"}}, {"agent": None, "agent_id": "a"}])
def test_complete_step_with_an_older_name_of_its_agent_keeps_it_in_any_batch(older):
    line = {"event": "step", "step": 1, "ts": 1.0, "reward": 0.5, **older}
    assert journal_of(line).agents == [(0, "a")]
    assert journal_of(line, {"type": "step", "step_index": 2}).agents == [(0, "a")]


def test_one_old_line_does_not_change_how_its_neighbours_are_read():
    new = {"event": "step", "step": 1, "reward": 0.5, "ts": 1.0}
    journal = journal_of(new, {"type": "step", "step_index": 2, "reward": 1.5}, new)
    assert journal.kinds == ["step"] * 3
    assert journal.steps == [1, 2, 1]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"", "empty line"),
        (b"Traceback (most recent call last):", "not JSON"),
        (b"\xff\xfe", "not UTF-8"),
        (b"[1, 2]", "not an object but list"),
        (b"5", "not an object but int"),
        (b'{"step": 5}', "names no event"),
        (b'{"event": 5}', "names no event"),
        (b"[" * 5000, "nested too deeply"),
        (b'{"event": "step", "step": 1', "not JSON"),
        (b'{"event":"malformed","reason":"line too long","bytes":2000000,"head":"x"}', "line too long"),
    ],
)
def test_broken_line_becomes_malformed_with_its_bytes_and_a_reason(line, reason):
    good = {"event": "step", "step": 3, "ts": 1.0}
    journal = journal_of(good, line, good)
    assert journal.kinds == ["step", "malformed", "step"]
    assert journal.malformed[0][0] == 1
    assert reason in journal.malformed[0][1]
    kept = journal.lines[1]
    assert (kept.encode() if isinstance(kept, str) else kept) == line
    assert journal.top_step == 3


def test_lines_that_are_json_only_when_joined_are_malformed():
    # Three lines that are no JSON, but would be three objects if joined by commas.
    journal = journal_of(b'{"event":"a","x":[{}', b"{}]}", b'{"event":"b"},{"event":"c"}')
    assert journal.kinds == ["malformed"] * 3


def test_nan_and_infinity_are_accepted_as_text_and_bare():
    journal = journal_of(
        {"event": "step", "step": 1, "reward": "NaN", "ts": 1.0},
        b'{"event": "step", "step": 2, "reward": Infinity, "ts": 1.0}',
        b'{"event": "scalars", "step": 2, "values": {"loss": NaN, "lr": 0.1, "name": "text"}, "ts": 1.0}',
    )
    assert math.isnan(journal.values[0])
    assert journal.values[1] == math.inf
    assert {point.metric: point.value for point in journal.points if point.metric != "loss"} == {
        "lr": 0.1,
        "name": None,
    }


@pytest.mark.parametrize("step", ["abc", 2**63, 2**200, 1e300, math.inf, {}, [1], True, None])
def test_step_of_a_wrong_type_is_no_step(step):
    journal = journal_of({"event": "step", "step": step, "ts": 1.0}, {"event": "step", "step": 4, "ts": 1.0})
    assert journal.steps == [None, 4]
    assert journal.top_step == 4


def test_episode_without_a_step_takes_the_one_before_it():
    journal = journal_of(
        {"event": "episode", "episode": 9, "return": 1.0},
        {"event": "step", "step": 70},
        {"event": "episode", "episode": 10, "return": 2.0, "length": 5},
        {"event": "episode", "episode": 11, "return": 3.0, "step": 90},
        {"event": "episode", "episode": 12, "return": 4.0},
    )
    rows = [(row.step, row.value, row.length) for row in journal.episodes]
    assert rows == [(9, 1.0, None), (70, 2.0, 5), (90, 3.0, None), (90, 4.0, None)]


def test_log_lines_are_never_parsed_and_cut_when_long():
    assert read_log(b'{"a":1}\n\xff\n' + b"x" * (LOG_LINE_BYTES + 5) + b"\n") == [
        '{"a":1}',
        b"\xff",
        "x" * LOG_LINE_BYTES,
    ]


@pytest.mark.parametrize(
    "name", ["reason", "task", "env_id", "path", "event", "type", "values", "step", "ts", "return"]
)
@pytest.mark.parametrize("kind", ["malformed", "run_started", "checkpoint_saved", "episode", "scalars", "step"])
def test_value_nested_as_deep_as_can_be_parsed_is_harmless(kind, name):
    line = b'{"event":"%b","%b":%b}' % (kind.encode(), name.encode(), b"[" * 1000 + b"]" * 1000)
    journal = journal_of(line, {"event": "step", "step": 3, "ts": 1.0})
    summary = Summary()
    summary.add(journal)
    has_points = kind in {"episode", "scalars"} and name != "event"
    assert journal.steps == [0 if has_points else None, 3]
    assert summary.message("run", 1).events == 2
    assert Summary.load(summary.dump()).task == summary.task
    assert journal.malformed == ([] if summary.malformed == 0 else [(0, journal.malformed[0][1])])


def test_text_of_a_value_that_is_none_is_the_name_of_its_type():
    journal = journal_of(
        {"event": "malformed", "reason": {"a": [1]}},
        {"event": "malformed", "reason": 1.5},
        {"event": "malformed", "reason": None},
        {"event": "malformed", "reason": "x" * 5000},
    )
    assert [reason for _, reason in journal.malformed] == ["dict", "1.5", "no reason given", "x" * 500]


# ── arbitrary input ─────────────────────────────────────────────────────────────────────────────────

numbers = st.one_of(
    st.integers(),
    st.floats(),
    st.booleans(),
    st.none(),
    st.sampled_from([2**63, -(2**63) - 1, 2**64, 10**400, "NaN", "x"]),
)
present = ["event", "step", "ts", "reward", "return", "values", "episode", "length", "task", "path", "reason"]
more = ["env_id", "total_steps", "total_episodes", "level", "message", "seed", "agent", "info", "worker", "run_id"]
past = ["type", "step_index", "timestamp", "time", "total_reward", "payload", "data", "episode_index"]
names = st.sampled_from([*present, *more, *past])
known_kinds = ["step", "episode", "scalars", "heartbeat", "run_started", "checkpoint_saved", "malformed", "log"]
kinds = st.sampled_from([*known_kinds, "run_failed", "\ud800", ""])
trees = st.recursive(
    st.one_of(numbers, st.text(), kinds, st.just("\ud800")),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.one_of(names, st.text()), inner, max_size=5)
    ),
    max_leaves=8,
)
objects = st.dictionaries(names, trees).flatmap(
    lambda fields: st.one_of(st.just(fields), kinds.map(lambda kind: {"event": kind, **fields}))
)
json_lines = st.one_of(objects, trees).map(lambda tree: json.dumps(tree).encode())
# As deep as orjson reads, and deeper than `str` or `json` can write.
deep = st.builds(
    lambda depth, around, core: around[0] * depth + core + around[1] * depth,
    st.sampled_from([3, 300, 900, 1000, 1020, 1500]),
    st.sampled_from([("[", "]"), ('{"a":', "}"), ('[{"event":', "}]"), ('{"values":[', "]}")]),
    st.sampled_from(["1", '"x"', "null", "NaN"]),
)
deep_fields = st.builds(lambda name, value: f'"{name}":{value}', names, deep)
shown_fields = [
    ("malformed", "reason"),
    ("run_started", "task"),
    ("run_started", "env_id"),
    ("checkpoint_saved", "path"),
]
deep_lines = st.builds(
    lambda kind, name, value, fields: (
        "{" + ",".join([f'"event":{json.dumps(kind)}', f'"{name}":{value}', *fields]) + "}"
    ).encode(),
    *(kinds, names, deep, st.lists(deep_fields, max_size=2)),
) | st.builds(  # fields that are shown to people, drawn more often
    lambda pair, value: f'{{"event":"{pair[0]}","{pair[1]}":{value}}}'.encode(), st.sampled_from(shown_fields), deep
)
byte_lines = st.binary(max_size=60).map(lambda data: data.replace(b"\n", b" "))


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    store = Store(tmp_path_factory.mktemp("store") / "telemetry.db")
    store.open()
    yield store
    store.close()


@pytest.mark.slow
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.one_of(json_lines, deep_lines, byte_lines), max_size=8))
def test_any_bytes_are_stored_as_they_are_and_nothing_raises(store, lines):
    summary = Summary()
    usual = sys.getrecursionlimit()
    sys.setrecursionlimit(1000)  # as in a service; hypothesis allows more
    store.begin()
    try:
        journal = read_journal(b"".join(line + b"\n" for line in lines))
        summary.add(journal)
        store.add_journal(1, 0, journal)
        rows = store._db.execute("SELECT id, line FROM events ORDER BY id").fetchall()
        assert [(number & (1 << NUMBER_BITS) - 1) for number, _ in rows] == list(range(len(lines)))
        assert [line.encode() if isinstance(line, str) else line for _, line in rows] == lines
        reasons = store._db.execute("SELECT count(*) FROM malformed").fetchone()[0]
        assert reasons == summary.malformed
    finally:
        store.rollback()
        sys.setrecursionlimit(usual)
    again = Summary.load(summary.dump())
    assert again.dump() == summary.dump()
    summary.message("run", 1)
