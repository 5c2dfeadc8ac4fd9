"""The report of an experiment: its numbers, its warnings, its folder, and bad input."""

from __future__ import annotations

import csv
import json
import re
from html.parser import HTMLParser
from typing import TYPE_CHECKING

import numpy as np
import pytest

from mosaic_services.experiments.model import Experiment
from mosaic_services.experiments.plan import make_plan
from mosaic_services.report import ReportError, Training, terminal_lines, write_report
from mosaic_services.report.analysis import analyse
from mosaic_services.report.source import read_experiment, read_records
from mosaic_services.report.tables import algorithm_table, matrix, pair_table
from mosaic_services.report.texts import latex, markdown

if TYPE_CHECKING:
    from pathlib import Path


def record(lineup: str, episode: int, returns: dict[str, float], **more) -> dict:
    made = {"lineup": lineup, "episode": episode, "env_seed": 1000 + episode, "returns": returns, "length": 10}
    return {**made, "ended": "terminated", "winners": None, "failures": [], "action_hash": "ab" * 32, **more}


def solo(scores: dict[str, np.ndarray], **more) -> tuple[dict, list[dict]]:
    """An experiment in which each operator plays alone."""
    lineups = [{"name": name, "agents": {"*": name}} for name in scores]
    records = [
        record(name, episode, {"agent": float(value)})
        for name, values in scores.items()
        for episode, value in enumerate(values)
    ]
    made = {"name": "pole", "environment": {"id": "CartPole-v1"}, "lineups": lineups, "episodes": len(records)}
    made["episodes"] = max(len(values) for values in scores.values())
    return {**made, "operators": {name: {"worker": "w"} for name in scores}, **more}, records


def save(folder: Path, experiment: dict, records: list[dict]) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "experiment.json").write_text(json.dumps(experiment))
    (folder / "episodes.jsonl").write_text("".join(json.dumps(each) + "\n" for each in records))
    return folder


@pytest.fixture
def scores():
    generator = np.random.default_rng(0)
    good = np.where(generator.random(100) < 0.1, 20.0, 500.0)
    return {"good": good, "random": 9 + generator.integers(0, 30, 100)}


