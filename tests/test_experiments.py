"""Experiments through a real stack: real environments, policies of several libraries, and processes that are killed."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import psutil
import pytest
from experiments import BASELINES, MINIGRID, finish, lines, show, start, train
from mosaic_cli import Cli
from stack import ROOT, Stack, wait_until

from mosaic_bus import CommandRefusedError
from mosaic_bus.commands import Show, StopExperiment, WriteReport
from mosaic_services.experiments.folder import ExperimentFolder

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

CONFIGS = ROOT / "configs" / "experiments"


def worker_of(stack: Stack, run: str) -> psutil.Process:
    host = json.loads((stack.home.runs / run / "1" / "host.json").read_text())["pid"]
    (worker,) = psutil.Process(host).children()
    return worker


def test_operator_and_a_shard_killed_in_the_middle_lose_and_double_no_episode(arena):
    task: dict[str, Any] = {"environment": {"id": "MiniGrid-Empty-8x8-v0", "max_steps": 60}, "episodes": 120}
    start(arena, "calm", shards=1, **task)
    finish(arena, "calm")
    # Slow enough to be killed in the middle.
    start(arena, "stormy", shards=3, **task, videos=[0], steps=True, pacing={"steps_per_second": 50})
    folder = arena.home.experiments / "stormy"
    state = ExperimentFolder(folder).read_state
    wait_until("a video is known", lambda: (state() or {}).get("found", {}).get("videos"))

    def hold() -> psutil.Process | None:
        """Suspend a shard that plays, so that it has not ended when the operator service is back."""
        for each in show(arena, "stormy").shards:
            if each.state == "running" and each.done < each.total:
                with contextlib.suppress(ValueError, psutil.NoSuchProcess):  # it has ended just now
                    worker = worker_of(arena, each.run)
                    worker.suspend()
                    return worker
        return None

    victim = wait_until("a shard is held", hold)
    arena.kill_and_restart("operator")
    arena.wait_for("operator")
    victim.kill()
    finish(arena, "stormy")
    ended = show(arena, "stormy")
    assert (ended.lost, ended.conflicts) == (1, 0)
    assert lines(arena, "stormy") == lines(arena, "calm")
    plan = json.loads((folder / "experiment.json").read_text())
    (host,) = plan["provenance"]["hosts"].values()
    assert plan["hosts"] == ["testhost"]
    assert host["processor"]
    assert host["environments"]["arena"]["versions"]["minigrid"]
    assert host["environments"]["baseline/default"]["environment"].startswith("baseline-default-")
    assert host["environments"]["baseline/default"]["versions"]["numpy"]

    cli = Cli(arena.home.path)
    cli("delete", *(each.run for each in ended.shards))  # what a report and a replay need is with the experiment
    report = Path(cli.json("report", "stormy")["report"]).parent
    assert len(list((report / "videos").iterdir())) == 2
    again = cli.json("replay", "stormy", "--episode", "100", "--lineup", "random")
    assert (again["from"], again["same"]) == ("actions", True)
    assert again["played"]["length"] > 1
    records = [json.loads(line) for line in lines(arena, "stormy")]
    broken = [{**each, "action_hash": "0"} if each["episode"] == 100 else each for each in records]
    (folder / "episodes.jsonl").write_text("".join(json.dumps(each) + "\n" for each in broken))
    said = cli("replay", "stormy", "--episode", "100", "--lineup", "random", code=1).stdout
    assert "not the same: action_hash" in said


def test_mosaic_eval_prints_a_table_and_called_again_plays_only_what_is_new(arena, tmp_path):
    cli = Cli(arena.home.path)
    path = tmp_path / "trial.yaml"
    path.write_text((CONFIGS / "baselines.yaml").read_text().replace("name: baselines", "name: trial"))
    planned = cli.json("eval", str(path), "episodes=5", "--shards", "2", "--dry-run")["experiments"][0]
    assert (planned["missing"], len(planned["shards"])) == (10, 2)
    said = cli("eval", str(path), "episodes=5", "--shards", "2", "--hosts", "testhost").stdout
    specs = [arena.bus.request("scheduler", Show(run=each.run)).spec for each in show(arena, "trial").shards]
    assert {spec.requires for spec in specs} == {("host:testhost",)}  # no host that joins later plays
    assert "passive" in said
    assert "random" in said
    first = lines(arena, "trial")
    assert len(first) == 10
    (again,) = cli.json("eval", str(path), "episodes=5")["experiments"]
    assert (again["state"], again["shards"]) == ("finished", [])
    (more,) = cli.json("eval", str(path), "episodes=6", "operators.third={worker: random}")["experiments"]
    played = sum(each["total"] for each in more["shards"])
    assert played == 2 + 6
    assert set(first) <= set(lines(arena, "trial"))
    refused = cli("eval", str(path), "environment.max_steps=9", code=2)
    assert "--restart" in refused.stderr
    assert cli.json("experiments", "show", "trial")["done"] == 18
    assert "trial" in cli("experiments").stdout
    same = cli.json("replay", "trial", "--episode", "2", "--lineup", "random")
    assert (same["same"], same["differing"]) == (True, [])


@pytest.mark.parametrize("path", sorted((CONFIGS / "original").glob("*_*.py")), ids=lambda path: path.stem)
def test_scripts_of_the_originals_shape_run_headless(arena, path):
    if path.stem == "minigrid_trained":
        train(arena, "cleanrl", "ppo-minigrid", MINIGRID)
    (ended,) = Cli(arena.home.path).json("eval", str(path))["experiments"]
    assert ended["state"] == "finished"
    assert ended["done"] == ended["wanted"] == sum(each["wanted"] for each in ended["lineups"])
    if path.stem == "minigrid_trained":
        curve = Path(ended["report"]).parent / "figures" / "learning-steps.svg"
        assert curve.exists()
        curve.unlink()
        note = arena.bus.request("operator", WriteReport(experiment=ended["experiment"]), timeout=60).note
        wait_until(f"the page has its curve, too: {note}", curve.exists)


class TestDefectsOfTheOriginal:
    """Each is a defect of the original's operators that must not come back."""

    def test_two_operators_with_two_episodes_play_two_each(self, arena):
        start(arena, "two", environment={"id": "CartPole-v1"}, episodes=2)
        found = [(each["lineup"], each["episode"]) for each in finish(arena, "two")]
        assert found == [("passive", 0), ("passive", 1), ("random", 0), ("random", 1)]

    def test_random_heeds_masks_seed_and_max_steps_and_nobody_steps_past_the_end(self, arena):
        start(arena, "masks", environment={"id": "tictactoe_v3"}, episodes=10)
        games = finish(arena, "masks")
        assert all(not each["failures"] and each["ended"] == "terminated" for each in games)
        assert all(5 <= each["length"] <= 9 for each in games)
        start(arena, "capped", environment={"id": "CartPole-v1", "max_steps": 7}, seeds=[3, 3, 4], episodes=3)
        capped = [each for each in finish(arena, "capped") if each["lineup"] == "random"]
        assert [each["env_seed"] for each in capped] == [3, 3, 4]
        assert {each["length"] for each in capped} == {7}
        assert {each["ended"] for each in capped} == {"max_steps"}
        start(arena, "capped-again", environment={"id": "CartPole-v1", "max_steps": 7}, seeds=[3, 3, 4], episodes=3)
        finish(arena, "capped-again")
        assert lines(arena, "capped-again") == lines(arena, "capped")

    def test_error_of_an_operator_is_recorded_and_does_not_hang_the_experiment(self, arena, tmp_path):
        junk = tmp_path / "model.pt"
        junk.write_bytes(b"no model")
        operators = {**BASELINES, "broken": {"worker": "cleanrl", "checkpoint": str(junk)}}
        start(arena, "broken", environment={"id": "CartPole-v1"}, operators=operators, episodes=3)
        records = finish(arena, "broken")
        failed = [each for each in records if each["lineup"] == "broken"]
        assert [each["ended"] for each in failed] == ["failed"] * 3
        assert all(each["failures"][0]["operator"] == "broken" for each in failed)
        assert sum(each["ended"] == "terminated" for each in records) == 6

    def test_config_of_an_operator_is_not_in_the_arguments_of_its_process(self, arena):
        secret = {"worker": "baseline", "behavior": "random", "config": {"env_kwargs": {"key": "sk-secret"}}}
        task = {"environment": {"id": "CartPole-v1"}, "operators": {"secret": secret}, "episodes": 3000}
        task["pacing"] = {"steps_per_second": 20}  # it must still play when its processes are looked at
        (shard,) = start(arena, "secret", shards=1, **task).shards
        wait_until("it plays", lambda: show(arena, "secret").done)
        family = [worker_of(arena, shard.run), *worker_of(arena, shard.run).children(recursive=True)]
        assert len(family) > 1
        assert "sk-secret" not in " ".join(word for each in family for word in each.cmdline())
        with pytest.raises(CommandRefusedError) as refused:  # a file that was edited meanwhile is not ignored
            start(arena, "secret", shards=1, **{**task, "episodes": 4000})
        assert [each.field for each in refused.value.details.problems] == ["episodes"]
        arena.bus.request("operator", StopExperiment(experiment="secret"))
        finish(arena, "secret", "stopped")


