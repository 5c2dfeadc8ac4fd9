"""The baseline worker in its locked environment: discovery, compliance, runs, interactive mode, frames, videos."""

import json

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

MASKED = {"cmd": "select_action", "observation": [0], "agent": "p", "action_mask": [0, 0, 1, 0]}


def returns(events):
    return {event["seed"]: event["return"] for event in events["episode"]}


def init(space, seed=3, agent="p"):
    return {"cmd": "init_agent", "observation_space": None, "action_space": space, "seed": seed, "agent": agent}


def test_the_entry_point_is_found_when_installed_with_target(baseline):
    done = baseline.module("mosaic_worker.discover", "baseline")
    card = json.loads(done.stdout)["baseline"]
    assert card["module"] == "baseline_worker"
    assert card["metadata"]["upstream_version"] == "1.2.3"
    assert card["config_schema"]["properties"]["agent"]["enum"] == ["random", "passive"]


def test_the_compliance_suite_passes(baseline):
    done = baseline.module("mosaic_worker.check", "baseline", "--json")
    report = json.loads(done.stdout)
    assert {check["id"]: check["status"] for check in report["checks"] if check["status"] != "pass"} == {
        "resume": "skip"
    }
    assert done.returncode == 0


def test_a_run_reports_steps_episodes_scalars_and_a_summary(baseline):
    events = baseline.run(agent="random", env_id="CartPole-v1", episodes=12, seed=7)
    (started,) = events["run_started"]
    assert (started["run_id"], started["worker"], started["env_id"], started["seed"]) == (
        "r1",
        "baseline",
        "CartPole-v1",
        7,
    )
    assert started["total_episodes"] == 12
    assert started["task"] == "random agent on CartPole-v1"
    assert set(started["versions"]) == {"python", "gymnasium"}
    assert [event["seed"] for event in events["episode"]] == list(range(7, 19))
    assert [event["step"] for event in events["step"]] == list(range(1, len(events["step"]) + 1))
    assert sum(event["length"] for event in events["episode"]) == len(events["step"])
    assert sum(event["reward"] for event in events["step"]) == sum(returns(events).values())
    assert [event["step"] for event in events["scalars"]] == [
        events["episode"][9]["step"],
        events["episode"][11]["step"],
    ]
    assert events["run_completed"][0]["summary"]["return_mean"] == pytest.approx(sum(returns(events).values()) / 12)


def test_an_episode_depends_only_on_its_own_seed_so_runs_can_be_sharded(baseline):
    whole = returns(baseline.run(episodes=6, seed=7, step_events=False))
    shard = returns(baseline.run(episodes=3, seed=10, step_events=False))
    assert shard == {seed: whole[seed] for seed in (10, 11, 12)}
    assert len(set(whole.values())) > 1


def test_step_events_can_be_switched_off_and_steps_capped(baseline):
    events = baseline.run(episodes=100, max_steps=100, seed=1, step_events=False)
    assert "step" not in events
    assert events["run_started"][0]["total_steps"] == 100
    assert events["run_completed"][0]["step"] == 100
    assert sum(event["length"] for event in events["episode"]) <= 100


def test_the_passive_agent_does_nothing(baseline):
    cartpole = baseline.run(agent="passive", episodes=1, seed=1)
    assert {event["action"] for event in cartpole["step"]} == {0}
    pendulum = baseline.run(agent="passive", env_id="Pendulum-v1", episodes=1, seed=1)
    assert [event["action"] for event in pendulum["step"]] == [[0.0]] * 200


def test_action_masks_of_the_environment_are_followed(baseline):
    events = baseline.run(env_id="Taxi-v3", episodes=2, seed=1, step_events=True)
    # Taxi gives -10 for an illegal pick-up or drop-off, which the mask excludes.
    assert {event["reward"] for event in events["step"]} <= {-1, 20}


def test_an_unknown_environment_is_a_configuration_error_with_near_names(baseline):
    (failed,) = baseline.run(code=2, env_id="CartPol-v1")["run_failed"]
    assert failed["category"] == "configuration"
    assert "env_id: 'CartPol-v1'" in failed["error"]
    assert "did you mean 'CartPole-v1'" in failed["error"]


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"env_id": "no_such_module:X-v0"}, "module 'no_such_module' cannot be imported"),
        ({"env_kwargs": {"gravity": "up", "nope": 1}}, "CartPole-v1 cannot be made"),
        ({"episodes": 0}, "episodes: 0 is not allowed"),
        ({"agent": "clever"}, "input should be 'random' or 'passive'"),
    ],
)
def test_what_cannot_run_is_refused(baseline, config, message):
    assert message in baseline.run(code=2, **config)["run_failed"][0]["error"]


