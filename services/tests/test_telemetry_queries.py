"""Queries: thinning, paging, attempts, agents; readers do not block the writer."""

from __future__ import annotations

import json
import math
import sqlite3

import pytest

from mosaic_bus.commands import Checkpoints, Curve, Episodes, Events, Logs, Metrics, Scalars, Series, Streams, Summaries
from mosaic_bus.errors import CommandRefusedError
from mosaic_services.telemetry import queries as module
from mosaic_services.telemetry.columns import read_journal, read_log
from mosaic_services.telemetry.queries import Queries
from mosaic_services.telemetry.store import Store, open_for_writing
from mosaic_services.telemetry.streams import StreamKey


@pytest.fixture
def path(tmp_path):
    return tmp_path / "telemetry.db"


@pytest.fixture
def store(path):
    store = Store(path)
    store.open()
    yield store
    store.close()


@pytest.fixture
def queries(store, path):
    return Queries(path)


def save(store: Store, lines: list[object], *, run: str = "run", attempt: int = 1, final: bool = False) -> None:
    entry = store.find(StreamKey(run, attempt, "journal"), "host")
    journal = read_journal(b"".join(json.dumps(each).encode() + b"\n" for each in lines))
    entry.summary.add(journal)
    entry.stream.offer(0, len(lines), 0, repair=False, now=0.0)
    entry.stream.final = final
    store.begin()
    store.add_journal(entry.id, 0, journal)
    store.save(entry, float(attempt))
    store.commit()


def save_log(store: Store, lines: list[bytes], *, attempt: int = 1) -> None:
    entry = store.find(StreamKey("run", attempt, "log"), "host")
    entry.stream.offer(0, len(lines), 0, repair=False, now=0.0)
    store.begin()
    store.add_log(entry.id, 0, read_log(b"".join(line + b"\n" for line in lines)))
    store.save(entry, 1.0)
    store.commit()


def episodes(first: int, count: int) -> list[object]:
    return [
        {"event": "episode", "episode": each, "return": float(each), "length": 10, "step": each * 10, "ts": float(each)}
        for each in range(first, first + count)
    ]


def curve(queries: Queries, metric: str, **choice: object) -> Curve:
    return queries.series(Series(runs=["run"], metrics=[metric], **choice)).only


def test_short_series_is_given_as_it_is(store, queries):
    save(store, episodes(0, 5))
    series = curve(queries, "episode_return")
    assert series.steps == [0, 10, 20, 30, 40]
    assert series.values == series.lows == series.highs == [0, 1, 2, 3, 4]
    assert (series.times, series.points) == ([0, 1, 2, 3, 4], 5)


def test_long_series_is_thinned_into_buckets_of_lines(store, queries):
    save(store, episodes(0, 10_000))
    series = curve(queries, "episode_return", max_points=100)
    assert series.points == sum(series.counts) == 10_000
    assert len(series.steps) == 79
    assert series.counts[:-1] == [128] * 78
    assert (series.lows[0], series.highs[0], series.values[0]) == (0, 127, 63.5)
    assert (series.lows[-1], series.highs[-1]) == (9984, 9999)
    assert series.steps == sorted(series.steps)
    part = curve(queries, "episode_return", first_step=500, last_step=590)
    assert part.values == [50, 51, 52, 53, 54, 55, 56, 57, 58, 59]


def test_reward_is_a_series_of_the_steps(store, queries):
    save(
        store, [{"event": "step", "step": each, "reward": None if each % 2 else each, "ts": 1.0} for each in range(10)]
    )
    assert curve(queries, "reward").steps == [0, 2, 4, 6, 8]
    assert queries.metrics(Metrics(run="run")).metrics == {"reward": 5}


def test_value_that_is_not_a_number_is_a_point_without_value(store, queries):
    save(
        store,
        [{"event": "scalars", "step": each, "values": {"loss": value}} for each, value in enumerate([1, "NaN", 3])],
    )
    assert curve(queries, "loss").values == [1, None, 3]


def test_series_of_an_unknown_metric_is_empty(store, queries):
    save(store, episodes(0, 1))
    assert curve(queries, "nothing").points == 0


def resumes_from(step: int) -> list[object]:
    return [{"event": "run_started"}, {"event": "checkpoint_loaded", "path": "a", "step": step}]


