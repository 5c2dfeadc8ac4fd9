"""The seven algorithms that are named by the project: trained, saved, resumed, evaluated, and asked one by one."""

import json

import pytest
from xuance_runs import ON_POLICY, QUICK, RUNNER, SPREAD, named

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

OFF_POLICY = ("qmix", "maddpg", "vdn", "iql")
ALGORITHMS = dict.fromkeys(OFF_POLICY, QUICK) | dict.fromkeys(("mappo", "ippo", "coma"), ON_POLICY)
WEIGHTS = {step: f"checkpoints/step-{step}/model.pth" for step in (600, 1000)}
SEVEN = (
    RUNNER
    + """
given, found = json.loads(sys.argv[1]), {}
for name, overrides in given["algorithms"].items():
    trained = events_of(name, **given["spread"], algorithm=name, running_steps=600, overrides=overrides)
    resumed = events_of(f"{name}-2", mode="resume_training", checkpoint_path=str(Path.cwd() / name), running_steps=400)
    where = str(Path.cwd() / f"{name}-2" / "checkpoints" / "step-1000")
    played = [
        events_of(f"{name}-eval-{n}", mode="policy_eval", policy_path=where, eval_episodes=3, seed=7) for n in range(2)
    ]
    found[name] = {"trained": trained, "resumed": resumed, "played": played}
print(json.dumps(found))
"""
)


@pytest.fixture(scope="module")
def seven(xuance_in, tmp_path_factory):
    """The folder in which all seven were trained, and their events by name."""
    worker = xuance_in(tmp_path_factory.mktemp("seven"))
    return worker.folder, worker.says(SEVEN, json.dumps({"spread": SPREAD, "algorithms": ALGORITHMS}))


@pytest.mark.parametrize("name", ALGORITHMS)
def test_it_trains_saves_resumes_loads_and_evaluates(seven, name):
    folder, runs = seven[0], seven[1][name]
    trained, resumed = runs["trained"], runs["resumed"]
    episodes = named(trained, "episode")
    assert len(episodes) == 24
    assert episodes[0]["returns"].keys() == {"agent_0", "agent_1", "agent_2"}
    values = {key: value for event in named(trained, "scalars") for key, value in event["values"].items()}
    assert any("loss" in key and isinstance(value, float) for key, value in values.items()), values
    assert {"learning_rate", "steps_per_second"} <= values.keys()
    assert [event["path"] for event in named(trained, "checkpoint_saved")] == ["checkpoints/step-600"]
    assert trained[-1]["summary"]["steps"] == 600

    (loaded,) = named(resumed, "checkpoint_loaded")
    assert loaded["step"] == 600
    assert min(event["step"] for event in named(resumed, "episode")) > 600
    assert named(resumed, "episode")[0]["episode"] == 24
    assert resumed[-1]["summary"]["steps"] == 1000
    assert resumed[-1]["summary"]["updates"] > 0
    is_told = any("replay memory is not restored" in event["message"] for event in named(resumed, "log"))
    assert is_told == (name in OFF_POLICY)
    before, after = ((folder / part).read_bytes() for part in (f"{name}/{WEIGHTS[600]}", f"{name}-2/{WEIGHTS[1000]}"))
    assert before != after, "it learned on"

    first, second = ([event["return"] for event in named(played, "episode")] for played in runs["played"])
    assert first == second, "the same seeds give the same episodes"
    assert runs["played"][0][-1]["summary"]["episodes"] == 3
    assert runs["played"][0][-1]["summary"]["trained_steps"] == 1000


REFERENCE = """
import json, sys
from pathlib import Path
import numpy as np
import torch
from xuance_worker.policies import load_policy
torch.set_num_threads(1)
policy, _ = load_policy(Path(sys.argv[1]), "policy_path")
agent, spaces = policy._agent, policy.task.spaces  # XuanCe's own agent
draw = np.random.default_rng(0)
extra = {"deterministic": True} if agent.on_policy else {}
out = []
for size in map(int, sys.argv[2:]):
    batch = [
        {name: draw.normal(size=space.shape).astype(np.float32) for name, space in spaces.observations.items()}
        for _ in range(size)
    ]
    with torch.no_grad():
        actions = agent.get_actions(obs_dict=batch, test_mode=True, **extra)["actions"]
    for name in spaces.agents:
        seen, acts = [each[name].tolist() for each in batch], [np.asarray(each[name]).tolist() for each in actions]
        out.append({"agent": name, "observations": seen, "actions": acts})
print(json.dumps(out))
"""
BOX = {"type": "Box", "low": "-Infinity", "high": "Infinity", "shape": [18], "dtype": "float32"}
DISCRETE = {"type": "Discrete", "n": 5}
CONTINUOUS = {"type": "Box", "low": 0.0, "high": 1.0, "shape": [5], "dtype": "float32"}
AGENTS = ("agent_0", "agent_1", "agent_2")


def join(space, lanes, agent="agent_0"):
    return {"cmd": "init_agent", "agent": agent, "observation_space": BOX, "action_space": space, "lanes": lanes}