def test_requests_drive_an_environment(baseline):
    reset = {"cmd": "reset", "seed": 5}
    answers = baseline.talk(
        {"cmd": "step"}, reset, {"cmd": "step"}, {"cmd": "step", "action": 1}, reset, {"cmd": "step"}
    )
    assert [answer["type"] for answer in answers] == ["error", "reset", "step", "step", "reset", "step"]
    assert answers[0]["message"] == "no episode is running: send reset first"
    assert answers[1] == answers[4]
    assert answers[2] == answers[5]
    assert answers[3]["action"] == 1


def test_interactive_episodes_match_those_of_a_run(baseline):
    events = baseline.run(episodes=1, seed=5)
    answers = baseline.talk({"cmd": "reset", "seed": 5}, *[{"cmd": "step"}] * len(events["step"]), {"cmd": "step"})
    steps = [answer for answer in answers if answer["type"] == "step"]
    assert [step["action"] for step in steps] == [event["action"] for event in events["step"]]
    assert steps[-1]["terminated"]
    assert answers[-1]["type"] == "error"


@pytest.mark.parametrize("action", [7, "left", [1], None])
def test_an_action_outside_the_space_is_refused_and_the_episode_goes_on(baseline, action):
    answers = baseline.talk({"cmd": "reset"}, {"cmd": "step", "action": action}, {"cmd": "step", "action": 0})
    assert answers[1]["type"] == ("step" if action is None else "error")
    assert answers[2]["type"] == "step"


@pytest.mark.parametrize("agent", ["random", "passive"])
def test_an_outside_environment_gets_allowed_actions(baseline, agent):
    answers = baseline.talk(init({"type": "Discrete", "n": 4, "start": 0}), *[MASKED] * 20, agent=agent)
    assert {answer["action"] for answer in answers[1:]} == {2}


def test_agents_live_side_by_side_and_repeat_by_seed(baseline):
    space = {"type": "Discrete", "n": 1000}
    requests = [init(space, seed, name) for name, seed in (("a", 1), ("b", 1), ("c", 2))]
    asked = [{"cmd": "select_action", "observation": 0, "agent": name} for name in "abcabc"]
    *ready, a, b, c, a2, b2, c2 = baseline.talk(*requests, *asked)
    assert [answer["type"] for answer in ready] == ["agent_ready"] * 3
    assert (a, a2) == (b, b2)
    assert (a, a2) != (c, c2)


@pytest.mark.parametrize(
    ("space", "noop"),
    [
        ({"type": "Discrete", "n": 3, "start": 2}, 2),
        ({"type": "Discrete", "n": 3, "start": -1}, 0),
        ({"type": "Box", "low": 1, "high": 3, "shape": [2], "dtype": "float32"}, [1.0, 1.0]),
        ({"type": "Box", "low": "-Infinity", "high": "Infinity", "shape": [1], "dtype": "float64"}, [0.0]),
        ({"type": "MultiDiscrete", "nvec": [2, 3]}, [0, 0]),
        ({"type": "MultiBinary", "n": 2}, [0, 0]),
        (
            {"type": "Dict", "spaces": {"a": {"type": "Tuple", "spaces": [{"type": "Discrete", "n": 2}]}}},
            {"a": [0]},
        ),
    ],
)
def test_the_passive_agent_has_a_noop_in_every_kind_of_space(baseline, space, noop):
    ready, action = baseline.talk(
        init(space), {"cmd": "select_action", "observation": 0, "agent": "p"}, agent="passive"
    )
    assert ready == {"type": "agent_ready"}
    assert action == {"type": "action", "action": noop}


def test_the_passive_agent_prefers_an_action_whose_name_means_noop(baseline):
    names = ["left", "right", "forward", "pickup", "drop", "toggle", "done"]
    named = {**init({"type": "Discrete", "n": 7}), "action_meanings": names}
    ask = {"cmd": "select_action", "observation": 0, "agent": "p"}
    answers = baseline.talk(named, ask, {**ask, "action_mask": [0, 1, 1, 1, 1, 1, 0]}, behavior="passive")
    assert [answer["action"] for answer in answers[1:]] == [6, 1]


