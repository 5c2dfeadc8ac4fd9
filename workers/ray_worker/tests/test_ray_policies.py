"""Policies of real small checkpoints without a cluster: asked one by one and at once, evaluated, and refused."""

import csv
import json
import re
import subprocess
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

TRAIN = f"""
import json, sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from trainings import QUICK, begin, cluster, finish

OFF_POLICY = {{"num_steps_sampled_before_learning_starts": 60, "train_batch_size_per_learner": 8,
              "min_time_s_per_iteration": 0, "min_sample_timesteps_per_iteration": 50}}
REAL = {{"env_id": "simple_spread_v3", "env_kwargs": {{"continuous_actions": True}}}}
LSTM = {{"fcnet_hiddens": [8], "use_lstm": True, "lstm_cell_size": 8, "max_seq_len": 5}}
with cluster():
    for name, given in {{
        "game": {{"env_id": "tictactoe_v3", "policy_configuration": "SELF_PLAY", "algo_params": QUICK}},
        "values": {{"env_id": "tictactoe_v3", "algorithm": "DQN", "algo_params": OFF_POLICY}},
        "real": {{**REAL, "policy_configuration": "INDEPENDENT", "algo_params": QUICK}},
        "squashed": {{**REAL, "algorithm": "SAC", "algo_params": OFF_POLICY}},
        "central": {{"env_id": "simple_spread_v3", "policy_configuration": "SHARED_VALUE_FUNCTION",
                    "algo_params": QUICK}},
        "memory": {{"env_id": "CartPole-v1", "network": LSTM, "algo_params": QUICK}},
    }}.items():
        finish(begin(name, total_timesteps=100, **given))
print(json.dumps("done"))
"""

# No cluster from here on: starting one is an error.
ALONE = """
import csv, json, sys
from pathlib import Path
import numpy as np
import ray
def forbidden(*_, **__):
    raise AssertionError("a policy started Ray")
ray.init = forbidden
from mosaic_worker.errors import WorkerError
from ray_worker import *
from ray_worker.environments import resolve
from ray_worker.policy_actor import RandomActor
ROOT = Path(sys.argv[1])
"""


@pytest.fixture(scope="module")
def trained(make_rllib, tmp_path_factory):
    """A folder with six checkpoints, each the newest of a run."""
    folder = tmp_path_factory.mktemp("trained")
    make_rllib(folder).says(TRAIN)
    return folder


ASKED = (
    ALONE
    + """
draw, found = np.random.default_rng(0), {}
for name in ("game", "values", "real", "squashed", "central", "memory"):
    found[name] = {}
    for deterministic in (True, False):
        actor = create_ray_actor(RayPolicyConfig(ROOT / name, deterministic=deterministic))
        agent = actor.agents[-1]
        view, lanes = actor.view_of(agent), range(20)
        seen = [draw.random(view.inner.shape).astype(np.float32) for _ in lanes]
        masks = None
        if view.has_mask:
            masks = [np.eye(9, dtype=np.int8)[lane % 9] | (draw.random(9) < 0.3) for lane in lanes]
        def begin():
            for lane in lanes:
                actor.begin_episode(lane, agent, lane)
        rounds = []
        for _ in range(2):
            begin()
            rounds.append([actor.select_actions(seen, agent, masks, lanes) for _ in range(3)])
        begin()
        one_by_one = [
            [actor.select_action(seen[i], agent, None if masks is None else masks[i], i) for i in reversed(lanes)][::-1]
            for _ in range(3)
        ]
        legal = masks is None or all(mask[action] for each in rounds[0] for mask, action in zip(masks, each))
        found[name][str(deterministic)] = {
            "repeats": bool(np.array_equal(rounds[0], rounds[1])),
            "alone": bool(np.array_equal(rounds[0], one_by_one)),
            "inside": all(view.actions.contains(action) for each in rounds[0] for action in each),
            "legal": bool(legal), "varies": not np.array_equal(rounds[0][0], rounds[0][1]),
            "deterministic": actor.is_deterministic,
        }
    if name == "memory":
        actor.begin_episode(0)
        asked = [actor.select_action(seen[0]) is None or actor.probabilities()[0].tolist() for _ in range(2)]
        actor.begin_episode(0)
        actor.select_action(seen[0])
        found["remembers"] = [asked[0] != asked[1], asked[0] == actor.probabilities()[0].tolist()]
assert not ray.is_initialized()
print(json.dumps(found))
"""
)


