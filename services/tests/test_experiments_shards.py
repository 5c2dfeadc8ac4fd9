"""Cutting experiments into shards, what is missing of them, and the files that they leave."""

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mosaic_services.experiments.folder import ExperimentFolder
from mosaic_services.experiments.model import Experiment
from mosaic_services.experiments.plan import changes, edited, extend, make_plan
from mosaic_services.experiments.records import Records, read_event, record_line
from mosaic_services.experiments.shards import cut, default_shards, missing, shard_spec
from mosaic_services.experiments.steps import Steps

BASE = {
    "name": "trial",
    "environment": {"id": "CartPole-v1"},
    "operators": {"a": {"worker": "baseline"}, "b": {"worker": "cleanrl", "checkpoint": "run:train@best"}},
    "episodes": 10,
}


def plan(resolved=None, **fields):
    return make_plan(Experiment.model_validate({**BASE, **fields}), resolved or {})


def record(lineup: str, episode: int, value: float = 1.0, **more):
    fields = {"lineup": lineup, "episode": episode, "returns": {"agent": value}, "ended": "terminated", **more}
    found = read_event(record_line(fields))
    assert found is not None
    return found


def episodes(pieces) -> list[tuple[str, int]]:
    return [(each.lineup, number) for each in pieces for number in range(each.first, each.last)]


@given(
    st.dictionaries(st.sampled_from("abcdefghijkl"), st.integers(0, 60), max_size=12),
    st.dictionaries(st.sampled_from("abc"), st.frozensets(st.integers(0, 60)), max_size=3),
    st.integers(1, 9),
)
def test_shards_play_every_missing_episode_once(wanted, done, shards):
    left = {(name, number) for name, count in wanted.items() for number in range(count)}
    left -= {(name, number) for name, numbers in done.items() for number in numbers}
    made = cut(missing(wanted, done), shards)
    played = [each for shard in made for each in episodes(shard)]
    assert sorted(played) == sorted(left)
    assert len(made) <= shards
    assert all(made)
    if len(left) >= shards and wanted:
        assert len(made) == shards


def test_each_shard_plays_a_part_of_every_lineup_unless_there_are_many():
    few = cut(missing({"a": 100, "b": 100}, {}), 2)
    assert [sorted({each.lineup for each in shard}) for shard in few] == [["a", "b"], ["a", "b"]]
    many = cut(missing({f"l{number:02}": 10 for number in range(40)}, {}), 2)
    assert all(len({each.lineup for each in shard}) == 20 for shard in many)
    assert default_shards(10, 8) == 1
    assert default_shards(1000, 8) == 8


def test_spec_of_a_shard_has_only_its_own_operators_and_what_they_use():
    spec = shard_spec(plan(), cut(missing({"b": 3}, {}), 1)[0], "trial-shard1", ["!host:c"])
    assert (spec.worker, spec.group, spec.requires) == ("arena", "eval-trial", ("!host:c",))
    assert [(use.worker, use.profile) for use in spec.uses] == [("cleanrl", "default")]
    assert spec.config["operators"] == {
        "b": {"worker": "cleanrl", "profile": "default", "config": {}, "checkpoint": "run:train@best"}
    }
    assert spec.config["play"] == [{"lineup": "b", "episodes": [0, 3]}]


def test_added_operators_seeds_and_episodes_keep_the_records_and_other_changes_do_not():
    done = {"a": {0, 1, 2}}
    old = plan(seeds=[5, 6, 7])
    assert changes(old, plan(seeds=[5, 6, 7, 20], episodes=20), done) == []
    more = {**BASE["operators"], "c": {"worker": "baseline"}}
    assert changes(old, plan(seeds=[5, 6, 7], operators=more), done) == []
    for fields, named in (
        ({"seeds": [5, 6, 8]}, "seeds"),
        ({"seeds": 5}, "seeds"),
        ({"seeds": [5, 6, 7], "environment": {"id": "CartPole-v1", "max_steps": 9}}, "environment"),
        ({"seeds": [5, 6, 7], "failures": {"then": "noop"}}, "failures"),
        ({"seeds": [5, 6, 7], "operators": {"a": {"worker": "other"}}}, "operators.a"),
        ({"seeds": [5, 6, 7], "deadlines": {"action_s": 5}}, "deadlines.action_s"),
    ):
        assert [each.field for each in changes(old, plan(**fields), done)] == [named]
    assert changes(old, plan(seeds=[5, 6, 7], deadlines={"start_s": 5}), done) == []


CORRECTED = [
    {"environment": {"id": "CartPole-v1", "max_steps": 9}},
    {"failures": {"then": "noop"}},
    {"deadlines": {"action_s": 5}},
    {"seeds": 5},
    {"operators": {"a": {"worker": "other"}}},
    {"operators": BASE["operators"], "lineups": [{"name": "a", "*": "b"}]},
]


@pytest.mark.parametrize("fields", CORRECTED, ids=lambda fields: next(iter(fields)))
def test_mistake_is_corrected_as_long_as_nothing_was_played(fields):
    assert changes(plan(), plan(**fields), {}) == []
    assert changes(plan(), plan(**fields), {"a": {0}}) != []


