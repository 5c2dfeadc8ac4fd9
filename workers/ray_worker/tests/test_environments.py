"""Environments as RLlib gets them: every family plays, agents leave one by one, and what is refused."""

import json

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

PLAY = """
import json
import numpy as np
from ray.rllib.env.multi_agent_episode import MultiAgentEpisode
from ray_worker.environments import make, resolve, spaces_of

def choose(draw, space, seen):
    if isinstance(seen, dict) and "action_mask" in seen:
        return int(draw.choice(np.flatnonzero(seen["action_mask"])))
    if hasattr(space, "n"):
        return int(draw.integers(space.n))
    return draw.uniform(-1, 1, space.shape).astype(np.float32)

def play(env, spaces, seed, limit):
    \"\"\"Play with random actions into RLlib's own record of an episode, which refuses what breaks its rules.\"\"\"
    draw, trace = np.random.default_rng(seed), []
    episode = MultiAgentEpisode(observation_space=env.observation_spaces, action_space=env.action_spaces)
    seen, infos = env.reset(seed=seed)
    episode.add_env_reset(observations=seen, infos=infos)
    while not episode.is_done and len(trace) < limit:
        for agent, value in seen.items():
            assert env.observation_spaces[agent].contains(value), agent
        actions = {agent: choose(draw, spaces.actions[agent], seen[agent]) for agent in episode.get_agents_to_act()}
        seen, rewards, ends, cuts, infos = env.step(actions)
        episode.add_env_step(seen, actions, rewards, infos, terminateds=ends, truncateds=cuts)
        trace.append([sorted(rewards.items()), sorted(seen), ends["__all__"], cuts["__all__"]])
    return episode, trace
"""

FAMILIES = (
    PLAY
    + """
cases = [
    ("multiwalker_v9", "PARALLEL", {}), ("pursuit_v4", "PARALLEL", {"max_cycles": 5}),
    ("waterworld_v4", "AEC", {"max_cycles": 20}), ("tictactoe_v3", None, {}), ("connect_four_v3", "AEC", {}),
    ("chess_v6", None, {}), ("go_v5", None, {}), ("cooperative_pong_v5", "PARALLEL", {"max_cycles": 10}),
    ("pistonball_v6", "PARALLEL", {"max_cycles": 3}), ("knights_archers_zombies_v10", "PARALLEL", {}),
    ("simple_spread_v3", "PARALLEL", {}), ("simple_adversary_v3", "AEC", {}), ("simple_tag_v3", "PARALLEL", {}),
]
found = {}
for env_id, api, kwargs in cases:
    environment = resolve(env_id, api_type=api, kwargs=kwargs)
    spaces = spaces_of(environment, with_state=True)
    plain, rich = make(environment), make(environment, with_state=True)
    for agent in spaces.agents:
        assert rich.observation_spaces[agent] == spaces.observations[agent]
        assert rich.observation_spaces[agent]["observations"] == plain.observation_spaces[agent] or spaces.has_masks
    episode, trace = play(rich, spaces, 7, 150)
    again = [play(env, spaces, 7, 150)[1] for env in (rich, plain)]
    found[env_id] = {
        "api": environment.api, "family": environment.family, "agents": len(spaces.agents),
        "state": spaces.state_size, "repeats": again == [trace, trace], "steps": len(trace),
        "terminated": bool(trace[-1][2]), "truncated": bool(trace[-1][3]), "roles": list(spaces.roles()),
        "returns": episode.get_return(), "rewards": sum(value for row in trace for _, value in row[0]),
    }
    plain.close(), rich.close()
print(json.dumps(found))
"""
)