def test_an_unknown_agent_is_an_error(baseline):
    (answer,) = baseline.talk({"cmd": "select_action", "observation": 0, "agent": "x"})
    assert answer["message"] == "agent 'x' is not known: send init_agent first"


@pytest.fixture
def frames(baseline, tmp_path):
    """Give the worker a folder for frames, as the platform does; return a function that describes the newest frame."""
    folder = tmp_path / "lane"
    folder.mkdir()
    baseline.environ["MOSAIC_FASTLANE_DIR"] = str(folder)

    def read():
        data = (folder / "main.ring").read_bytes()
        words = [int.from_bytes(data[at : at + 8], "little") for at in range(0, 256, 8)]
        published, state = words[11], words[10]
        start = 256 + (published - 1) % words[3] * words[4]
        slot = [int.from_bytes(data[at : at + 8], "little") for at in range(start, start + 128, 8)]
        pixels = data[start + 128 : start + 128 + slot[5]]
        return {"published": published, "closed": state == 2, "shape": tuple(slot[1:4]), "colours": set(pixels)}

    return read


@pytest.mark.parametrize("mode", ["single", "grid"])
def test_cartpole_is_shown_while_it_is_played(baseline, frames, mode):
    quiet = baseline.run(episodes=20, seed=7)
    events = baseline.run(episodes=20, seed=7, fastlane_video_mode=mode, fastlane_max_dim=300, fastlane_interval_ms=1)
    shown = frames()
    assert shown["shape"] == (200, 300, 3), "CartPole is 400 by 600"
    assert shown["published"] > 1
    assert shown["closed"]
    assert len(shown["colours"]) > 2
    assert returns(events) == returns(quiet), "who is watched plays no differently"
    assert "log" not in events


def test_the_mode_can_come_from_the_environment(baseline, frames):
    baseline.environ["MOSAIC_FASTLANE_MODE"] = "single"
    baseline.run(episodes=1, seed=7)
    assert frames()["shape"] == (400, 600, 3)


def test_frames_and_videos_are_off_by_default(baseline, frames, tmp_path):
    events = baseline.run(episodes=2, seed=7)
    assert list((tmp_path / "lane").iterdir()) == []
    assert not (tmp_path / "videos").exists()
    assert "artifact" not in events


def test_episodes_are_recorded_with_their_seed_and_return(baseline, tmp_path):
    events = baseline.run(episodes=4, seed=7, record="every=3,best,worst")
    played = returns(events)
    videos = {(event["path"], event["info"]["why"]): event for event in events["artifact"]}
    assert set(videos) == {
        ("videos/episode-0.png", "every"),
        ("videos/episode-3.png", "every"),
        ("videos/best.png", "best"),
        ("videos/worst.png", "worst"),
    }
    for event in events["artifact"]:
        assert event["kind"] == "video"
        assert event["info"]["return"] == played[event["info"]["seed"]]
        assert event["info"]["seed"] == 7 + event["info"]["episode"]
    assert videos["videos/best.png", "best"]["info"]["return"] == max(played.values())
    assert videos["videos/worst.png", "worst"]["info"]["return"] == min(played.values())
    for path in (tmp_path / "videos").iterdir():
        data = path.read_bytes()
        assert data.startswith(b"\x89PNG")
        assert b"acTL" in data


def test_an_environment_that_cannot_render_still_plays(baseline, frames):
    kwargs = {"render_mode": "ansi"}
    events = baseline.run(
        env_id="FrozenLake-v1", env_kwargs=kwargs, episodes=3, seed=1, fastlane_video_mode="single", record="best"
    )
    (said,) = events["log"]
    assert "its render_mode is 'ansi'" in said["message"]
    assert len(events["episode"]) == 3


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"fastlane_video_mode": "both"}, "input should be 'single', 'grid' or 'off'"),
        ({"record": "all"}, "record: 'all' is not allowed: 'all' is none of every=N (N from 1), best, worst"),
        ({"fastlane_max_dim": 1}, "fastlane_max_dim: 1 is not allowed"),
    ],
)
def test_bad_frame_and_video_settings_are_refused(baseline, config, message):
    assert message in baseline.run(code=2, **config)["run_failed"][0]["error"]