def test_an_action_depends_on_its_own_lane_alone(rllib, trained):
    found = rllib.says(ASKED, trained)
    assert found.pop("remembers") == [True, True], "a recurrent policy remembers, until an episode begins"
    for name, cases in found.items():
        for deterministic, case in cases.items():
            where = f"{name}, deterministic: {deterministic}"
            assert case["repeats"], f"{where}: the same seeds give the same actions"
            assert case["alone"], f"{where}: select_actions equals select_action, bit for bit"
            assert case["inside"] and case["legal"], where  # noqa: PT018 - one sentence
            is_sampled = deterministic == "False" and name != "values"
            assert case["deterministic"] != is_sampled, where
            assert case["varies"] == is_sampled, where


SAME = (
    ALONE
    + """
import torch
from ray.rllib.core.rl_module.rl_module import RLModule
from ray.rllib.utils.spaces.space_utils import unsquash_action
draw, found = np.random.default_rng(1), {}
for name in ("game", "real", "central", "values"):
    actor = create_ray_actor(RayPolicyConfig(ROOT / name))
    agent = actor.agents[0]
    view = actor.view_of(agent)
    where = actor.path / "learner_group" / "learner" / "rl_module" / actor.about.agents[agent]
    module, worst = RLModule.from_checkpoint(where), 0.0
    for _ in range(20):
        raw = draw.random(view.inner.shape).astype(np.float32)
        mask = (draw.random(9) < 0.5) | (np.arange(9) == 4) if view.has_mask else None
        seen = view.see(raw, mask)
        wrapped = {key: torch.tensor(part)[None] for key, part in seen.items()} if isinstance(seen, dict) else None
        batch = {"obs": torch.tensor(seen)[None] if wrapped is None else wrapped}
        out = module.forward_inference(batch)
        if "actions" not in out:
            kind = module.get_inference_action_dist_cls()
            out["actions"] = kind.from_logits(out["action_dist_inputs"]).to_deterministic().sample()
        action = out["actions"][0].detach().numpy()
        theirs = unsquash_action(action, view.actions)
        mine = actor.select_action(raw, agent, mask)
        worst = max(worst, float(np.abs(np.asarray(theirs, np.float64) - mine).max()))
    found[name] = worst
print(json.dumps(found))
"""
)


def test_actions_are_those_of_rllibs_own_inference(rllib, trained):
    found = rllib.says(SAME, trained)
    assert found == {"game": 0, "central": 0, "values": 0, "real": pytest.approx(0, abs=1e-5)}


PLAYED = (
    ALONE
    + """
found = {}
for name in ("game", "real", "central", "memory"):
    actor = create_ray_actor(RayPolicyConfig(ROOT / name, deterministic=False))
    config = EvaluationConfig(actor=actor, num_episodes=20, seed=7, output_dir=name)
    results = run_evaluation(config)
    slow = PolicyEvaluator(config, at_once=1)
    found[name] = {"alone": slow.results(list(slow.play())) == results, "summary": results.summary()}
trained = create_ray_actor(RayPolicyConfig(ROOT / "game", algorithm="ppo", env_id="tictactoe_v3"))
anyone = RandomActor({agent: trained.view_of(agent).actions for agent in trained.agents})
both = RayPolicyController({"player_1": trained, "player_2": anyone})
results = run_evaluation(EvaluationConfig(actor=both, num_episodes=30))
found["random"] = results.summary()
two = RayPolicyController.from_checkpoints({"player_1": ROOT / "game", "player_2": ROOT / "values"})
found["two"] = run_evaluation(EvaluationConfig(actor=two, num_episodes=1)).summary()["policies"]
short = EvaluationConfig(create_ray_actor(RayPolicyConfig(ROOT / "memory")), num_episodes=2, max_steps=3)
found["short"] = [[each.length, each.is_truncated] for each in run_evaluation(short).episodes]
assert not ray.is_initialized()
print(json.dumps(found))
"""
)


