"""What a training reports, saves and shows, whatever the algorithm."""

import json

import pytest
from xuance_runs import QUICK, RUNNER, SPREAD, VDN, named

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

EXPLORATION = (
    RUNNER
    + """
import xuance_worker.training as training
seen = []
restore = training._restore
def spy(context, agent, start):
    restore(context, agent, start)
    seen.append((agent.current_step, agent.e_greedy, agent.start_training))
training._restore = spy
given = json.loads(sys.argv[1])
given["overrides"] |= {"decay_step_greedy": 1000, "start_greedy": 1.0, "end_greedy": 0.1}
events_of("one", **given)
events_of("two", mode="resume_training", checkpoint_path=str(Path.cwd() / "one"), running_steps=100)
print(json.dumps(seen))
"""
)


def test_a_resumed_training_explores_as_before_and_collects_experience_before_it_learns(xuance):
    fresh, resumed = xuance.says(EXPLORATION, json.dumps({**VDN, "running_steps": 200}))
    assert fresh == [0, 1.0, 100]
    about = json.loads((xuance.folder / "one" / "checkpoints" / "step-200" / "about.json").read_text())
    assert resumed == [200, about["exploration"]["e_greedy"], 300]
    assert 0.1 <= about["exploration"]["e_greedy"] < 0.9


SILENT = (
    RUNNER
    + """
given, found = json.loads(sys.argv[1]), {}
for name, config in given.items():
    found[name] = events_of(name, algorithm=name, checkpoint_every=200, running_steps=500, **config)
print(json.dumps(found))
"""
)


def test_loops_of_xuance_that_do_not_call_back_are_reported_and_saved(xuance):
    talking = {**SPREAD, "overrides": {"buffer_size": 4}}  # episodes, since these policies are recurrent
    drqn = {"env_id": "CartPole-v1", "parallels": 4, "seed": 1, "overrides": {"start_training": 100, "batch_size": 4}}
    found = xuance.says(SILENT, json.dumps({"CommNet": talking, "IC3Net": talking, "TarMAC": talking, "DRQN": drqn}))
    for name, events in found.items():
        episodes = named(events, "episode")
        if name == "DRQN":
            assert len(episodes) > 10
        else:
            assert [event["step"] for event in episodes] == [25 * (number + 1) for number in range(20)], name
            assert set(episodes[0]["returns"]) == {"agent_0", "agent_1", "agent_2"}, name
        assert events[-1]["summary"]["updates"] > 0, name
        assert any("loss" in key.lower() for event in named(events, "scalars") for key in event["values"]), name
        saved = [event["step"] for event in named(events, "checkpoint_saved")]
        assert len(saved) == 3, name
        assert saved[-1] == events[-1]["summary"]["steps"], name


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


TENSORBOARD = """
import json, sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
read = EventAccumulator(sys.argv[1]).Reload()
print(json.dumps({tag: [event.step for event in read.Scalars(tag)] for tag in read.Tags()["scalars"]}))
"""


def test_frames_videos_and_tensorboard_of_one_training(xuance):
    lane = xuance.folder / "lane"
    lane.mkdir()
    xuance.environ["MOSAIC_FASTLANE_DIR"] = str(lane)
    frames = {"fastlane_video_mode": "grid", "fastlane_max_dim": 100, "fastlane_interval_ms": 1, "record": "every=2"}
    events = xuance.run(**{**VDN, "running_steps": 200}, **frames)
    # 100 x 100 pixels of each of the four environments of the grid.
    assert (lane / "main.ring").stat().st_size > 100 * 100 * 3
    videos = [event["path"] for event in named(events, "artifact") if event["kind"] == "video"]
    assert b"acTL" in (xuance.folder / videos[0]).read_bytes(), "it is animated"
    manifest = json.loads((xuance.folder / "analytics.json").read_text())
    assert set(manifest["videos"]) == set(videos)
    (log,) = manifest["tensorboard"]
    written = xuance.says(TENSORBOARD, xuance.folder / log)
    losses = next(steps for tag, steps in written.items() if "loss" in tag.lower())
    assert (losses[0], losses[-1]) == (100, 196), "an update every four steps, from start_training on"
    assert "it/s" in xuance.log, "XuanCe's progress bar is in the log"


DIVERGES = (
    RUNNER
    + """
try:
    events_of("run", **json.loads(sys.argv[1]))
except WorkerError as error:
    print(json.dumps(str(error)))
"""
)


def test_a_loss_that_is_no_number_ends_the_run_with_that_reason(xuance):
    overrides = {**QUICK, "use_grad_clip": False}
    said = xuance.says(
        DIVERGES, json.dumps({**VDN, "running_steps": 20_000, "learning_rate": 1e30, "overrides": overrides})
    )
    assert said.startswith("loss is ")
    assert "try a smaller learning_rate" in said


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