def test_every_family_of_the_seeds_plays_by_rllibs_rules_and_repeats_with_its_seed(rllib):
    found = rllib.says(FAMILIES)
    assert {case["family"] for case in found.values()} == {"sisl", "classic", "butterfly", "mpe"}
    for env_id, case in found.items():
        assert case["repeats"], env_id
        assert case["state"] > 0, env_id
        assert case["returns"] == pytest.approx(case["rewards"]), f"{env_id}: no reward is lost or counted twice"
    assert found["tictactoe_v3"]["terminated"]
    assert found["simple_spread_v3"] | {"steps": 25, "truncated": True} == found["simple_spread_v3"]
    assert found["simple_tag_v3"]["roles"] == ["adversary", "agent"]
    assert found["waterworld_v4"]["roles"] == ["shared"]
    assert [found[name]["api"] for name in ("go_v5", "waterworld_v4", "pursuit_v4")] == ["AEC", "AEC", "PARALLEL"]


# An environment with only the parallel API, whose agents leave in different ways.
LEAVING = """
import functools
import numpy as np
from gymnasium.spaces import Box, Discrete
from pettingzoo import ParallelEnv

class parallel_env(ParallelEnv):
    metadata = {"name": "leaving", "render_modes": []}

    def __init__(self, ends="ttt", render_mode=None):
        self.render_mode, self.ends = render_mode, ends
        self.possible_agents = ["early", "middle", "late"]

    observation_space = functools.cache(lambda self, agent: Box(0, 255, (4, 5), np.uint8))
    action_space = functools.cache(lambda self, agent: Discrete(3))

    def reset(self, seed=None, options=None):
        self.agents, self.time = list(self.possible_agents), 0
        return self._see(), {agent: {} for agent in self.agents}

    def _see(self):
        return {agent: np.full((4, 5), self.time, np.uint8) for agent in self.agents}

    def step(self, actions):
        self.time += 1
        leaves = {agent: self.time == 2 + place for place, agent in enumerate(self.possible_agents)}
        kinds = dict(zip(self.possible_agents, self.ends))
        seen = self._see()
        ends = {agent: leaves[agent] and kinds[agent] == "t" for agent in self.agents}
        cuts = {agent: leaves[agent] and kinds[agent] == "c" for agent in self.agents}
        rewards = dict.fromkeys(self.agents, 1.0)
        infos = {agent: {} for agent in self.agents}
        self.agents = [agent for agent in self.agents if not (ends[agent] or cuts[agent])]
        return seen, rewards, ends, cuts, infos
"""

MIXED = (
    PLAY
    + """
found = {}
for ends in ("ttt", "ccc", "tct", "ttc", "ctt"):
    environment = resolve("module:leaving", kwargs={"ends": ends})
    spaces, env = spaces_of(environment), make(environment, with_state=True)
    episode, trace = play(env, spaces, 0, 10)
    agents = episode.agent_episodes
    found[ends] = {
        "steps": len(trace), "over": episode.is_done,
        "flags": "".join("t" if agents[name].is_terminated else "c" for name in spaces.agents),
        "lengths": [len(agents[name]) for name in spaces.agents],
        "size": spaces.observations["early"].shape,
        "state": agents["late"].get_observations(-1)["state"][[0, 20, 40]].tolist(),
    }
print(json.dumps(found))
"""
)


def test_agents_that_leave_one_by_one_end_as_the_environment_says(rllib):
    (rllib.folder / "leaving.py").write_text(LEAVING)
    found = rllib.says(MIXED)
    for ends, case in found.items():
        assert case["over"], ends
        assert case["flags"] == ends, "an agent that was cut off is not taken as terminated, nor the reverse"
        assert case["lengths"] == [2, 3, 4], ends
        assert case["size"] == [20]
        assert case["state"] == [0.0, 0.0, 4.0], "agents that left are zeros in the state"