def test_attempts_are_joined_or_told_apart(store, queries):
    save(store, episodes(0, 3), attempt=1)
    save(store, resumes_from(20) + episodes(3, 2), attempt=2)
    assert curve(queries, "episode_return").values == [0, 1, 2, 3, 4]
    assert curve(queries, "episode_return", attempt=2).values == [3, 4]
    assert [row["return"] for row in queries.episodes(Episodes(run="run", attempt=1)).rows] == [0, 1, 2]
    assert queries.episodes(Episodes(run="run", attempt=3)).rows == []
    assert queries.events(Events(run="run", attempt=3)).rows == []


def test_steps_that_a_later_attempt_played_again_count_once(store, queries):
    steps = [{"event": "step", "step": each, "reward": 0.5, "ts": 1.0} for each in range(60)]
    save(store, episodes(0, 6) + steps, attempt=1)  # killed at step 50
    # Steps count from 0, so the checkpoint's step is the first one that is played again.
    again = [{**each, "return": 100.0 + each["episode"]} for each in episodes(3, 3)]
    save(store, resumes_from(21) + [{**each, "reward": 1.5} for each in steps[21:]] + again, attempt=2)
    save(store, [*resumes_from(40), {"event": "run_failed", "category": "infrastructure"}], attempt=3)
    whole = [0, 1, 2, 103, 104, 105]
    assert curve(queries, "episode_return").values == whole
    assert [row["return"] for row in queries.episodes(Episodes(run="run")).rows] == whole
    assert curve(queries, "reward").values == [0.5] * 21 + [1.5] * 39
    assert queries.metrics(Metrics(run="run")).metrics == {"reward": 60, "episode_length": 6, "episode_return": 6}
    save(store, [*resumes_from(10), {**again[0], "step": 15}], attempt=4)
    assert curve(queries, "episode_return").values == [0, 1, 103]
    assert curve(queries, "episode_return", attempt=1).values == [0, 1, 2, 3, 4, 5]


def test_attempt_from_the_beginning_replaces_the_earlier_ones(store, queries):
    save(store, episodes(0, 6), attempt=1)
    save(store, [{"event": "run_started"}], attempt=2)
    assert len(queries.episodes(Episodes(run="run")).rows) == 6, "it has reported nothing yet"
    save(store, [{"event": "run_started"}, *episodes(0, 2)], attempt=3)
    assert [(row["attempt"], row["return"]) for row in queries.episodes(Episodes(run="run")).rows] == [(3, 0), (3, 1)]
    assert len(queries.episodes(Episodes(run="run", attempt=1)).rows) == 6


def without_steps(first: int, count: int) -> list[object]:
    return [
        {"event": "episode", "episode": each, "return": float(each), "ts": 1.0} for each in range(first, first + count)
    ]


def test_episodes_without_steps_are_joined_as_well(store, queries):
    save(store, without_steps(1, 10), attempt=1)
    save(store, without_steps(1, 4), attempt=2)
    assert [(row["attempt"], row["episode"]) for row in queries.episodes(Episodes(run="run")).rows] == [
        (2, each) for each in (1, 2, 3, 4)
    ]
    assert queries.metrics(Metrics(run="run")).metrics == {"episode_return": 4}


def test_episodes_without_steps_after_a_checkpoint_are_replaced(store, queries):
    def course(first: int, last: int) -> list[object]:
        steps = [{"event": "step", "step": each * 10, "reward": 1.0, "ts": 1.0} for each in range(first, last)]
        return [
            line
            for step, episode in zip(steps, without_steps(first, last - first), strict=True)
            for line in (step, episode)
        ]

    save(store, course(1, 5), attempt=1)
    save(store, resumes_from(20) + course(3, 5), attempt=2)
    found = [(row["attempt"], row["episode"], row["step"]) for row in queries.episodes(Episodes(run="run")).rows]
    assert found == [(1, 1, 10), (1, 2, 20), (2, 3, 30), (2, 4, 40)]
    assert curve(queries, "episode_return").values == [1, 2, 3, 4]


@pytest.mark.parametrize("attempt", [None, 2])
def test_episodes_are_paged_to_the_end(store, queries, attempt):
    save(store, episodes(0, 7), attempt=1)
    save(store, resumes_from(60) + episodes(7, 6), attempt=2)
    seen, start = [], 0
    while start is not None:
        page = queries.episodes(Episodes(run="run", attempt=attempt, start=start, limit=4))
        assert len(page.rows) <= 4
        seen += [row["episode"] for row in page.rows]
        start = page.next
    assert seen == list(range(13 if attempt is None else 6)) or seen == list(range(7, 13))


