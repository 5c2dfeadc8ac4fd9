"""The arena plays three families of environments, whatever goes wrong with a policy, and records what happened."""

import json
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

RANDOM = {"worker": "baseline", "config": {"behavior": "random"}}
PASSIVE = {"worker": "baseline", "config": {"behavior": "passive"}}
FAULTS = ("raised", "hung", "died", "illegal")


def odd(**config):
    return {"worker": "odd", "config": config}


def left_behind(mark):
    """Processes that carry a text in their command line."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if mark.encode() in (entry / "cmdline").read_bytes():
                found.append(entry.name)
    return found


def test_the_compliance_suite_passes(arena):
    done = arena.module("mosaic_worker.check", "arena", "--json")
    report = json.loads(done.stdout)
    assert {check["id"]: check["reason"] for check in report["checks"] if check["status"] == "fail"} == {}


def test_records_are_the_same_for_every_number_of_lanes_and_shards(arena):
    operators = {"random": RANDOM, "passive": PASSIVE, "odd": odd(), "own": {"worker": "random"}}
    config = arena.shard("CartPole-v1", operators, episodes=6)
    _, whole = arena.run("whole", {**config, "lanes": 1})
    _, lanes = arena.run("lanes", {**config, "lanes": 5})
    assert len(whole) == 24
    assert lanes == whole
    pieces = []
    for name, part in (("first", [0, 2]), ("second", [2, 6])):
        play = [{"lineup": each, "episodes": part} for each in operators]
        pieces += arena.run(name, {**config, "play": play})[1]
    assert sorted(pieces, key=lambda record: (record["lineup"], record["episode"])) == whole
    by_lineup = {each["lineup"]: each for each in whole if each["episode"] == 0}
    assert len({record["env_seed"] for record in by_lineup.values()}) == 1, "all operators meet the same seeds"
    assert by_lineup["passive"]["returns"] == {"agent": float(by_lineup["passive"]["length"])}
    assert left_behind(str(arena.folder)) == []


def test_paced_episodes_wait_between_steps_side_by_side_and_have_the_same_records(arena):
    config = arena.shard("CartPole-v1", {"random": RANDOM, "own": {"worker": "random"}}, episodes=3, lanes=3)
    _, quick = arena.run("quick", config)
    ended, slow = arena.run("slow", {**config, "step_s": 0.02})
    assert slow == quick
    lengths = {name: [each["length"] for each in slow if each["lineup"] == name] for name in ("random", "own")}
    played = ended["run_completed"][0]["summary"]["play_s"]
    assert played >= 0.02 * sum(max(each) - 1 for each in lengths.values())
    assert played < sum(each["timing"]["s"] for each in ended["episode"]), "they are played side by side"


def test_turns_and_simultaneous_moves_are_played_with_masks_in_one_or_several_lanes(arena):
    for env_id, family, agents in (
        ("tictactoe_v3", "aec", {"player_1": "random", "player_2": "own"}),
        ("simple_spread_v3", "parallel", {"*": "random", "agent_1": "own"}),
    ):
        config = arena.shard(
            env_id,
            {"random": RANDOM, "own": {"worker": "random"}},
            {"game": agents},
            environment={"family": family},
        )
        events, one = arena.run(f"{family}-1", {**config, "lanes": 1})
        _, several = arena.run(f"{family}-3", {**config, "lanes": 3})
        assert several == one
        assert all(not record["failures"] for record in one), "a random agent respects masks"
        if family == "aec":
            assert {tuple(sorted(record["returns"].values())) for record in one} <= {(-1.0, 1.0), (0.0, 0.0)}
            assert all(len(record["winners"]) == any(record["returns"].values()) for record in one)
        else:
            assert {record["winners"] for record in one} == {None}, "nobody wins where all work together"
        assert events["run_completed"][0]["summary"]["episodes"] == 4


def test_an_episode_left_before_an_agent_was_asked_is_not_asked_about_twice(arena):
    # With five lanes a policy is asked about three, then two. The first raises in its second batch, while the other
    # still thinks about its first one.
    operators = {
        "raiser": odd(fault="raised", episodes=[4], at=0),
        "slow": odd(fault="slow", episodes=[2], at=0, once=True),
        "own": {"worker": "random"},
    }
    config = arena.shard(
        "simple_spread_v3",
        operators,
        {"game": {"agent_0": "raiser", "agent_1": "slow", "agent_2": "own"}},
        episodes=8,
        environment={"family": "parallel", "max_steps": 6},
    )
    _, one = arena.run("one", {**config, "lanes": 1})
    _, five = arena.run("five", {**config, "lanes": 5})
    assert [record["ended"] for record in one] == ["max_steps"] * 4 + ["forfeit"] + ["max_steps"] * 3
    assert five == one


def test_winners_are_sides_and_the_config_may_say_whether_there_are_any(arena):
    script = (
        "from arena_worker.sides import Sides\n"
        "import json\n"
        "team = ['leadadversary_0', 'adversary_0', 'agent_0', 'agent_1']\n"
        "returns = dict(zip(team, [2.0, 0.0, 1.0, 1.0]))\n"
        "world = Sides('simple_world_comm_v3', team, competitive=None)\n"
        "pair, values = ['a', 'b'], {'a': 1.0, 'b': 2.0}\n"
        "print(json.dumps([world.winners(returns, set()), world.winners({**returns, 'agent_0': 2.0}, set()),\n"
        "    world.winners(returns, {'agent_0'}),\n"
        "    *[Sides('mine_v0', pair, competitive=each).winners(values, set()) for each in (None, True, False)],\n"
        "    Sides('pettingzoo.classic.chess_v6', pair, competitive=False).winners(values, set())]))\n"
    )
    done = subprocess.run(
        [arena.python, "-c", script], env=arena.environ, capture_output=True, text=True, check=True, timeout=60
    ).stdout
    good, bad = ["agent_0", "agent_1"], ["leadadversary_0", "adversary_0"]
    assert json.loads(done) == [[], good, bad, None, ["b"], None, None]


@pytest.mark.parametrize("lanes", [1, 4])
def test_a_policy_that_goes_wrong_forfeits_its_episode_and_no_other(arena, lanes):
    operators = {fault: odd(fault=fault, episodes=[2]) for fault in FAULTS}
    config = arena.shard("CartPole-v1", operators, episodes=5, lanes=lanes, deadlines={"action_s": 8})
    events, found = arena.run("run", config)
    for fault in FAULTS:
        ended = [record["ended"] for record in found if record["lineup"] == fault]
        assert ended == ["terminated", "terminated", "forfeit", "terminated", "terminated"]
        (failure,) = next(record for record in found if (record["lineup"], record["episode"]) == (fault, 2))["failures"]
        assert (failure["agent"], failure["operator"], failure["kind"]) == ("agent", fault, fault)
        assert (failure["step"], failure["then"]) == (3, "forfeit")
        assert failure["message"]
    good = [record for record in found if record["episode"] != 2]
    hashes = {record["episode"]: set() for record in good}
    for record in good:
        hashes[record["episode"]].add(record["action_hash"])
    assert all(len(each) == 1 for each in hashes.values()), "one policy, so one game, whatever went wrong beside it"
    assert events["run_completed"][0]["summary"]["failures"] == 4


@pytest.mark.parametrize(("then", "ended"), [("random_legal", "max_steps"), ("noop", "max_steps"), ("fail", "failed")])
def test_failures_are_retried_and_then_replaced(arena, then, ended):
    faults = {
        "again": odd(fault="raised", episodes=[1], once=True),
        "never": odd(fault="illegal", episodes=[1]),
        "died": odd(fault="died", episodes=[1]),
    }
    rules = {"retry": 1, "then": then}
    config = arena.shard("CartPole-v1", faults, episodes=2, lanes=2, failures=rules, environment={"max_steps": 5})
    _, found = arena.run("run", config)
    failed = {record["lineup"]: record for record in found if record["episode"] == 1}
    steps = {name: [(failure["step"], failure["then"]) for failure in failed[name]["failures"]] for name in failed}
    assert steps["again"] == [(3, "retry")]
    assert steps["never"] == [(3, "retry"), (3, then), *([(4, "retry"), (4, then)] if ended == "max_steps" else [])]
    assert steps["died"] == [(3, "retry")], "started again, it decides"
    assert [failed[name]["ended"] for name in ("again", "never", "died")] == ["max_steps", ended, "max_steps"]


@pytest.mark.parametrize(
    ("rules", "off_turn", "at_start"),
    [
        ({"then": "forfeit"}, (["forfeit"], "forfeit"), (["forfeit"], "forfeit")),
        ({"then": "noop"}, (["restart"], "terminated"), (["forfeit"], "forfeit")),
        ({"then": "fail", "retry": 1}, (["retry"], "terminated"), (["retry", "fail"], "failed")),
    ],
)
def test_a_policy_that_dies_while_another_has_to_move_ends_no_shard(arena, rules, off_turn, at_start):
    operators = {
        "leaver": odd(fault="leaves", episodes=[1], at=0),
        "waiter": odd(fault="waits", episodes=[1], at=0, once=True),
        "mute": odd(fault="no beginning", episodes=[1]),
        "own": {"worker": "random"},
    }
    lineups = {
        "off turn": {"player_1": "leaver", "player_2": "waiter"},
        "at start": {"player_1": "own", "player_2": "mute"},
    }
    config = arena.shard("tictactoe_v3", operators, lineups, environment={"family": "aec"}, failures=rules, lanes=1)
    for play in config["play"]:
        play["episodes"] = [1, 3]
    _, found = arena.run("run", config)
    ended = {(record["lineup"], record["episode"]): record for record in found}
    for lineup, agent, (then, how) in (("off turn", "player_1", off_turn), ("at start", "player_2", at_start)):
        record = ended[lineup, 1]
        assert [(each["agent"], each["kind"], each["then"]) for each in record["failures"]] == [
            (agent, "died", each) for each in then
        ]
        assert record["ended"] == how
        assert ended[lineup, 2]["ended"] == "terminated", ended[lineup, 2]["failures"]


def test_what_cannot_be_played_is_recorded_and_the_rest_goes_on(arena):
    operators = {
        "good": RANDOM,
        "small": odd(refuses="the spaces do not fit"),
        "wrong": {"worker": "baseline", "config": {"behavior": "clever"}},
        "model": {"worker": "baseline", "checkpoint": "/nowhere/model.pt"},
        "human": {"worker": "human"},
    }
    lineups = {name: {"*": name} for name in operators} | {"nobody": {"player_9": "good"}}
    events, found = arena.run("run", arena.shard("CartPole-v1", operators, lineups, episodes=2))
    ended = {record["lineup"]: record for record in found}
    assert ended["good"]["ended"] == "terminated"
    said = {
        "small": "the spaces do not fit",
        "wrong": "clever",
        "model": "plays no checkpoint",
        "human": "manual mode",
        "nobody": "'player_9' is no agent",
    }
    for name, message in said.items():
        assert (ended[name]["ended"], ended[name]["length"]) == ("failed", 0)
        (failure,) = ended[name]["failures"]
        assert failure["kind"] == "refused"
        assert message in failure["message"]
    assert events["run_completed"][0]["summary"]["refused"] == 10
    _, found = arena.run(
        "pair",
        arena.shard("tictactoe_v3", {"good": RANDOM}, {"half": {"player_1": "good"}}, environment={"family": "aec"}),
    )
    assert "player_2 has no operator" in found[0]["failures"][0]["message"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"environment": {"id": "CartPol-v1"}}, "did you mean 'CartPole-v1'"),
        ({"environment": {"id": "nochess_v6", "family": "aec"}}, "there is no 'nochess_v6'"),
        ({"environment": {"id": "CartPole-v1", "kwargs": {"nope": 1}}}, "cannot be made"),
        ({"seeds": {"mode": "magic"}}, "seeds.mode: 'magic' is not allowed"),
        ({"seeds": {"mode": "list"}}, "need values"),
        ({"play": [{"lineup": "ranom", "episodes": [0, 1]}]}, "there is no lineup 'ranom'"),
        ({"lineups": [{"name": "random", "agents": {"*": "rand"}}]}, "there is no operator 'rand'"),
        ({"mode": "manual"}, "interactive"),
        ({"operators": {"random": {"worker": "missing"}}}, "does not use missing/default"),
    ],
)
def test_a_bad_config_is_refused_by_name(arena, change, message):
    config = {**arena.shard("CartPole-v1", {"random": RANDOM}), **change}
    events, found = arena.run("run", config, code=2)
    assert message in events["run_failed"][0]["error"]
    assert events["run_failed"][0]["category"] == "configuration"
    assert found == []


def test_the_probe_finds_a_policy_whose_decisions_depend_on_the_batch(arena):
    operators = {"steady": odd(), "size": odd(drifts="size"), "row": odd(drifts="row")}
    config = arena.shard("CartPole-v1", operators, episodes=6)
    events, several = arena.run("several", {**config, "lanes": 6})
    ways = {event["operator"]: event["way"] for event in events["probe"]}
    assert ways == {"steady": "free", "size": "filled-16", "row": "single"}
    _, one = arena.run("one", {**config, "lanes": 1})
    assert several == one


def test_an_episode_is_replayed_from_its_record_and_a_change_is_found(arena):
    config = arena.shard(
        "MiniGrid-Empty-5x5-v0", {"random": RANDOM}, episodes=3, environment={"max_steps": 30}, lanes=2,
        record={"steps": True, "videos": [1]},
    )  # fmt: skip
    events, found = arena.run("first", config)
    (video,) = [event["path"] for event in events["artifact"]]
    assert (arena.folder / "first" / video).read_bytes().startswith(b"\x89PNG")
    steps = str(arena.folder / "first" / "steps.jsonl")
    for name, where in (("actions", steps), ("policies", None)):
        again = {**config, "mode": "replay", "replay": {"records": found, "steps": where}}
        events, _ = arena.run(name, again)
        assert [event["verified"] for event in events["replayed"]] == [True] * 3
    broken = [{**found[0], "returns": {"agent": 7.0}}, *found[1:]]
    events, _ = arena.run("broken", {**again, "replay": {"records": broken, "steps": steps}}, code=1)
    assert events["run_failed"][0]["error"].startswith("1 of 3 episodes differ: random episode 0 in returns")


def test_vectors_are_replayed_from_the_steps_to_the_last_bit(arena):
    config = arena.shard(
        "Pendulum-v1", {"random": RANDOM, "own": {"worker": "random"}}, episodes=2, environment={"max_steps": 40},
        record={"steps": True},
    )  # fmt: skip
    _, found = arena.run("first", config)
    replay = {"records": found, "steps": str(arena.folder / "first" / "steps.jsonl")}
    events, _ = arena.run("again", {**config, "mode": "replay", "replay": replay})
    assert [event["verified"] for event in events["replayed"]] == [True] * 4
    assert len({record["action_hash"] for record in found}) == 4


STUCK = """\
import threading
import gymnasium