def test_mistake_in_an_operator_is_corrected_while_it_has_no_records():
    old = plan({"b": {"checkpoint": "run:01A@5"}})
    done = {"a": {0, 1}, "b": set()}
    operators = {**BASE["operators"], "b": {"worker": "xuance", "checkpoint": "run:other@best"}}
    new = plan({"b": {"checkpoint": "run:01B@9"}}, operators=operators)
    assert changes(old, new, done) == []
    joined, notes = extend(old, new, done)
    assert (joined["operators"]["b"], notes) == (new["operators"]["b"], [])
    without, notes = extend(old, plan(operators={"a": BASE["operators"]["a"]}), done)
    assert ([each["name"] for each in without["lineups"]], list(without["operators"]), notes) == (["a"], ["a"], [])
    assert [each.field for each in changes(old, new, {"b": {0}})] == ["operators.b"]


def test_stopping_rule_that_has_looked_cannot_be_loosened():
    strict, loose = plan(until={"width": 5}), plan(until={"width": 50})
    assert changes(strict, loose, {"a": set(range(49))}) == []
    (problem,) = changes(strict, loose, {"a": set(range(50))})
    assert problem.field == "until"
    assert changes(strict, plan(until={"width": 5}), {"a": set(range(50))}) == []


def test_edited_fields_of_a_file_are_named_and_resolved_checkpoints_are_no_edit():
    played = plan({"b": {"checkpoint": "run:01A@5", "algorithm": "ppo"}})
    assert edited(played, Experiment.model_validate(BASE)) == []
    other = {**BASE, "episodes": 11, "operators": {**BASE["operators"], "c": {"worker": "random"}}}
    assert edited(played, Experiment.model_validate(other)) == ["operators", "episodes", "lineups"]


def test_operator_keeps_the_checkpoint_that_it_has_played_with():
    old = plan({"b": {"checkpoint": "run:01A@5"}})
    new = plan({"b": {"checkpoint": "run:01A@9"}}, operators={"b": BASE["operators"]["b"]})
    joined, notes = extend(old, new)
    assert joined["operators"]["b"]["checkpoint"] == "run:01A@5"
    assert len(notes) == 2
    assert [each["name"] for each in joined["lineups"]] == ["b", "a"]


def test_record_has_no_times_and_counts_once():
    event = {"event": "episode", "ts": 1.5, "return": 3, "timing": {"wall_s": 1}, "seed": 3}
    line = record_line({**event, "lineup": "a", "episode": 0, "returns": {"agent": 3}, "ended": "terminated"})
    found = read_event(line)
    assert found is not None
    assert not {"ts", "timing", "return", "event"} & set(found)
    records = Records()
    assert records.add(found, record_line(found)) == "new"
    assert records.add(found, record_line(found)) == "same"
    other = {**found, "returns": {"agent": 4}}
    assert records.add(other, record_line(other)) == "conflict"
    assert (len(records), records.mean_return("a")) == (1, 3.0)
    for nothing in (b"no JSON", b"[]", b'{"event":"episode","episode":1,"return":2}'):
        assert read_event(nothing) is None


def test_line_that_a_crash_cut_short_is_removed_and_the_file_is_sorted_at_the_end(tmp_path):
    folder = ExperimentFolder(tmp_path / "trial")
    lines = [record_line(record(lineup, episode)) for lineup, episode in (("b", 0), ("a", 10), ("a", 9))]
    folder.append(lines)
    with folder.episodes.open("ab") as file:
        file.write(lines[0][:20])
    assert len(folder.read_records(keep=False)) == 3
    assert folder.episodes.read_bytes() == b"".join(lines)
    folder.sort()
    assert folder.episodes.read_bytes() == b"".join([lines[2], lines[1], lines[0]])


def test_plan_keeps_the_order_of_the_players(tmp_path):
    folder = ExperimentFolder(tmp_path / "trial")
    folder.write_plan(plan(environment={"id": "mine_v0", "agents": ["white", "black"]}, lineups="pairs"))
    read = folder.read_plan()
    assert read is not None
    assert [list(each["agents"].items()) for each in read["lineups"]] == [
        [("white", "a"), ("black", "b")],
        [("white", "b"), ("black", "a")],
    ]


def test_steps_are_gathered_once_from_the_attempt_whose_record_counts(tmp_path):
    def attempt(name, played):
        folder = tmp_path / name
        folder.mkdir()
        kept = [{"lineup": lineup, "episode": episode, "action_hash": digest} for lineup, episode, digest in played]
        (folder / "episodes.jsonl").write_bytes(b"".join(orjson.dumps(each) + b"\n" for each in kept))
        moves = [{**each, "step": step, "from": name} for each in kept for step in range(3)]
        (folder / "steps.jsonl").write_bytes(b"".join(orjson.dumps(each) + b"\n" for each in moves) + b'{"line')
        return folder

    steps = Steps(tmp_path)
    hashes = {("a", 0): "x", ("a", 1): "y", ("b", 0): "z"}
    lost, first = attempt("lost", [("a", 0, "other")]), attempt("first", [("a", 0, "x"), ("a", 1, "y")])
    steps.gather([lost, first, tmp_path / "gone"], hashes)
    with steps.path.open("ab") as file:
        file.write(b"left behind by a crash")
    steps.gather([first, attempt("second", [("a", 1, "y"), ("b", 0, "z")])], hashes)
    kept = [orjson.loads(each) for each in steps.path.read_bytes().splitlines()]
    expected = [("a", 0, "first"), ("a", 1, "first"), ("b", 0, "second")]
    assert [(each["lineup"], each["episode"], each["from"]) for each in kept[::3]] == expected
    assert len(kept) == 9
    offset = steps.find("b", 0)
    assert offset is not None
    assert orjson.loads(steps.path.read_bytes()[offset:].splitlines()[0]) == kept[6]
    assert steps.find("b", 1) is None