VIEWS = """
import json
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete, Tuple
from ray_worker.views import AgentView, View

image = np.zeros((100, 60, 3), np.uint8)
image[50:] = 255
seen = View(Box(0, 255, (100, 60, 3), np.uint8))(image)
masked = Dict({"observation": Box(0, 1, (3, 3, 2), np.int8), "action_mask": Box(0, 1, (9,), np.int8)})
view = AgentView(masked, Discrete(9), state_size=2)
board = np.ones((3, 3, 2), np.int8)
one, other = view({"observation": board, "action_mask": np.eye(9, dtype=np.int8)[4]}), view.see(board)
print(json.dumps({
    "image": [list(seen.shape), float(seen[0, 0, 0]), float(seen[-1, -1, 0]), float(seen[20, 3, 0])],
    "mean": [float(seen.mean()), float(image.mean() / 255)],
    "keys": sorted(view.space.spaces), "contains": [view.space.contains(one), view.space.contains(other)],
    "mask": [one["action_mask"].tolist(), other["action_mask"].tolist()],
    "one_hot": View(Discrete(4))(2).tolist(),
    "parts": View(Tuple([Discrete(2), MultiDiscrete([2, 3]), Box(-1, 1, (2,))]))(
        (1, np.array([0, 2]), np.array([0.5, -0.5], np.float32))
    ).tolist(),
}))
"""


def test_images_boards_masks_and_numbers_become_what_networks_take(rllib):
    found = rllib.says(VIEWS)
    assert found["image"] == [[42, 42, 1], 0.0, 1.0, 0.0]
    assert found["mean"][0] == pytest.approx(found["mean"][1], abs=0.02)
    assert found["keys"] == ["action_mask", "observations", "state"]
    assert found["contains"] == [True, True]
    assert found["mask"] == [[0, 0, 0, 0, 1, 0, 0, 0, 0], [1] * 9]
    assert found["one_hot"] == [0, 0, 1, 0]
    assert found["parts"] == [0, 1, 1, 0, 0, 0, 1, 0.5, -0.5]


REFUSED = """
import json, sys
from mosaic_worker.errors import ConfigError
from ray_worker.environments import resolve, spaces_of
said = []
for given in json.loads(sys.argv[1]):
    try:
        spaces_of(resolve(**given))
        said.append("accepted")
    except ConfigError as error:
        said.append(str(error))
print(json.dumps(said))
"""


def test_what_is_no_environment_is_refused_with_the_reason(rllib):
    (rllib.folder / "leaving.py").write_text(LEAVING)
    (rllib.folder / "nothing.py").write_text("")
    cases = [
        ({"env_id": "leaving", "family": "module", "api_type": "AEC"}, "environment.api_type", "PARALLEL"),
        ({"env_id": "chess_v6", "api_type": "PARALLEL"}, "environment.api_type", "AEC"),
        ({"env_id": "CartPole-v1", "api_type": "AEC"}, "environment.api_type", "one agent"),
        ({"env_id": "watterworld_v4"}, "environment.env_id", "waterworld_v4"),
        ({"env_id": "CartPol-v1"}, "environment.env_id", "CartPole-v1"),
        ({"env_id": ""}, "environment.env_id", "missing"),
        ({"env_id": "hanabi_v5"}, "environment.env_id", "shimmy"),
        ({"env_id": "Ant-v5"}, "environment.env_id", "not among"),
        ({"env_id": "simple_spread_v3", "family": "sisl"}, "environment.family", "mpe"),
        ({"env_id": "simple_spread_v3", "family": "mp"}, "environment.family", "mpe"),
        ({"env_id": "nothing", "family": "module"}, "environment.env_id", "neither"),
        ({"env_id": "module:no_such_module"}, "environment.env_id", "ModuleNotFoundError"),
        ({"env_id": "waterworld_v4", "kwargs": {"n_pursuer": 2}}, "environment.env_kwargs", "n_pursuer"),
        ({"env_id": "CartPole-v1", "kwargs": {"render_mode": "human"}}, "environment.env_kwargs", "fastlane"),
    ]
    said = rllib.says(REFUSED, json.dumps([case for case, _, _ in cases]))
    for text, (case, field, words) in zip(said, cases, strict=True):
        assert text.startswith(field), (case, text)
        assert words in text, (case, text)
