"""The pyramid of a series: what it answers is what its points say, however they arrived."""

from __future__ import annotations

import json
import math
import random

import pytest

from mosaic_bus.commands import Curve, RunCurves, Series
from mosaic_services.telemetry.columns import read_journal
from mosaic_services.telemetry.queries import Queries
from mosaic_services.telemetry.store import Store
from mosaic_services.telemetry.streams import StreamKey


class Writing:
    """A store and its queries; lines are added in batches of the test's choice."""

    def __init__(self, path) -> None:
        self.path = path
        self.store = Store(path)
        self.store.open()
        self.queries = Queries(path)

    def add(self, lines: list[dict], *, attempt: int = 1) -> None:
        entry = self.store.find(StreamKey("run", attempt, "journal"), "host")
        first = entry.stream.number
        journal = read_journal(b"".join(json.dumps(each).encode() + b"\n" for each in lines))
        entry.stream.offer(first, len(lines), 0, repair=False, now=0.0)
        self.store.begin()
        self.store.add_journal(entry.id, first, journal)
        self.store.save(entry, 0.0)
        self.store.commit()

    def restart(self) -> None:
        self.store.close()
        self.store.open()

    def ask(self, metric: str = "reward", **choice) -> RunCurves:
        [found] = self.queries.series(Series(runs=["run"], metrics=[metric], **choice)).runs
        return found

    def curve(self, metric: str = "reward", **choice) -> Curve:
        return self.ask(metric, **choice).curves[0]

    def blocks(self) -> dict:
        with self.queries._read() as db:
            rows = db.execute(
                "SELECT metric, agent, level, block, n, valued, low, high, first_step, last_step, ts, total"
                " FROM blocks JOIN series ON series.id = blocks.series"
            ).fetchall()
        return {row[:4]: row[4:] for row in rows}


@pytest.fixture
def writing(tmp_path):
    writing = Writing(tmp_path / "telemetry.db")
    yield writing
    writing.store.close()


def steps(first: int, last: int, value=float) -> list[dict]:
    return [{"event": "step", "step": each, "reward": value(each), "ts": 1.0 + each} for each in range(first, last)]


def mixed(count: int, seed: int) -> list[dict]:
    """Lines of all kinds, some with holes, with steps that sometimes go back."""
    chance = random.Random(seed)
    lines: list[dict] = []
    for number in range(count):
        step = max(0, number + chance.randint(-20, 20))
        value = chance.choice([chance.gauss(0, 10), "NaN", None, chance.randint(-5, 5)])
        kind = chance.random()
        if kind < 0.6:
            lines.append({"event": "step", "step": step, "reward": value, "ts": float(number)})
        elif kind < 0.8:
            lines.append({"event": "scalars", "step": step, "values": {"loss": value, "lr": 0.1}})
        elif kind < 0.9:
            lines.append({"event": "episode", "step": step, "episode": number, "return": value, "length": 5})
        else:
            lines.append({"event": "heartbeat"})
    return lines


def split(lines: list[dict], seed: int) -> list[list[dict]]:
    chance = random.Random(seed)
    batches = []
    while lines:
        at = chance.choice([1, 3, 40, 700, 5000])
        batches.append(lines[:at])
        lines = lines[at:]
    return batches


METRICS = ("reward", "loss", "lr", "episode_return", "episode_length")


@pytest.mark.parametrize("seed", range(4))
def test_batches_and_restarts_do_not_change_what_is_answered(tmp_path, seed):
    lines = mixed(9000, seed)
    (tmp_path / "one").mkdir()
    (tmp_path / "many").mkdir()
    one, many = Writing(tmp_path / "one" / "t.db"), Writing(tmp_path / "many" / "t.db")
    one.add(lines)
    for index, batch in enumerate(split(lines, seed)):
        many.add(batch)
        if index % 5 == seed:
            many.restart()
    blocks, others = one.blocks(), many.blocks()
    assert [key[:1] for key in blocks if key[2] == 12].count(("reward",)) == 2, "two blocks of 4,096 lines are closed"
    assert {key: row[:-1] for key, row in blocks.items()} == {key: row[:-1] for key, row in others.items()}
    assert all(math.isclose(row[-1], others[key][-1], abs_tol=1e-6) for key, row in blocks.items())
    for metric in METRICS:
        every = one.curve(metric, max_points=100_000)
        assert set(every.counts) == {1}
        for points in (7, 100, 1500):
            thin = one.curve(metric, max_points=points)
            assert len(thin.steps) <= points
            assert sum(thin.counts) == thin.points == every.points
            known = [value for value in every.values if value is not None]
            assert max(each for each in thin.highs if each is not None) == max(known)
            assert min(each for each in thin.lows if each is not None) == min(known)
            assert thin.model_dump(exclude={"values"}) == many.curve(metric, max_points=points).model_dump(
                exclude={"values"}
            )
        part = one.curve(metric, first_step=3000, last_step=3900, max_points=100_000)
        inside = [(step, value) for step, value in zip(every.steps, every.values, strict=True) if 3000 <= step <= 3900]
        assert list(zip(part.steps, part.values, strict=True)) == inside
        assert one.curve(metric, first_step=3000, last_step=3900, max_points=20).points == len(inside)
    one.store.close()
    many.store.close()