def test_events_are_paged_and_chosen_by_kind(store, queries):
    lines = [{"event": "step", "step": each, "ts": 1.0} for each in range(10)]
    lines[3] = {"event": "heartbeat", "ts": 2.0}
    lines[7] = "broken"
    save(store, lines)
    page = queries.events(Events(run="run", limit=4))
    assert [row["number"] for row in page.rows] == [0, 1, 2, 3]
    assert page.next == 4
    page = queries.events(Events(run="run", start=4, limit=6))
    assert (len(page.rows), page.next) == (6, None)
    assert page.rows[3] == {
        "number": 7,
        "event": "malformed",
        "ts": None,
        "step": None,
        "value": None,
        "line": '"broken"',
        "reason": "not an object but str",
    }
    assert [row["number"] for row in queries.events(Events(run="run", kinds=["heartbeat", "malformed"])).rows] == [3, 7]
    assert len(queries.events(Events(run="run", kinds=["heartbeat", "step"])).rows) == 9


def test_page_ends_where_the_reply_would_be_too_large(store, queries, monkeypatch):
    monkeypatch.setattr(module, "PAGE_BYTES", 10_000)
    save(store, [{"event": "log", "level": "info", "message": "x" * 4000, "ts": 1.0} for _ in range(5)])
    page = queries.events(Events(run="run"))
    assert (len(page.rows), page.next) == (2, 2)
    monkeypatch.setattr(module, "PAGE_BYTES", 10)  # a page has at least one row
    assert len(queries.events(Events(run="run")).rows) == 1


@pytest.mark.parametrize("line", ["汉".encode() * 1000, b"\xff" * 750])  # three bytes each in UTF-8; four when escaped
def test_size_of_a_page_is_that_of_its_encoding(store, queries, monkeypatch, line):
    monkeypatch.setattr(module, "PAGE_BYTES", 7000)
    save_log(store, [line] * 5)
    assert len(queries.logs(Logs(run="run")).rows) == 2


# ── agents ──────────────────────────────────────────────────────────────────────────────────────────


def reports_apart(first: int, last: int) -> list[object]:
    """Two agents: each reports its own steps, scalars and episodes."""
    lines: list[object] = []
    for number in range(first, last):
        for agent, value in (("a", 1.0), ("b", 10.0)):
            common = {"agent": agent, "ts": 1.0}
            lines += [
                {"event": "step", "step": number, "reward": value, **common},
                {"event": "scalars", "step": number, "values": {"loss": value}, **common},
                {"event": "episode", "episode": number, "return": value * number, "length": value, "step": number}
                | common,
            ]
    return lines


def values_of(queries: Queries, metric: str, agent: str | None = None) -> list[float | None]:
    return curve(queries, metric, agent=agent).values


def test_series_of_an_agent_and_of_the_team(store, queries):
    save(store, reports_apart(1, 4), attempt=1)
    save(store, resumes_from(2) + reports_apart(3, 5), attempt=2)
    assert values_of(queries, "episode_return", "a") == [1, 2, 3, 4]
    assert values_of(queries, "episode_return") == [11, 22, 33, 44]
    assert values_of(queries, "episode_length") == [10] * 4
    assert (values_of(queries, "reward", "b"), values_of(queries, "reward")) == ([10] * 4, [11] * 4)
    assert (values_of(queries, "loss", "b"), values_of(queries, "loss")) == ([10] * 4, [5.5] * 4)
    assert values_of(queries, "loss", "nobody") == []
    found = queries.metrics(Metrics(run="run"))
    assert found.agents == ["a", "b"]
    assert found.metrics == {"reward": 4, "episode_return": 4, "episode_length": 4, "loss": 4}


def test_episodes_of_an_agent_and_of_the_team_are_paged(store, queries):
    save(store, reports_apart(1, 4), attempt=1)
    save(store, resumes_from(2) + reports_apart(3, 5), attempt=2)
    for agent, expected in ((None, [11, 22, 33, 44]), ("b", [10, 20, 30, 40])):
        seen, start = [], 0
        while start is not None:
            page = queries.episodes(Episodes(run="run", agent=agent, start=start, limit=3))
            seen += [(row["return"], row["agent"], row["attempt"]) for row in page.rows]
            start = page.next
        assert seen == [(value, agent, 1 if place < 2 else 2) for place, value in enumerate(expected)]