@pytest.mark.parametrize(("name", "space"), [("vdn", DISCRETE), ("maddpg", CONTINUOUS), ("ippo", CONTINUOUS)])
def test_one_agent_asked_alone_gets_bit_for_bit_what_get_actions_gives_it_in_a_batch_of_the_same_size(
    seven, xuance, name, space
):
    path = seven[0] / name / "checkpoints" / "step-600"
    expected = xuance.says(REFERENCE, path, 1, 2, 3, 8, 32)
    assert {len(row["actions"]) for row in expected} == {1, 2, 3, 8, 32}
    ask = [
        {
            "cmd": "select_actions",
            "agent": row["agent"],
            "lanes": list(range(len(row["actions"]))),
            "observations": row["observations"],
        }
        for row in expected
    ]
    single = [
        {"cmd": "select_action", "agent": row["agent"], "observation": row["observations"][0]} for row in expected[:3]
    ]
    joins = [join(space, 32, agent) for agent in AGENTS]
    answers = xuance.talk(*joins, *ask, *single, {"cmd": "stop"}, mode="interactive", policy_path=str(path))
    assert answers[:3] == [{"type": "agent_ready", "lanes": 32}] * 3
    for answer, row in zip(answers[3 : 3 + len(ask)], expected, strict=True):
        assert answer == {"type": "actions", "actions": row["actions"]}, len(row["actions"])
    assert [answer["action"] for answer in answers[-4:-1]] == [row["actions"][0] for row in expected[:3]]


RECURRENT = {"use_rnn": True, "representation": "Basic_RNN"}
MASAC = {**SPREAD, "mode": "interactive", "algorithm": "masac", "overrides": RECURRENT}
STEPS = [[(7 * number + 3 * place) % 11 / 10 for place in range(18)] for number in range(4)]


def test_lanes_of_a_policy_that_samples_and_remembers_do_not_see_each_other(xuance):
    begin = [{"cmd": "begin_episode", "agent": "agent_0", "seed": 5 + lane, "lane": lane} for lane in range(2)]
    again = [{**begin[1], "seed": 5}]
    ask = {"cmd": "select_actions", "agent": "agent_0"}
    zigzag = [
        {**ask, "lanes": [0], "observations": STEPS[:1]},
        {**ask, "lanes": [0, 1], "observations": [STEPS[1], STEPS[0]]},
        {**ask, "lanes": [1, 0], "observations": [STEPS[1], STEPS[2]]},
    ]
    single = {"cmd": "select_action", "agent": "agent_0"}
    alone = [{**single, "lane": 0, "observation": seen} for seen in STEPS[:3]]
    other = [{**single, "lane": 1, "observation": seen} for seen in STEPS[:2]]
    requests = [join(CONTINUOUS, 2), *begin, *zigzag, *begin, *alone, *other, *again, *other]
    answers = xuance.talk(*requests, **MASAC)
    (a0,), (a1, b0), (b1, a2) = (answer["actions"] for answer in answers[3:6])
    apart = [answer["action"] for answer in answers[8:13]]
    assert apart == [a0, a1, a2, b0, b1]
    assert a0 != b0, "each lane has its own seed"
    assert [answer["action"] for answer in answers[14:]] == [a0, a1], "the seed decides, not the lane"


MEMORY = """
import json, sys
import numpy as np
import torch
from mosaic_worker.config import parse_config
from xuance_worker.config import XuanCeWorkerConfig
from xuance_worker.policies import untrained_policy
from xuance_worker.task import task_of
config, steps = json.loads(sys.argv[1]), np.array(json.loads(sys.argv[2]), np.float32)
policy = untrained_policy(task_of(parse_config(XuanCeWorkerConfig, config, {})), 1)

def memory(lane, place):
    return policy._alone["agent_1", lane].hidden["agent_0"][place][:, 1]  # the network is shared, row 1 is its own

def play(*turns):
    for lane in range(2):
        policy.begin_alone(0, "agent_1", lane)
    for turn in turns:
        policy.select_alone([steps[step] for _, step in turn], "agent_1", [lane for lane, _ in turn])
    return [memory(lane, place) for lane in range(2) for place in range(2)]

together = play([(0, 0)], [(0, 1), (1, 0)], [(1, 3), (0, 2)])
apart = play([(0, 0)], [(0, 1)], [(0, 2)], [(1, 0)], [(1, 3)])
forgotten = play([(0, 2)], [(1, 3)])
print(json.dumps({
    "equal": all(torch.allclose(*pair, atol=1e-6) for pair in zip(together, apart)),
    "remembers": all(not torch.allclose(*pair, atol=1e-3) for pair in zip(together, forgotten)),
    "lanes_differ": not torch.allclose(together[0], together[2], atol=1e-3),
}))
"""


def test_each_lane_has_its_own_recurrent_state_of_hidden_and_cell(xuance):
    config = {**SPREAD, "run_id": "r", "mode": "interactive", "algorithm": "iql"}
    lstm = {**config, "overrides": {**RECURRENT, "rnn": "LSTM"}}
    found = xuance.says(MEMORY, json.dumps(lstm), json.dumps(STEPS))
    assert found == {"equal": True, "remembers": True, "lanes_differ": True}


def test_requests_that_a_policy_cannot_answer_are_refused(xuance):
    wide = {**join(CONTINUOUS, 1), "action_space": {"type": "Discrete", "n": 4}}
    ask = {"cmd": "select_action", "agent": "agent_0", "observation": [0.0] * 18}
    answers = xuance.talk(
        join(CONTINUOUS, 1, agent="agent_9"), wide, ask, join(CONTINUOUS, 1),
        {**ask, "lane": 1}, {**ask, "action_mask": [0, 1, 1, 1, 1]}, {**ask, "observation": [0.0] * 17}, ask,
        **MASAC,
    )  # fmt: skip
    assert [answer["type"] for answer in answers] == [*["error"] * 3, "agent_ready", *["error"] * 3, "action"]
    words = ("is none of agent_0", "was made for", "has not joined", "lane 1", "without action masks", "not values of")
    for answer, said in zip([each for each in answers if each["type"] == "error"], words, strict=True):
        assert said in answer["message"]
    talking = {"mode": "interactive", "algorithm": "commnet", **SPREAD}
    (refused,) = xuance.talk(join(DISCRETE, 1), **talking)
    assert "act on what others see" in refused["message"]