def test_an_evaluation_does_not_depend_on_how_many_episodes_are_played_at_once(rllib, trained):
    found = rllib.says(PLAYED, trained)
    for name in ("game", "real", "central", "memory"):
        assert found[name]["alone"], name
        summary = json.loads((rllib.folder / name / "summary.json").read_text())
        assert summary == found[name]["summary"]
        with (rllib.folder / name / "episodes.csv").open() as file:
            rows = list(csv.DictReader(file))
        assert [int(row["seed"]) for row in rows] == list(range(7, 27))
        assert sum(float(row["return"]) for row in rows) / 20 == pytest.approx(summary["return_mean"])
        with (rllib.folder / name / "agents.csv").open() as file:
            agents = {row["agent"]: row for row in csv.DictReader(file)}
        assert agents.keys() == summary["policies"].keys()
        assert all(row["episodes"] == "20" for row in agents.values())
    assert found["memory"]["summary"]["return_mean"] == found["memory"]["summary"]["length_mean"]
    assert found["real"]["summary"]["truncated"] == 20
    random = found["random"]
    assert random["policies"]["player_2"] == "random"
    assert sum(random["win_rates"].values()) * 30 + random["draws"] == pytest.approx(30)
    assert [Path(path).parts[-3] for path in found["two"].values()] == ["game", "values"]
    assert found["short"] == [[3, True], [3, True]]


REFUSED = (
    ALONE
    + """
import shutil
foreign = Path("foreign")
shutil.copytree(ROOT / "game" / "checkpoints", foreign)
step = next(foreign.iterdir())
(step / "mosaic.json").rename("kept.json")
about = json.loads(Path("kept.json").read_text())
module = step / "learner_group/learner/rl_module/main"

def why(act):
    try:
        act()
    except WorkerError as error:
        return str(error)
    return "accepted"

def load(**given):
    return create_ray_actor(RayPolicyConfig(**{"checkpoint_path": step, **given}))

said = {"foreign": why(load), "missing": why(lambda: load(checkpoint_path="/no/such/folder"))}
(step / "mosaic.json").write_text(json.dumps({**about, "format": "mosaic-xuance"}))
said["other worker"] = why(load)
(step / "mosaic.json").write_text(json.dumps(about))
said["algorithm"] = why(lambda: load(algorithm="DQN"))
said["env_id"] = why(lambda: load(env_id="chess_v6"))
actor = load()
board = np.zeros((3, 3, 2))
said["agent"] = why(lambda: actor.select_action(board, "player_3"))
said["observation"] = why(lambda: actor.select_action(np.zeros(5), "player_1"))
said["mask"] = why(lambda: actor.select_action(board, "player_1", np.ones(4)))
said["no action"] = why(lambda: actor.select_action(board, "player_1", np.zeros(9)))
said["nobody"] = why(lambda: run_evaluation(EvaluationConfig(RayPolicyController({"player_1": actor}))))
said["wrong seat"] = why(lambda: RayPolicyController({"agent_0": actor}))
said["other task"] = why(lambda: run_evaluation(EvaluationConfig(actor, environment=resolve("connect_four_v3"))))
said["no episodes"] = why(lambda: run_evaluation(EvaluationConfig(actor, num_episodes=0)))
(module / "module_state.pkl").write_bytes(b"nothing")
said["damaged"] = why(load)
shutil.rmtree(module)
said["half"] = why(load)
print(json.dumps(said))
"""
)