class Stuck(gymnasium.Env):
    observation_space, action_space = gymnasium.spaces.Discrete(2), gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        self.seed = seed
        if seed == 78:
            raise OSError("no map")
        return 0, {}

    def step(self, action):
        if self.seed == 77:
            threading.Event().wait()
        return 0, 0.0, True, False, {}

gymnasium.register("Stuck-v0", Stuck)
"""


def test_an_environment_that_never_returns_ends_the_shard_and_is_named(arena):
    (arena.folder / "stuck.py").write_text(STUCK)
    arena.environ["PYTHONPATH"] += f":{arena.folder}"
    config = arena.shard("Stuck-v0", {"random": RANDOM}, lanes=1, deadlines={"step_s": 6})
    config["environment"]["imports"] = ["stuck"]
    events, found = arena.run("run", {**config, "seeds": {"mode": "list", "values": [1, 77]}}, code=1)
    (failed,) = events["run_failed"]
    assert failed["error"] == "the environment Stuck-v0, step in episode 1 (seed 77), did not return within 6 s"
    assert failed["category"] == "infrastructure"
    assert [record["episode"] for record in found] == [0]
    assert left_behind(str(arena.folder)) == []


def test_an_environment_that_raises_in_reset_ends_the_shard_and_names_episode_and_seed(arena):
    (arena.folder / "stuck.py").write_text(STUCK)
    arena.environ["PYTHONPATH"] += f":{arena.folder}"
    config = arena.shard("stuck:Stuck-v0", {"own": {"worker": "random"}}, lanes=1)
    events, found = arena.run("run", {**config, "seeds": {"mode": "list", "values": [1, 78]}}, code=1)
    assert events["run_failed"][0]["error"] == (
        "the environment raised in episode 1 (seed 78), the reset: OSError: no map"
    )
    assert [record["episode"] for record in found] == [0]


def test_answers_of_the_original_are_understood(arena):
    config = arena.shard("CartPole-v1", {"old": {"worker": "original"}}, episodes=2, lanes=3)
    _, found = arena.run("run", {**config, "failures": {"then": "random_legal"}, "record": {"steps": True}})
    steps = [json.loads(line) for line in (arena.folder / "run" / "steps.jsonl").read_text().splitlines()]
    for record in found:
        (failure,) = record["failures"]
        assert (failure["kind"], failure["step"], failure["then"]) == ("raised", 2, "random_legal")
        assert failure["message"] == "the quota is used up"
        own = [step for step in steps if step["episode"] == record["episode"]]
        assert [step["actions"]["agent"] for step in own if step["step"] != 2] == [0] * (record["length"] - 1)
        assert [step["said"]["agent"] for step in own[:2]] == ["move 1", "move 2"]


def test_the_words_of_a_policy_stand_in_the_steps(arena):
    config = arena.shard("MiniGrid-Empty-5x5-v0", {"model": odd(thinks_s=0.01)}, episodes=1, failures={"retry": 1})
    config |= {"environment": {**config["environment"], "max_steps": 2}, "record": {"steps": True}}
    _, (record,) = arena.run("run", config)
    assert [each["kind"] for each in record["failures"]] == ["no_answer"]
    steps = [json.loads(line) for line in (arena.folder / "run" / "steps.jsonl").read_text().splitlines()]
    assert [step["said"] for step in steps] == [{"agent": f"step {step} of [160, 160, 3]"} for step in (0, 1)]


def test_a_retry_plays_only_what_is_missing_and_a_stop_leaves_no_process(arena):
    config = arena.shard("CartPole-v1", {"random": RANDOM}, episodes=100_000, lanes=4)
    folder = arena.write("first", config)
    with (folder / "out").open("wb") as out:
        process = subprocess.Popen(
            arena.command(folder), cwd=folder, env={**arena.environ, "MOSAIC_RUN_DIR": str(folder)}, stdout=out
        )
    try:
        deadline = time.monotonic() + 120
        while (folder / "out").read_bytes().count(b'"episode"') < 50:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 143
    finally:
        process.kill()
    assert left_behind(str(folder)) == []
    path = folder / "episodes.jsonl"
    first = arena.records(path)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:20]) + lines[20][:30])  # as if it had been killed in the middle of a line
    kept = {record["episode"] for record in records_of(lines[:20])}
    wanted = sorted(record["episode"] for record in first)[:40]
    play = [{"lineup": "random", "episodes": [episode, episode + 1]} for episode in wanted]
    events, again = arena.run("second", {**config, "play": play}, resume={"path": str(path)})
    assert len(events["episode"]) == len(set(wanted) - kept)
    assert [record for record in again if record["episode"] in wanted] == [
        record for record in first if record["episode"] in wanted
    ]


def records_of(lines):
    return [json.loads(line) for line in lines]
