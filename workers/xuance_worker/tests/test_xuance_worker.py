"""The XuanCe worker: seven algorithms from training to evaluation, one policy asked alone, and what is refused."""

import json

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

SPREAD = {"env_id": "simple_spread_v3", "parallels": 4, "seed": 1}
QUICK = {"start_training": 100, "training_frequency": 4, "batch_size": 32, "buffer_size": 2048}
VDN = {**SPREAD, "algorithm": "vdn", "running_steps": 600, "overrides": QUICK}

# One process does all: importing XuanCe takes longer than these trainings.
RUNNER = """
import json, os, sys
from pathlib import Path
from mosaic_worker.config import parse_config
from mosaic_worker.context import RunContext
from mosaic_worker.emitter import Emitter
from mosaic_worker.errors import ConfigError
from mosaic_worker.stop import Stop
from xuance_worker import get_worker_metadata
from xuance_worker.config import XuanCeWorkerConfig
from xuance_worker.runtime import preflight, run

def events_of(name, **given):
    folder = Path.cwd() / name
    folder.mkdir()
    journal = os.open(folder / "journal", os.O_CREAT | os.O_WRONLY)
    config = parse_config(XuanCeWorkerConfig, {"run_id": name, **given}, {})
    plan = preflight(config)
    run(RunContext(get_worker_metadata(), config, Emitter(journal), Stop(), folder, plan=plan))
    return [json.loads(line) for line in (folder / "journal").read_text().splitlines()]

def refusal(given):
    try:
        preflight(parse_config(XuanCeWorkerConfig, {"run_id": "r", **given}, {}))
    except ConfigError as error:
        return str(error)
    return "accepted"
"""

SEVEN = (
    RUNNER
    + """
given, found = json.loads(sys.argv[1]), {}
for name, overrides in given["algorithms"].items():
    trained = events_of(name, **given["spread"], algorithm=name, running_steps=600, overrides=overrides)
    resumed = events_of(f"{name}-2", mode="resume_training", checkpoint_path=str(Path.cwd() / name), running_steps=200)
    where = str(Path.cwd() / f"{name}-2" / "checkpoints" / "step-800")
    played = [
        events_of(f"{name}-eval-{n}", mode="policy_eval", policy_path=where, eval_episodes=3, seed=7) for n in range(2)
    ]
    found[name] = {"trained": trained, "resumed": resumed, "played": played}
print(json.dumps(found))
"""
)


def named(events, name):
    return [event for event in events if event["event"] == name]


def test_all_seven_train_save_resume_and_evaluate(xuance):
    on_policy = {"buffer_size": 200}
    algorithms = dict.fromkeys(("qmix", "maddpg", "vdn", "iql"), QUICK) | dict.fromkeys(
        ("mappo", "ippo", "coma"), on_policy
    )
    found = xuance.says(SEVEN, json.dumps({"spread": SPREAD, "algorithms": algorithms}))
    for name, runs in found.items():
        trained, resumed = runs["trained"], runs["resumed"]
        episodes = named(trained, "episode")
        assert len(episodes) == 24, name
        assert episodes[0]["returns"].keys() == {"agent_0", "agent_1", "agent_2"}, name
        values = {key: value for event in named(trained, "scalars") for key, value in event["values"].items()}
        assert any("loss" in key and isinstance(value, float) for key, value in values.items()), (name, values)
        assert {"learning_rate", "steps_per_second"} <= values.keys(), name
        assert [event["path"] for event in named(trained, "checkpoint_saved")] == ["checkpoints/step-600"], name
        assert trained[-1]["summary"]["steps"] == 600, name
        (loaded,) = named(resumed, "checkpoint_loaded")
        assert loaded["step"] == 600, name
        assert min(event["step"] for event in named(resumed, "episode")) > 600, name
        assert named(resumed, "episode")[0]["episode"] == 24, name
        is_told = any("replay memory is not restored" in event["message"] for event in named(resumed, "log"))
        assert is_told == (name in {"qmix", "maddpg", "vdn", "iql"}), name
        first, second = ([event["return"] for event in named(played, "episode")] for played in runs["played"])
        assert first == second, f"{name}: the same seeds give the same episodes"
        assert runs["played"][0][-1]["summary"]["episodes"] == 3, name


