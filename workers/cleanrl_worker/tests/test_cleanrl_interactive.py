"""Interactive mode: a model acts in its own environment or in one outside the worker."""

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

BOX = {"type": "Box", "low": "-Infinity", "high": "Infinity", "shape": [4], "dtype": "float32"}
TWO = {"type": "Discrete", "n": 2}
LEFT, RIGHT = [0.0, 0.0, -0.2, -1.5], [0.0, 0.0, 0.2, 1.5]


def interactive(path, **extras):
    return {"algo": "ppo", "extras": {"mode": "interactive", "policy_path": path, **extras}}


def init(observation_space=BOX, action_space=TWO, agent="a"):
    request = {"cmd": "init_agent", "observation_space": observation_space, "action_space": action_space}
    return {**request, "seed": 3, "agent": agent}


def ask(observation, agent="a", **more):
    return {"cmd": "select_action", "observation": observation, "agent": agent, **more}


def test_the_model_plays_an_episode_when_no_action_is_given(cleanrl, trained):
    reset = {"cmd": "reset", "seed": 5}
    answers = cleanrl.talk(
        {"cmd": "ping"},
        {"cmd": "step"},
        reset,
        {"cmd": "step"},
        {"cmd": "step", "action": 1},
        {"cmd": "step", "action": 7},
        reset,
        {"cmd": "step"},
        {"cmd": "stop"},
        **interactive(trained),
    )
    kinds = ["pong", "error", "reset", "step", "step", "error", "reset", "step", "stopped"]
    assert [answer["type"] for answer in answers] == kinds
    assert answers[1]["message"] == "no episode is running: send reset first"
    assert answers[2] == answers[6]
    assert answers[3] == answers[7]
    assert answers[4]["action"] == 1
    assert "action 7 is not in Discrete(2)" in answers[5]["message"]


def test_interactive_episodes_match_those_of_an_evaluation(cleanrl, trained):
    evaluation = {"mode": "policy_eval", "policy_path": trained, "eval_episodes": 1}
    (episode,) = cleanrl.run(seed=5, extras=evaluation)["episode"]
    steps = [{"cmd": "step"}] * (episode["length"] + 1)
    answers = cleanrl.talk({"cmd": "reset", "seed": 5}, *steps, **interactive(trained))
    assert sum(answer["reward"] for answer in answers[1:-1]) == episode["return"]
    assert answers[-2]["terminated"] or answers[-2]["truncated"]
    assert answers[-1]["type"] == "error"


def test_the_model_acts_in_an_outside_environment(cleanrl, trained):
    answers = cleanrl.talk(
        ask(LEFT),
        init(),
        ask(LEFT),
        ask(RIGHT),
        ask(RIGHT, action_mask=[1, 0]),
        ask([1.0]),
        init({**BOX, "shape": [5]}),
        init(BOX, {"type": "Discrete", "n": 3}),
        {"cmd": "init_agent", "action_space": TWO},
        **interactive(trained),
    )
    assert answers[0]["message"] == "agent 'a' is not known: send init_agent first"
    assert answers[1] == {"type": "agent_ready"}
    assert [answer["action"] for answer in answers[2:5]] == [0, 1, 0], "it pushes where the pole falls, if it may"
    assert [answer["type"] for answer in answers[5:]] == ["error"] * 4
    assert "was trained with" in answers[6]["message"]
    assert "was trained with" in answers[7]["message"]


def test_samples_repeat_by_seed(cleanrl, trained):
    near_the_middle = [0.0, 0.0, 0.0, 0.0]
    requests = [init(agent="a"), init(agent="b"), *[ask(near_the_middle, "a")] * 40, *[ask(near_the_middle, "b")] * 40]
    answers = cleanrl.talk(*requests, **interactive(trained, deterministic=False))
    actions = [answer["action"] for answer in answers[2:]]
    assert set(actions) == {0, 1}
    assert actions[:40] == actions[40:]


def test_a_batch_over_lanes_equals_one_by_one_and_respects_masks(cleanrl, trained):
    rows = [LEFT, RIGHT, [0.0, 0.0, 0.0, 0.0]]
    begins = [{"cmd": "begin_episode", "agent": "a", "seed": lane, "episode": 0, "lane": lane} for lane in range(3)]
    batch = {"cmd": "select_actions", "agent": "a", "lanes": [0, 1, 2], "observations": rows, "probabilities": True}
    singles = [ask(row, lane=lane, probabilities=True) for lane, row in enumerate(rows)]
    masked = {**batch, "action_masks": [[1, 0]] * 3}
    _, *answers = cleanrl.talk(
        {**init(), "lanes": 3},
        *begins, batch, masked, *begins, *singles,
        **interactive(trained, deterministic=False),
    )  # fmt: skip
    together, only, apart = answers[3], answers[4], answers[8:]
    assert together["actions"] == [answer["action"] for answer in apart]
    assert only["actions"] == [0, 0, 0]
    assert [row[1] for row in only["probabilities"]] == [0, 0, 0]
    for row, answer in zip(together["probabilities"], apart, strict=True):
        assert row == pytest.approx(answer["probabilities"], abs=1e-6)


def test_without_a_model_an_untrained_agent_acts(cleanrl):
    image = {"type": "Box", "low": 0, "high": 255, "shape": [7, 7, 3], "dtype": "uint8"}
    seven, view = {"type": "Discrete", "n": 7}, [[[0, 0, 0]] * 7] * 7
    answers = cleanrl.talk(
        {"cmd": "reset", "seed": 1},
        {"cmd": "step"},
        init({"type": "Dict", "spaces": {"image": image, "direction": {"type": "Discrete", "n": 4}}}, seven),
        ask({"image": view, "direction": 0}),
        init(BOX, {"type": "Box", "low": -1, "high": 1, "shape": [1], "dtype": "float32"}),
        algo="ppo",
        env_id="CartPole-v1",
        total_timesteps=100,
        seed=1,
    )
    assert [answer["type"] for answer in answers] == ["reset", "step", "agent_ready", "action", "error"]
    assert answers[3]["action"] in range(7)
    assert "needs a discrete action space" in answers[4]["message"]