def test_what_is_no_policy_for_the_task_is_refused_with_the_reason(rllib, trained):
    said = rllib.says(REFUSED, trained)
    expected = {
        "foreign": "checkpoint_path: .*no mosaic.json",
        "missing": "checkpoint_path: .*no such folder",
        "other worker": "checkpoint_path: .*mosaic-xuance",
        "algorithm": "algorithm: .*PPO, not DQN",
        "env_id": "env_id: .*tictactoe_v3, not chess_v6",
        "agent": "player_3.*player_1, player_2",
        "observation": "observation",
        "mask": "action_mask|observation",
        "no action": "no action is legal",
        "nobody": "player_2 .*no policy",
        "wrong seat": "agents.agent_0",
        "other task": "agents: player_0",
        "no episodes": "num_episodes",
        "damaged": "checkpoint_path: .*main",
        "half": "checkpoint_path: .*no RLModule 'main'",
    }
    assert said.keys() == expected.keys()
    for name, pattern in expected.items():
        assert said[name] != "accepted", name
        assert re.search(pattern, said[name], re.DOTALL), (name, said[name])


def test_a_run_evaluates_a_checkpoint_and_keeps_the_files(rllib, trained):
    given = {"mode": "policy_eval", "policy_path": str(trained / "game"), "eval_episodes": 6, "seed": 3}
    events = rllib.run(**given, opponents={"player_2": "random"}, record="every=5")
    episodes = [event for event in events if event["event"] == "episode"]
    assert [event["seed"] for event in episodes] == list(range(3, 9))
    assert all(sum(event["returns"].values()) == 0 for event in episodes)
    (loaded,) = [event for event in events if event["event"] == "checkpoint_loaded"]
    assert loaded["trained_steps"] == 100
    kinds = {event["path"]: event["kind"] for event in events if event["event"] == "artifact"}
    assert {path for path, kind in kinds.items() if kind == "evaluation"} == {
        f"evaluation/{name}" for name in ("summary.json", "episodes.csv", "agents.csv")
    }
    assert "video" in kinds.values()
    summary = json.loads((rllib.folder / "evaluation" / "summary.json").read_text())
    assert events[-1]["summary"] == summary
    assert summary["policies"]["player_2"] == "random"
    for opponents, words in (
        ({"player_9": "random"}, "opponents.player_9: .*player_1, player_2"),
        ({"player_2": str(trained / "memory")}, "opponents.player_2: .*CartPole-v1"),
        ({"player_2": str(trained)}, "opponents.player_2: .*no mosaic.json"),
    ):
        (refused,) = rllib.run(code=2, **given, opponents=opponents)
        assert re.search(words, refused["error"]), refused