def test_full_buckets_stay_as_they_are_while_the_series_grows(writing):
    writing.add(steps(0, 5000))
    before = writing.curve(max_points=100)
    closed = writing.blocks()
    writing.add(steps(5000, 6300))
    after = writing.curve(max_points=100)
    assert len(before.steps) > 70
    full = before.model_dump(include={"steps", "values", "lows", "highs", "times", "counts"})
    assert {name: column[:-1] for name, column in full.items()} == {
        name: getattr(after, name)[: len(column) - 1] for name, column in full.items()
    }
    assert {key: row for key, row in writing.blocks().items() if key in closed} == closed


def test_no_spike_is_lost(writing):
    spikes = {chance: 1e6 + chance for chance in random.Random(0).sample(range(20_000), 50)}
    writing.add(steps(0, 20_000, lambda step: spikes.get(step, -1.0)))
    thin = writing.curve(max_points=500)
    found = {value for value in thin.highs if value > 0}
    assert found <= set(spikes.values())
    assert len(found) > 40, "two in one bucket show as one"
    step = max(spikes, key=spikes.get)
    near = writing.curve(first_step=step - 3, last_step=step + 3)
    assert (near.steps, near.highs[3]) == (list(range(step - 3, step + 4)), spikes[step])


def test_since_continues_exactly_where_an_answer_ended(writing):
    lines = mixed(6000, 1)
    seen: dict[str, list] = {metric: [] for metric in METRICS}
    position: list[int] = []
    for batch in split(lines, 3):
        writing.add(batch)
        answer = writing.queries.series(
            Series(runs=["run"], metrics=list(METRICS), since={"run": position}, max_points=100_000)
        ).runs[0]
        assert answer.since == (position or None)
        assert answer.cut is None
        for curve in answer.curves:
            assert curve.whole == (not position)
            seen[curve.metric] += zip(curve.steps, curve.values, strict=True)
        position = answer.position
    assert position == [6000]
    for metric in METRICS:
        every = writing.curve(metric, max_points=100_000)
        assert sorted(seen[metric], key=lambda point: point[0]) == list(zip(every.steps, every.values, strict=True))
    assert writing.ask(since={"run": position}).curves[0].points == 0


def test_new_attempt_cuts_what_it_replaces(writing):
    writing.add(steps(0, 100))
    first = writing.ask()
    assert first.position == [100]
    writing.add([{"event": "run_started"}], attempt=2)
    started = writing.ask(since={"run": first.position})
    assert (started.position, started.cut, started.curves[0].points) == ([100, 1], None, 0)
    writing.add([{"event": "checkpoint_loaded", "path": "a", "step": 60}, *steps(61, 70)], attempt=2)
    resumed = writing.ask(since={"run": started.position})
    assert (resumed.cut, resumed.curves[0].steps) == (60, list(range(61, 70)))
    writing.add(steps(70, 75), attempt=2)
    assert writing.ask(since={"run": resumed.position}).cut is None
    writing.add(steps(0, 5), attempt=3)
    again = writing.ask(since={"run": resumed.position})
    assert (again.cut, again.curves[0].steps) == (-1, [0, 1, 2, 3, 4])
    assert writing.curve(attempt=1).points == 100


def test_position_that_the_store_does_not_have_begins_again(writing):
    writing.add(steps(0, 10))
    for position in ([11], [5, 5]):
        answer = writing.ask(since={"run": position})
        assert (answer.since, answer.curves[0].whole, answer.curves[0].points) == (None, True, 10)


def test_team_that_only_its_agents_report_is_sent_whole(writing):
    lines = [
        {"event": "step", "step": step, "reward": value, "agent": agent, "ts": 1.0}
        for step in range(200)
        for agent, value in (("a", 1.0), ("b", 2.0))
    ]
    writing.add(lines[:333])
    first = writing.ask()
    writing.add(lines[333:])
    second = writing.ask(since={"run": first.position})
    assert (second.curves[0].whole, set(second.curves[0].values)) == (True, {3.0})
    assert writing.ask(agent="a", since={"run": first.position}).curves[0].steps == list(range(167, 200))
    assert sum(writing.curve(max_points=10).counts) == 200


def test_several_runs_and_metrics_in_one_question(writing):
    writing.add(mixed(100, 0))
    answer = writing.queries.series(Series(runs=["run", "nobody", "run"], metrics=["loss", "reward"]))
    assert [each.run for each in answer.runs] == ["run"]
    assert [each.metric for each in answer.runs[0].curves] == ["loss", "reward"]