def test_events_without_an_agent_are_those_of_the_team(store, queries):
    whole = [
        {"event": "step", "step": 1, "reward": 7.0, "ts": 1.0},
        {"event": "scalars", "step": 1, "values": {"loss": 0.5}},
        {"event": "episode", "episode": 1, "return": 3.0, "step": 1, "returns": {"a": 1.0, "c": 2.0}},
        {"event": "episode", "episode": 2, "step": 2, "returns": {"a": 1.0, "c": 4.0}},
    ]
    save(store, whole + reports_apart(3, 5))
    assert values_of(queries, "episode_return") == [3, 5]
    assert (values_of(queries, "episode_return", "a"), values_of(queries, "episode_return", "c")) == (
        [1, 1, 3, 4],
        [2, 4],
    )
    assert (values_of(queries, "reward"), values_of(queries, "loss")) == ([7], [0.5])
    assert [row["return"] for row in queries.episodes(Episodes(run="run")).rows] == [3, 5]
    assert queries.metrics(Metrics(run="run")).agents == ["a", "b", "c"]


def test_points_of_a_scalar_are_paged_and_none_is_left_out(store, queries):
    lines = [{"event": "scalars", "step": each, "values": {"loss": each}, "ts": 1.0} for each in range(10)]
    save(store, [*lines, *reports_apart(20, 22)], attempt=1)
    save(store, resumes_from(4) + lines[5:], attempt=2)
    seen, start = [], 0
    while start is not None:
        page = queries.scalars(Scalars(run="run", metric="loss", start=start, limit=3))
        seen += [(row["attempt"], row["step"], row["value"]) for row in page.rows]
        start = page.next
    assert seen == [(1 if each < 5 else 2, each, each) for each in range(10)]
    rows = queries.scalars(Scalars(run="run", metric="loss", agent="b", attempt=1)).rows
    assert [row["step"] for row in rows] == [20, 21]


def test_scalar_with_the_name_of_a_series_of_episodes_is_one_if_there_are_none(store, queries):
    save(store, [{"event": "scalars", "step": 1, "values": {"episode_return": 5}}])
    assert values_of(queries, "episode_return") == [5]


def test_checkpoints_of_all_attempts_in_the_order_in_which_they_were_saved(store, queries):
    saved = {"event": "checkpoint_saved", "ts": 1.0}
    lines = [{**saved, "path": f"{step}.pt", "step": step} for step in (10, 20)]
    save(store, [*lines, {**saved, "path": 5}, *episodes(0, 3)], attempt=1)
    best = {**saved, "path": "best.pt", "step": 15, "best": True, "score": "NaN"}
    old = {"type": "checkpoint_saved", "step_index": 18, "payload": {"path": "/abs/18.pt", "score": 2}}
    save(store, [*resumes_from(10), best, old], attempt=2)
    found = queries.checkpoints(Checkpoints(run="run")).checkpoints
    assert [(each.attempt, each.path, each.step, each.best) for each in found] == [
        (1, "10.pt", 10, False),
        (1, "20.pt", 20, False),
        (2, "best.pt", 15, True),
        (2, "/abs/18.pt", 18, False),
    ]
    assert (found[0].host, found[0].ts, found[0].score, found[3].score) == ("host", 1.0, None, 2)
    assert math.isnan(found[2].score)
    newest = queries.checkpoints(Checkpoints(run="run", limit=1)).checkpoints
    assert [each.path for each in newest] == ["/abs/18.pt"]


def test_logs_by_page_and_by_tail(store, queries):
    save_log(store, [b"old"], attempt=1)
    save_log(store, [b"a", b"b", b"\xff", b"d"], attempt=2)
    assert [row["line"] for row in queries.logs(Logs(run="run")).rows] == ["a", "b", "\\xff", "d"]
    assert [row["line"] for row in queries.logs(Logs(run="run", attempt=1)).rows] == ["old"]
    assert queries.logs(Logs(run="run", tail=2)).rows == [{"number": 2, "line": "\\xff"}, {"number": 3, "line": "d"}]
    page = queries.logs(Logs(run="run", start=1, limit=2))
    assert ([row["number"] for row in page.rows], page.next) == ([1, 2], 3)


def test_run_without_a_log_has_an_empty_one(store, queries):
    save(store, episodes(0, 1))
    assert queries.logs(Logs(run="run")).rows == []