EXPLORATION = (
    RUNNER
    + """
import xuance_worker.training as training
seen = []
restore = training._restore
def spy(context, agent, start):
    restore(context, agent, start)
    seen.append((agent.current_step, agent.e_greedy))
training._restore = spy
given = json.loads(sys.argv[1])
given["overrides"] |= {"decay_step_greedy": 1000, "start_greedy": 1.0, "end_greedy": 0.1}
events_of("one", **given)
events_of("two", mode="resume_training", checkpoint_path=str(Path.cwd() / "one"), running_steps=100)
print(json.dumps(seen))
"""
)


def test_a_resumed_training_continues_the_schedule_of_exploration(xuance):
    (_, fresh), (step, resumed) = xuance.says(EXPLORATION, json.dumps({**VDN, "running_steps": 200}))
    assert step == 200
    assert fresh == 1.0
    assert 0.1 <= resumed < 0.9


SAME = """
import json, sys
from pathlib import Path
import numpy as np
import torch
from xuance_worker.policies import load_policy
policy, _ = load_policy(Path(sys.argv[1]), "policy_path")
agent, spaces = policy._agent, policy.task.spaces
draw = np.random.default_rng(0)
out = []
for size in (1, 2, 7, 32):
    shapes = {a: space.shape for a, space in spaces.observations.items()}
    batch = [{a: draw.normal(size=shape).astype(np.float32) for a, shape in shapes.items()} for _ in range(size)]
    extra = {"deterministic": True} if getattr(agent, "on_policy", False) else {}
    with torch.no_grad():
        actions = agent.get_actions(obs_dict=batch, test_mode=True, **extra)["actions"]
    out += [
        {"size": size, "agent": a, "observation": seen[a].tolist(), "action": np.asarray(acts[a]).tolist()}
        for seen, acts in zip(batch, actions)
        for a in spaces.agents
    ]
print(json.dumps(out))
"""


@pytest.mark.parametrize(("name", "overrides"), [("vdn", QUICK), ("maddpg", QUICK), ("mappo", {"buffer_size": 200})])
def test_an_agent_asked_alone_acts_as_in_a_batch_of_all(xuance, name, overrides):
    xuance.run(**{**VDN, "algorithm": name, "running_steps": 400, "overrides": overrides})
    path = xuance.folder / "checkpoints" / "step-400"
    expected = xuance.says(SAME, path)
    box = {"type": "Box", "low": "-Infinity", "high": "Infinity", "shape": [18], "dtype": "float32"}
    actions = {"type": "Box", "low": 0.0, "high": 1.0, "shape": [5], "dtype": "float32"}
    if name == "vdn":
        actions = {"type": "Discrete", "n": 5}
    join = [
        {"cmd": "init_agent", "agent": f"agent_{n}", "observation_space": box, "action_space": actions}
        for n in range(3)
    ]
    ask = [{"cmd": "select_action", "agent": row["agent"], "observation": row["observation"]} for row in expected]
    answers = xuance.talk(*join, *ask, {"cmd": "stop"}, mode="interactive", policy_path=str(path))
    assert [answer["type"] for answer in answers[:3]] == ["agent_ready"] * 3
    for answer, row in zip(answers[3:-1], expected, strict=True):
        # On an AMD EPYC, MKL_CBWR does not make continuous results independent of the batch.
        is_exact = name == "vdn" or row["size"] == 1
        assert answer["action"] == (row["action"] if is_exact else pytest.approx(row["action"], abs=1e-5))


def test_sigterm_saves_a_checkpoint_and_prints_stay_out_of_the_journal(xuance):
    code, events = xuance.stop_after("scalars", **{**VDN, "running_steps": 1_000_000})
    assert code == 143
    assert events[-1]["event"] == "run_cancelled"
    saved = named(events, "checkpoint_saved")[-1]
    about = json.loads((xuance.folder / saved["path"] / "about.json").read_text())
    assert (about["agent"], about["step"], about["settings"]["batch_size"]) == ("VDN", saved["step"], 32)
    artifacts = {event["kind"] for event in named(events, "artifact")}
    assert artifacts == {"tensorboard", "manifest"}
    manifest = json.loads((xuance.folder / "analytics.json").read_text())
    assert manifest["checkpoints"] == [saved["path"]]
    assert (xuance.folder / manifest["tensorboard"][0]).is_dir()