def test_rule_stops_a_duel_at_the_look_that_settles_it(arena):
    operators = {"random": {"worker": "random"}, "passive": {"worker": "noop"}}
    start(arena, "duel", environment={"id": "tictactoe_v3"}, operators=operators, until={"width": 0.9, "cap": 200})
    records = finish(arena, "duel")
    assert sorted({(each["lineup"], each["episode"]) for each in records}) == [
        (lineup, episode) for lineup in ("passive-vs-random", "random-vs-passive") for episode in range(50)
    ]
    assert "50 episodes" in show(arena, "duel").look


def test_groups_share_an_operator_and_a_budget_ends_with_what_is_there(arena):
    start(
        arena,
        "team",
        environment={"id": "simple_spread_v3", "max_steps": 5},
        groups={"pair": ["agent_0", "agent_1"]},
        lineups=[{"pair": "random", "agent_2": "passive"}],
        episodes=2000,
        budget={"episodes": 30},
        pacing={"steps_per_second": 100},
    )
    records = finish(arena, "team", "stopped")
    assert 30 <= len(records) < 2000
    assert [each["episode"] for each in records] == sorted(each["episode"] for each in records)
    plan = json.loads((arena.home.experiments / "team" / "experiment.json").read_text())
    assert [each["agents"] for each in plan["lineups"]] == [
        {"agent_0": "random", "agent_1": "random", "agent_2": "passive"}
    ]
    assert show(arena, "team").reason == "its budget of 30 episodes is used up"