def test_agents_play_elsewhere_in_several_lanes_and_inside(rllib, trained):
    board, nine = [[[0, 0]] * 3] * 3, {"type": "Discrete", "n": 9}
    inner = {"type": "Box", "low": 0, "high": 1, "shape": [3, 3, 2], "dtype": "int8"}
    mask = {"type": "Box", "low": 0, "high": 1, "shape": [9], "dtype": "int8"}
    whole = {"type": "Dict", "spaces": {"observation": inner, "action_mask": mask}}
    join = {"cmd": "init_agent", "agent": "player_1", "action_space": nine}
    only = [[int(place == legal) for place in range(9)] for legal in range(9)]
    seat = {"agent": "player_1"}
    answers = rllib.talk(
        {**join, "observation_space": whole, "lanes": 3},
        {"cmd": "begin_episode", **seat, "seed": 1, "lane": 2},
        {"cmd": "select_action", **seat, "observation": board, "action_mask": only[5], "lane": 2},
        {"cmd": "select_actions", **seat, "observations": [board] * 3, "lanes": [0, 1, 2], "action_masks": only[2:5]},
        {"cmd": "select_action", **seat, "observation": {"observation": board, "action_mask": only[7]}},
        {"cmd": "reset", "seed": 4},
        {"cmd": "step"},
        {"cmd": "step", "action": {"player_1": 0}},
        {**join, "action_space": {"type": "Discrete", "n": 4}},
        {**join, "observation_space": {"type": "Box", "low": 0, "high": 1, "shape": [4], "dtype": "float32"}},
        {**join, "agent": "player_7"},
        {"cmd": "select_action", "agent": "player_2", "observation": board},
        {"cmd": "stop"},
        mode="interactive",
        policy_path=str(trained / "game"),
    )
    assert [answer["type"] for answer in answers] == [
        *("agent_ready", "episode_ready", "action", "actions", "action", "reset", "step"),
        *(["error"] * 5),
        "stopped",
    ]
    assert (answers[0]["lanes"], answers[2]["action"], answers[3]["actions"]) == (3, 5, [2, 3, 4])
    assert answers[4]["action"] == 7
    assert answers[6]["action"].keys() == {"player_1"}
    for answer, words in zip(
        answers[7:12], ("player_2", "Discrete(9)", "(3, 3, 2)", "player_7", "init_agent"), strict=True
    ):
        assert words in answer["message"]


def test_without_a_checkpoint_an_untrained_policy_acts(rllib):
    config = {"env_id": "waterworld_v4", "algorithm": "PPO", "total_timesteps": 1, "seed": 1}
    ask = [{"cmd": "reset", "seed": 2}, {"cmd": "step"}]
    first, second = (rllib.talk(*ask, {"cmd": "stop"}, **config) for _ in range(2))
    assert [answer["type"] for answer in first] == ["reset", "step", "stopped"]
    assert first == second, "the same seed gives the same policy"
    (refused,) = rllib.talk({"cmd": "stop"}, code=2, mode="interactive")
    assert refused["message"].startswith("policy_path:")


def test_an_arena_gets_the_same_episodes_one_by_one_and_eight_at_once(make_rllib, build, trained, tmp_path):
    rllib, arena = make_rllib(tmp_path), build("arena", "ray")
    use = {"worker": "ray", "profile": "default", "argv": [rllib.python, "-m", "ray_worker.cli"]}
    config = {
        "environment": {"id": "tictactoe_v3", "family": "aec"},
        "operators": {
            "ppo": {"worker": "ray", "checkpoint": str(trained / "game"), "config": {"deterministic": False}},
            "random": {"worker": "random"},
        },
        "lineups": [{"name": "first", "agents": {"player_1": "ppo", "player_2": "random"}}],
        "play": [{"lineup": "first", "episodes": [0, 12]}],
    }
    played = []
    for lanes in (1, 8):
        document = {
            "run_id": "arena",
            "metadata": {"worker": {"config": {**config, "lanes": lanes}}},
            "uses": [{**use, "environ": rllib.environ}],
        }
        folder = tmp_path / f"lanes-{lanes}"
        folder.mkdir()
        (folder / "worker.json").write_text(json.dumps(document))
        environ = {**rllib.environ, "PYTHONPATH": arena["site"]}
        done = subprocess.run(
            [arena["python"], "-m", "arena_worker.cli", "--config", "worker.json"],
            cwd=folder,
            env=environ,
            capture_output=True,
            text=True,
            check=False,
            timeout=280,
        )
        assert done.returncode == 0, done.stderr
        events = [json.loads(line) for line in done.stdout.splitlines()]
        assert events[-1]["summary"]["failures"] == events[-1]["summary"]["refused"] == 0
        played.append({event["episode"]: event["action_hash"] for event in events if event["event"] == "episode"})
    assert played[0] == played[1]
    assert len(set(played[0].values())) > 1
    assert played[0].keys() == set(range(12))