def test_a_recorded_episode_is_a_video(xuance):
    events = xuance.run(**{**VDN, "running_steps": 200}, record="every=2")
    videos = [event for event in named(events, "artifact") if event["kind"] == "video"]
    assert videos
    assert (xuance.folder / videos[0]["path"]).read_bytes().startswith(b"\x89PNG")


MANY = (
    RUNNER
    + """
print(json.dumps([refusal(given) for given in json.loads(sys.argv[1])]))
"""
)


def test_what_cannot_run_is_refused_before_it_starts(xuance):
    (xuance.folder / "checkpoints").mkdir()
    broken = xuance.folder / "checkpoints" / "step-5"
    broken.mkdir()
    (broken / "about.json").write_text('{"format": "mosaic-xuance", "version": 1}')
    (xuance.folder / "bad.yaml").write_text("- no mapping")
    cases = [
        ({**VDN, "algorithm": "mapo"}, "algorithm", "MAPPO"),
        ({**VDN, "algorithm": "npg", "env_id": "CartPole-v1"}, "algorithm", "22 GB"),
        ({**VDN, "algorithm": "dcg"}, "algorithm", "torch_scatter"),
        ({**VDN, "env_id": "simple_spred_v3"}, "env_id", "simple_spread_v3"),
        ({**VDN, "env_id": "simple_tag_v3"}, "algorithm", "opponents"),
        ({**VDN, "env_id": "CartPole-v1"}, "algorithm", "one agent"),
        ({**VDN, "algorithm": "dqn", "env_id": "Pendulum-v1"}, "algorithm", "discrete"),
        ({**VDN, "env": "sisl"}, "env", "mpe"),
        ({**VDN, "algorithm": "coma", "env_id": "simple_speaker_listener_v4", "overrides": {}}, "algorithm", "alike"),
        (
            {**VDN, "env_id": "simple_speaker_listener_v4", "overrides": {"use_parameter_sharing": True}},
            "overrides.use_parameter_sharing",
            "differ",
        ),
        ({**VDN, "overrides": {"gama": 0.9}}, "overrides.gama", "gamma"),
        ({**VDN, "overrides": {"gamma": "high"}}, "overrides.gamma", "0.99"),
        ({**VDN, "overrides": {"seed": 3}}, "overrides.seed", "give it as seed"),
        ({**VDN, "running_steps": 0}, "running_steps", "needs it"),
        ({**VDN, "backend": "tensorflow"}, "backend", "torch"),
        ({**VDN, "device": "cuda:7"}, "device", "GPU"),
        ({**VDN, "method": "qmix"}, "method", "give one"),
        ({**VDN, "config_path": str(xuance.folder / "bad.yaml")}, "config_path", "mapping"),
        ({"mode": "policy_eval", "policy_path": str(xuance.folder / "none")}, "policy_path", "no such folder"),
        ({"mode": "policy_eval", "policy_path": str(xuance.folder)}, "policy_path", "damaged"),
    ]
    said = xuance.says(MANY, json.dumps([case for case, _, _ in cases]))
    for text, (case, field, words) in zip(said, cases, strict=True):
        assert text.startswith(f"{field}:"), (case, text)
        assert words in text, (case, text)


def test_the_seeds_example_is_accepted_with_its_names_in_any_case(xuance):
    example = {"learning_rate": 5e-4, "batch_size": 256, "backend": "torch", "running_steps": 100}
    others = [{"algorithm": "PPO_Clip", "env_id": "CartPole-v1"}, {"method": "Maddpg", "env_id": "simple_spread_v3"}]
    cases = [{**example, **case} for case in ({"algorithm": "mappo", "env_id": "simple_spread_v3"}, *others)]
    assert xuance.says(MANY, json.dumps(cases)) == ["accepted"] * 3


ACTIONS = """
import json
from argparse import Namespace
import numpy as np
from xuance_worker.wrappers import SeededMPE
settings = {"env_name": "mpe", "env_id": "simple_spread_v3", "env_seed": 1, "render_mode": None}
env = SeededMPE(Namespace(**settings, continuous_action=False))
env.reset()
actions = {agent: np.array(3) for agent in env.agents}
env.step(actions)
print(json.dumps([int(action) for action in actions.values()]))
"""


def test_mpe_does_not_change_the_actions_that_xuance_stores(xuance):
    assert xuance.says(ACTIONS) == [3, 3, 3]