class Links(HTMLParser):
    """Collects what a page refers to, and the places in it."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []
        self.places: set[str] = set()
        self.tags: set[str] = set()

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        for name, value in attrs:
            assert name != "style", "the content security policy allows none"
            if name in {"href", "src", "xlink:href"}:
                self.links.append(value)
            if name == "id":
                self.places.add(value)


def parse(page: Path) -> Links:
    links = Links()
    links.feed(page.read_text())
    return links


def test_terminal_shows_a_row_for_each_operator_and_who_is_better(scores):
    experiment, records = solo(scores, hosts=["a", "b"], shards=4, elapsed_s=67, command="mosaic eval pole.yaml")
    experiment["operators"]["good"]["training_run"] = "01JXAAAAAAAAAAAAAAAA4K7QXB"
    lines = terminal_lines(experiment, records, report="r/index.html", rerun="mosaic eval pole.yaml")
    assert lines[0] == "experiment pole   100 episodes x 2 operators   seeds 1000..1099   2 hosts, 4 shards   00:01:07"
    assert lines[1].split() == ["operator", "mean", "95", "%", "interval", "IQM", "median", "failures"]
    good, poor = lines[2].split(), lines[3].split()
    assert (good[0], poor[0]) == ("good@4K7QXB", "random")
    assert float(good[1]) == pytest.approx(scores["good"].mean(), abs=0.06)
    assert lines[4].startswith("good beats random with probability 0.9")
    assert lines[-1] == "report: r/index.html    rerun: mosaic eval pole.yaml"


def test_target_of_the_file_is_that_of_the_optimality_gap(scores):
    operators = {name: {"worker": "w"} for name in scores}
    fields = {"name": "pole", "environment": {"id": "CartPole-v1"}, "operators": operators, "target": 475}
    plan = make_plan(Experiment.model_validate(fields), {})
    found = analyse(plan, solo(scores)[1])
    assert found.rows[0].score.gap == pytest.approx(475 - np.minimum(scores["good"], 475).mean())
    assert analyse({**plan, "target": None}, solo(scores)[1]).target == 500


def test_seeds_far_apart_are_named_by_their_root(scores):
    """A list of all numbers between two random seeds would fill the memory."""
    experiment, records = solo(scores, seeds={"mode": "procedural", "root": 3})
    far = [{**each, "env_seed": each["episode"] * 40_000_000} for each in records]
    assert terminal_lines(experiment, far)[0].endswith("seeds from root 3")


def test_equal_operators_are_said_to_be_undecided(scores):
    experiment, records = solo({"one": scores["good"], "two": scores["good"]})
    assert any(line.startswith("one or two: undecided") for line in terminal_lines(experiment, records))


def test_algorithm_is_judged_over_training_seeds_and_not_from_one_checkpoint():
    generator = np.random.default_rng(1)
    scores = {f"ppo-{seed}": generator.normal(10 * seed, 1, 50) for seed in (1, 2, 3)} | {"dqn": np.ones(50)}
    experiment, records = solo(scores)
    for seed in (1, 2, 3):
        experiment["operators"][f"ppo-{seed}"] |= {
            "algorithm": "ppo",
            "training_seed": seed,
            "training_run": f"r{seed}",
        }
    experiment["operators"]["dqn"] |= {"algorithm": "dqn", "training_seed": 1, "training_run": "d"}
    found = analyse(experiment, records)
    ppo, dqn = (next(each for each in found.algorithms if each.name == name) for name in ("ppo", "dqn"))
    assert (ppo.score.seeds, dqn.score.seeds) == (3, 1)
    links = {row[0].text: row[0].link for row in algorithm_table(found).rows}
    assert links == {"ppo": ("ppo-3", 0), "dqn": ("dqn", 0)}  # the best of its members
    low, high = ppo.score.mean_nested
    checkpoint_low, checkpoint_high = found.rows[0].score.mean_interval
    assert high - low > 10 * (checkpoint_high - checkpoint_low)
    assert (dqn.score.mean_interval, dqn.score.mean_nested) == (None, None)
    assert any("One checkpoint only: dqn" in each for each in found.warnings)
    assert any("ppo: 3 training seeds" in each for each in found.warnings)
    experiment["operators"]["ppo-2"]["training_run"] = "r1"
    assert any("no independent seeds" in each for each in analyse(experiment, records).warnings)


def test_differences_are_paired_only_where_seeds_are_shared(scores):
    experiment, records = solo({"one": scores["good"], "two": scores["good"] - 1})
    found = analyse(experiment, records)
    (pair,) = found.pairs
    table = pair_table(found)
    assert [(cell.text, cell.link) for cell in table.rows[0][:2]] == [("one", ("one", 0)), ("two", ("two", 0))]
    assert (pair.difference.episodes, pair.difference.mean, pair.difference.better) == (100, 1.0, 1.0)
    other_seeds = [{**each, "env_seed": each["env_seed"] + (each["lineup"] == "two")} for each in records]
    assert analyse(experiment, other_seeds).pairs[0].difference is None


def test_games_have_standings_a_matrix_ratings_and_mixes():
    experiment, records = cyclic_games()
    found = analyse(experiment, records)
    assert found.contest.meetings["rock", "scissors"].points == 0.8
    assert (found.contest.meetings["rock", "scissors"].wins, found.contest.meetings["rock", "scissors"].games) == (
        32,
        40,
    )
    (rock, *_) = matrix(found).rows
    assert [cell.link for cell in rock] == [("rock-paper", 0), None, ("rock-paper", 0), ("rock-scissors", 0)]
    assert found.contest.cycles == [["rock", "paper", "scissors"]]
    assert found.contest.lottery == pytest.approx(dict.fromkeys(found.contest.operators, 1 / 3), abs=1e-6)
    assert found.contest.ratings.first_mover[0] == pytest.approx(0, abs=1)
    assert any("circle" in line for line in terminal_lines(experiment, records))
    assert {row.name: row.score.n for row in found.rows} == dict.fromkeys(("rock", "paper", "scissors"), 80)


def test_team_that_plays_together_is_scored_by_its_return_and_has_no_standings():
    lineups = {"all a": {"*": "a"}, "all b": {"*": "b"}, "mix": {"*": "a", "agent_1": "b"}}
    gains = {"all a": -3.0, "all b": -2.0, "mix": -1.0}
    records = [
        record(name, episode, {"agent_0": gains[name] - episode, "agent_1": gains[name] - episode})
        for name in lineups
        for episode in range(5)
    ]
    listed = [{"name": name, "agents": agents} for name, agents in lineups.items()]
    found = analyse({"name": "spread", "lineups": listed, "operators": {}, "episodes": 5}, records)
    assert found.contest is None
    assert {row.name: row.score.mean for row in found.rows} == {name: 2 * (gain - 2) for name, gain in gains.items()}
    assert {(pair.first, pair.second) for pair in found.pairs} == {
        ("mix", "all b"),
        ("mix", "all a"),
        ("all b", "all a"),
    }


def cyclic_games() -> tuple[dict, list[dict]]:
    """Rock, paper, scissors: each wins four of five games against its prey, from either side."""
    beats = {("rock", "scissors"), ("scissors", "paper"), ("paper", "rock")}
    lineups, records = [], []
    for one in ("rock", "paper", "scissors"):
        for other in ("rock", "paper", "scissors"):
            if one == other:
                continue
            name = f"{one}-{other}"
            lineups.append({"name": name, "agents": {"p1": one, "p2": other}})
            for episode in range(20):
                first_wins = ((one, other) in beats) == (episode % 5 != 0)
                winner, points = ("p1", 1.0) if first_wins else ("p2", -1.0)
                records.append(record(name, episode, {"p1": points, "p2": -points}, winners=[winner]))
    return {"name": "circle", "lineups": lineups, "operators": {}, "episodes": 20}, records


def test_failures_are_counted_and_refusals_have_no_score(scores):
    experiment, records = solo({**scores, "refusing": np.zeros(3)})
    failure = {"agent": "agent", "operator": "good", "kind": "raised", "step": 3, "message": "boom", "then": "forfeit"}
    for number in (4, 9):
        records[number] |= {"failures": [failure], "ended": "forfeit"}
    for each in records[-3:]:
        each |= {"returns": {}, "ended": "failed", "failures": [{**failure, "operator": "refusing", "kind": "refused"}]}
    found = analyse(experiment, records)
    assert [(each.operator, each.kind, each.count, each.episode) for each in found.failures] == [
        ("refusing", "refused", 3, 0),
        ("good", "raised", 2, 4),
    ]
    assert {row.name: row.failures for row in found.rows} == {"good": 2, "random": 0}
    said = " ".join(found.warnings)
    assert "refusing: 3 of 3 episodes have no score" in said
    assert "2 episodes ended early" in said


def test_each_of_three_opponents_has_its_own_failures():
    agents = {"p1": "a", "p2": "b", "p3": "c"}
    records = [record("all", number, dict.fromkeys(agents, 1.0), winners=["p1"]) for number in range(3)]
    for each, operator in zip(records, "aab", strict=True):
        each["failures"] = [{"operator": operator, "kind": "raised", "step": 0, "message": "", "then": "noop"}]
    experiment = {"name": "three", "lineups": [{"name": "all", "agents": agents}], "operators": {}, "episodes": 3}
    found = analyse(experiment, records)
    assert {row.name: row.failures for row in found.rows} == {"a in all": 2, "b in all": 1, "c in all": 0}


def test_warnings_for_few_equal_or_missing_episodes_one_seed_and_mixed_numerics():
    experiment, records = solo({"few": np.arange(10.0), "flat": np.full(40, 7.0)}, episodes=40)
    records = [{**each, "env_seed": 5, "numerics": {"environment": str(each["episode"] % 2)}} for each in records]
    said = " ".join(analyse(experiment, records).warnings)
    expected = (
        "Of 40 episodes, few has 10.",
        "Fewer than 30 episodes: few",
        "flat: all 40 scores are equal",
        "seed 5",
        "numerics: env",
    )
    for part in expected:
        assert part in said


def test_stopping_rule_sets_the_confidence_and_stands_in_the_report():
    generator = np.random.default_rng(2)
    scores = {"one": generator.normal(2, 1, 50), "two": generator.normal(0, 1, 50)}
    found = analyse(*solo(scores, until={"decided": True, "cap": 400}))
    assert found.confidence == pytest.approx(1 - 0.05 / 4)
    assert found.decision.reason == "decided"
    text = markdown(found, "mosaic eval it")
    assert "98.8 % interval" in text
    assert "50, 100, 200, 400 complete episodes" in text
    early = analyse(*solo({name: values[:20] for name, values in scores.items()}, until={"decided": True}))
    assert any("has not stopped" in each for each in early.warnings)


def test_stopping_rule_leaves_out_lineups_that_could_not_be_played():
    generator = np.random.default_rng(2)
    scores = {"one": generator.normal(2, 1, 50), "two": generator.normal(0, 1, 50), "bad": generator.normal(0, 1, 7)}
    experiment, records = solo({**scores, "none": np.zeros(0)}, until={"decided": True, "cap": 400})
    assert analyse(experiment, records).decision.reason == "more"
    ended = analyse({**experiment, "state": "failed", "given_up": {"bad": "why", "none": "why"}}, records)
    assert ended.decision.reason == "decided"
    assert [each.name for each in ended.decision.findings] == ["one - two"]
    assert not any("has not stopped" in each for each in ended.warnings)
    stopped = analyse({**experiment, "state": "stopped", "given_up": {}}, records)
    assert any("has not stopped" in each for each in stopped.warnings)


def test_latex_and_markdown_survive_names_from_users(scores):
    experiment, records = solo({"a_b & 100% | $x$": scores["good"], "plain": scores["random"]})
    found = analyse(experiment, records)
    assert r"a\_b \& 100\% | \$x\$ &" in latex(found)
    assert r"| a_b & 100% \| $x$ |" in markdown(found, "")


@pytest.mark.parametrize(
    ("files", "named"),
    [
        ({}, "experiment.json: No such file"),
        ({"experiment.json": "[1]"}, "no JSON object"),
        ({"experiment.json": '{"lineups": []}'}, "no lineups"),
        ({"experiment.json": '{"lineups": [{"name": "a"}]}'}, "need a name and agents"),
        ({"experiment.json": '{"lineups": [{"name": "a", "agents": {"*": "a"}}]}'}, "episodes.jsonl: No such file"),
        ({"episodes.jsonl": '{"lineup": 1}\n{}\n'}, "line 1: no record"),
        ({"episodes.jsonl": '{"lineup": "b", "episode": 0, "returns": {}}\n'}, "records of lineup 'b'"),
        ({"experiment.json": '{"lineups": [{"name": "a", "agents": {"*": "a"}}], "until": {"width": -1}}'}, "width"),
    ],
)
def test_folder_that_is_no_experiment_is_refused(tmp_path, files, named):
    valid = (
        {"experiment.json": '{"lineups": [{"name": "a", "agents": {"*": "a"}}]}'} if "episodes.jsonl" in files else {}
    )
    for name, content in {**valid, **files}.items():
        (tmp_path / name).write_text(content)
    if "width" in named:
        (tmp_path / "episodes.jsonl").write_text("")
    with pytest.raises(ReportError, match=re.escape(named)):
        analyse(read_experiment(tmp_path), read_records(tmp_path))


def test_line_cut_short_by_a_crash_is_left_out(tmp_path, scores):
    folder = save(tmp_path / "e", *solo(scores))
    with (folder / "episodes.jsonl").open("a") as file:
        file.write('{"lineup": "good", "epi')
    assert len(read_records(folder)) == 200


@pytest.mark.slow
def test_folder_is_whole_and_asks_no_other_machine_for_anything(tmp_path, scores):
    hostile = '<script>alert("x")</script>'
    experiment, records = solo({**scores, hostile: scores["good"]}, command="mosaic eval pole.yaml")
    (tmp_path / "film.mp4").write_bytes(b"film")
    films = [{"lineup": hostile, "episode": 3, "path": str(tmp_path / "film.mp4")}]
    films.append({"lineup": "good", "episode": 4, "path": str(tmp_path / "gone.mp4")})
    experiment["videos_recorded"] = films
    experiment["provenance"] = {"commit": "abc", "note": hostile}
    records[4]["failures"] = [{"operator": "good", "kind": "raised", "step": 1, "message": hostile, "then": "noop"}]
    curve = Training("ppo", "r1", [0, 10, 20], [1.0, 2.0, None], [0.0, 1.0, 2.0])
    folder = save(tmp_path / "experiment", experiment, records)
    report = write_report(folder, trainings=[curve])
    assert report.index == folder / "report" / "index.html"
    assert any("1 video is not on this machine" in line for line in report.lines)
    pages = {page: parse(page) for page in (folder / "report").rglob("*.html")}
    assert len(pages) == 4
    for page, found in pages.items():
        assert "script" not in found.tags
        for link in found.links:
            path, _, place = link.partition("#")
            assert not re.match(r"\w+:", path), link
            target = (page.parent / path).resolve() if path else page
            assert target.is_file(), link
            if place and target.suffix == ".html":
                assert place in pages[target].places, link
    index = (folder / "report" / "index.html").read_text()
    for part in ("mosaic eval pole.yaml", "learning-steps.pdf", "learning-seconds.pdf", "<video", "abc", "Failures"):
        assert part in index
    with (folder / "report" / "episodes.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 300
    assert float(rows[0]["score"]) == scores["good"][0]
    summary = json.loads((folder / "report" / "summary.json").read_text())
    assert summary["scores"][-1]["name"] == "random"


@pytest.mark.slow
def test_same_records_give_the_same_report_which_replaces_the_old_one_and_nothing_else(tmp_path):
    folder = save(tmp_path / "experiment", *cyclic_games())
    report = write_report(folder, tmp_path / "out")
    first = {path.relative_to(tmp_path): path.read_bytes() for path in (tmp_path / "out").rglob("*") if path.is_file()}
    (tmp_path / "out" / "stale").write_text("of the old report")
    write_report(folder, tmp_path / "out")
    again = {path.relative_to(tmp_path): path.read_bytes() for path in (tmp_path / "out").rglob("*") if path.is_file()}
    assert again == first
    assert report.index.exists()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("years of work")
    with pytest.raises(ReportError, match="is no report"):
        write_report(folder, tmp_path / "mine")
    assert (tmp_path / "mine" / "thesis.tex").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["experiment", "mine", "out"]


def test_language_models_have_a_table_of_invalid_answers_and_costs():
    told = {"answers": 10, "invalid": 1, "refusals": 0, "tokens_in": 900, "tokens_out": 50, "latency_s": 5.0}
    experiment, records = solo({"llm": np.array([1.0, 3.0]), "random": np.array([0.0, 0.0])})
    for each in records:
        if each["lineup"] == "llm":
            each["reports"] = {"agent": {**told, "model": "m-1", "cost_usd": 0.02}}
    text = markdown(analyse(experiment, records), "")
    assert "| llm | m-1 | 2 | 20 | 10.0% | 0 | 1,800 | 100 | 0.50 | 0.02 | 0.01 |" in text
    said = terminal_lines(experiment, records)
    assert "llm in llm: 20 answers, 10.0% invalid, 0.02 USD an episode, 0.01 USD a point of return" in said
    records[0]["reports"]["agent"]["cost_usd"] = None
    assert "| 0.50 |  |  |" in markdown(analyse(experiment, records), ""), "without a price there is no cost"
    plain, unreported = solo({"random": np.array([0.0, 1.0])})
    assert "Language models" not in markdown(analyse(plain, unreported), "")