def test_bad_input_is_named_and_the_rest_goes_on(arena):
    operators = {**BASELINES, "nobody": {"worker": "no-such-worker"}}
    start(arena, "unknown-worker", environment={"id": "CartPole-v1"}, operators=operators)
    records = finish(arena, "unknown-worker", "failed")
    assert len(records) == 8
    given_up = {each.lineup: each.given_up for each in show(arena, "unknown-worker").lineups if each.given_up}
    assert set(given_up) == {"nobody"}
    assert "no-such-worker" in given_up["nobody"]
    start(arena, "no-such-environment", environment={"id": "CartPole-v99"})
    assert finish(arena, "no-such-environment", "failed") == []
    for fields, code in (
        ({"environment": {"id": "CartPole-v1"}, "seeds": {"mode": "chaotic"}}, "invalid_experiment"),
        ({"environment": {"id": "tictactoe_v3"}, "lineups": [{"player_1": "random"}]}, "invalid_experiment"),
        ({"environment": {"id": "A-v1"}, "operators": {"me": {"worker": "human"}}}, "invalid_experiment"),
        ({"environment": {"id": "A-v1"}, "operators": {"a": {"worker": "x", "checkpoint": "run:no"}}}, "unknown_run"),
    ):
        with pytest.raises(CommandRefusedError) as refused:
            start(arena, "bad", **fields)
        assert refused.value.code == code
    assert not (arena.home.experiments / "bad").exists()