@pytest.mark.parametrize(
    "ask",
    [
        lambda queries: queries.metrics(Metrics(run="x")),
        lambda queries: queries.series(Series(runs=["x"], metrics=["m"])),
        lambda queries: queries.episodes(Episodes(run="x")),
        lambda queries: queries.events(Events(run="x")),
        lambda queries: queries.logs(Logs(run="x")),
        lambda queries: queries.checkpoints(Checkpoints(run="x")),
        lambda queries: queries.streams(Streams(run="x"), {}),
    ],
)
def test_unknown_run_is_refused(queries, ask):
    with pytest.raises(CommandRefusedError, match="nothing is stored of run 'x'") as refusal:
        ask(queries)
    assert refusal.value.code == "unknown_run"


def test_nested_field_of_an_episode_is_not_repeated_in_its_row(store, queries):
    nested: object = 1
    for _ in range(500):
        nested = [nested]
    save(store, [{"event": "episode", "episode": 1, "return": 2.0, "agent": nested, "seed": 7}])
    [row] = queries.episodes(Episodes(run="run")).rows
    assert (row["agent"], row["seed"], row["return"]) == (None, 7, 2.0)


@pytest.mark.parametrize("content", [None, b"", b"this is no database, whatever its name says"])
def test_store_that_cannot_be_read_is_a_clear_refusal(tmp_path, content):
    path = tmp_path / "none.db"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(CommandRefusedError, match="cannot be read now") as refusal:
        Queries(path).summaries(Summaries(), {})
    assert refusal.value.code == "store_unavailable"


def test_open_store_of_this_version_writes_nothing(tmp_path):
    path = tmp_path / "telemetry.db"
    open_for_writing(path).close()
    before = path.stat().st_mtime_ns, path.read_bytes()
    db = open_for_writing(path)
    wal = path.with_name("telemetry.db-wal")
    assert not wal.exists() or wal.stat().st_size == 0
    db.close()
    assert (path.stat().st_mtime_ns, path.read_bytes()) == before


def test_streams_of_a_run_or_all_that_are_open(store, queries):
    save(store, episodes(0, 3), run="done", final=True)
    save(store, episodes(0, 2), run="open")
    assert [each.run for each in queries.streams(Streams(), {}).streams] == ["open"]
    [found] = queries.streams(Streams(run="open"), {StreamKey("open", 1, "journal"): 5}).streams
    assert (found.stored, found.missing, found.final, found.host) == (2, 5, False, "host")
    assert queries.streams(Streams(run="done"), {}).streams[0].final


def test_summaries_newest_first_and_only_of_known_runs(store, queries):
    save(store, episodes(0, 1), run="b", attempt=2)
    save(store, episodes(0, 1), run="a", attempt=1)
    assert [each.run for each in queries.summaries(Summaries(), {}).summaries] == ["b", "a"]
    assert [each.run for each in queries.summaries(Summaries(runs=["a", "zzz"]), {}).summaries] == ["a"]
    assert len(queries.summaries(Summaries(limit=1), {}).summaries) == 1


def test_open_read_does_not_block_the_writer(store, queries):
    save(store, episodes(0, 10))
    with queries._read() as db:
        cursor = db.execute("SELECT * FROM events")
        cursor.fetchone()
        save(store, episodes(0, 10), run="other")  # a blocked writer would raise "database is locked"
        assert len(cursor.fetchall()) == 9


def test_query_that_takes_too_long_ends_and_lets_go_of_its_thread(store, queries, path):
    """Nobody waits for it any more, and a few of them would otherwise hold all threads of the service."""
    save(store, [{"event": "step", "step": number, "reward": 1.0} for number in range(20_000)])
    all_of_them = Events(run="run", kinds=["step"], limit=100_000)
    with pytest.raises(CommandRefusedError, match="takes longer than 0 s: ask for fewer") as refused:
        Queries(path, longest_s=0.0).events(all_of_them)
    assert refused.value.code == "too_large"
    assert len(queries.events(all_of_them).rows) == 20_000


def test_events_of_the_newest_attempt(store, queries):
    save(store, episodes(0, 3))
    save(store, episodes(0, 5), attempt=2)
    assert len(queries.events(Events(run="run")).rows) < len(queries.events(Events(run="run", attempt=None)).rows)
    assert queries.events(Events(run="run", attempt=None)) == queries.events(Events(run="run", attempt=2))


def test_reader_cannot_write(store, queries):
    with queries._read() as db, pytest.raises(sqlite3.OperationalError, match="readonly"):
        db.execute("DELETE FROM events")
