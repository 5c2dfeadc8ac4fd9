"""State that ppo must keep: optimizer, random generators, final observations and return statistics."""

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

QUICK = {"algo": "ppo", "env_id": "CartPole-v1", "total_timesteps": 2048, "seed": 1}


@pytest.fixture(scope="module")
def halfway(worker_in, tmp_path_factory):
    """The path of a checkpoint saved halfway through a training."""
    worker = worker_in(tmp_path_factory.mktemp("halfway"))
    worker.run(**QUICK, extras={"checkpoint_every": 1024})
    return worker.folder / "checkpoints" / "step-1024.cleanrl_model"


def curve(events):
    """Return the episodes and the scalars, without the speed."""
    figures = [{k: v for k, v in event["values"].items() if k != "charts/SPS"} for event in events["scalars"]]
    return [(event["step"], event["return"]) for event in events["episode"]], figures


def test_saving_right_after_loading_preserves_the_state(worker_in, halfway, tmp_path):
    worker = worker_in(tmp_path)
    done = worker.python_says(f"""
import dataclasses, json
from pathlib import Path
from cleanrl_worker.checkpoints import load, save
saved = load(Path({str(halfway)!r}), "it")
print(json.dumps(str(save(dataclasses.replace(saved, about=dataclasses.replace(saved.about, target=1024)), Path("x")))))
""")
    # The budget is used up, so the run saves what it loaded. The new seed rules out that the states agree by chance.
    events = worker.run(**{**QUICK, "seed": 2}, resume={"path": str(tmp_path / done)})
    same = worker.python_says(f"""
import json, torch
from pathlib import Path
from cleanrl_worker.checkpoints import load
one, two = load(Path({done!r}), "it"), load(Path({events["checkpoint_saved"][0]["path"]!r}), "it")
moments = [[part["state"][key][name] for key in part["state"] for name in ("step", "exp_avg", "exp_avg_sq")]
           for part in (one.optimizer, two.optimizer)]
print(json.dumps({{
    "weights": all(torch.equal(one.weights[name], two.weights[name]) for name in one.weights),
    "moments": [len(moments[0]) > 0, len(moments[0]) == len(moments[1]), all(map(torch.equal, *moments))],
    "torch": torch.equal(one.torch_random, two.torch_random),
    "others": [one.about.random[name] == two.about.random[name] for name in ("python", "numpy")],
}}))
""")
    assert same == {"weights": True, "moments": [True] * 3, "torch": True, "others": [True] * 2}


def test_resuming_from_one_checkpoint_gives_the_same_curve_whatever_the_seed(worker_in, halfway, tmp_path):
    worker = worker_in(tmp_path)
    first, again = (curve(worker.run(**{**QUICK, "seed": n}, resume={"path": str(halfway)})) for n in (5, 6))
    assert first == again
    other = worker.python_says(f"""
import dataclasses, json, torch
from pathlib import Path
from cleanrl_worker.checkpoints import load, save
saved = load(Path({str(halfway)!r}), "it")
changed = dataclasses.replace(saved, torch_random=torch.Generator().manual_seed(9).get_state())
print(json.dumps(str(save(changed, Path("x")))))
""")
    assert curve(worker.run(**{**QUICK, "seed": 5}, resume={"path": str(tmp_path / other)})) != first


def test_a_truncated_episode_bootstraps_from_the_critic(cleanrl):
    # Three steps of one environment; the time limit truncates the episode after the second.
    found, expected = cleanrl.python_says("""
import json
from types import SimpleNamespace
import numpy as np, torch
from cleanrl_worker.agents import MLPAgent
from cleanrl_worker.algorithms import ppo_with_save as ppo
from mosaic_worker.stop import Stop
torch.manual_seed(1)
agent = MLPAgent((2,), 2)
args = ppo.Args(num_minibatches=1, update_epochs=1, gamma=0.9, gae_lambda=0.5, norm_reward=False)
seen, behind, after = torch.rand(3, 1, 2), torch.rand(2), torch.rand(1, 2)
rewards, ends = np.float32([[1], [2], [3]]), np.float32([[0], [1], [0]])
rollout = ppo.Rollout(seen.numpy(), np.zeros((3, 1), np.int64), rewards.copy(), ends, [(1, 0, behind.numpy())])
learned = {}
def step(agent, optimizer, args, observations, actions, before, advantages, returns, values):
    learned.update(zip(observations[:, 0].tolist(), returns.tolist(), strict=True))
    return torch.zeros(7)
ppo._step = step
ppo._learn(SimpleNamespace(agent=agent, optimizer=None), rollout, after, args, Stop())
value = lambda view: float(agent(view.reshape(1, 2))[1])
v = [value(view) for view in seen]
second = 2 + 0.9 * value(behind)
first = 1 + 0.9 * v[1] + 0.9 * 0.5 * (second - v[1])
third = 3 + 0.9 * value(after)
print(json.dumps([[learned[view] for view in seen[:, 0, 0].tolist()], [first, second, third]]))
""")
    assert found == pytest.approx(expected, rel=1e-5)


def test_the_final_observation_survives_the_reset_of_an_environment_that_reuses_one_array(cleanrl):
    seen = cleanrl.python_says("""
import json
from types import SimpleNamespace
import gymnasium, numpy as np
from cleanrl_worker.agents import MLPAgent
from cleanrl_worker.algorithms.ppo_with_save import _play
from mosaic_worker.stop import Stop
class Thrifty(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-9, 9, (2,))
    action_space = gymnasium.spaces.Discrete(2)
    view = np.zeros(2, np.float32)
    def reset(self, *, seed=None, options=None):
        self.view[:] = 0
        return self.view, {}
    def step(self, action):
        self.view += 1
        return self.view, 1.0, False, bool(self.view[0] == 3), {}
env = Thrifty()
rollout = _play([env], MLPAgent((2,), 2), [env.reset()[0]], 5, SimpleNamespace(step=0), Stop())
print(json.dumps([[int(view[0]) for view in rollout.observations[:, 0]], [c[2].tolist() for c in rollout.cut]]))
""")
    assert seen == [[0, 1, 2, 0, 1], [[3.0, 3.0]]]


def test_rewards_are_scaled_by_the_deviation_of_all_discounted_returns_so_far(cleanrl):
    scaled, expected, state = cleanrl.python_says("""
import json
import numpy as np
from cleanrl_worker.algorithms.return_statistics import ReturnStatistics
generator, gamma, statistics = np.random.default_rng(1), 0.9, ReturnStatistics()
seen, running, scaled, expected = [], np.zeros(2), [], []
for _ in range(3):
    rewards, ends = generator.normal(5, 3, (4, 2)), (generator.random((4, 2)) < 0.3).astype(float)
    for reward, end in zip(rewards, ends):
        running = running * gamma + reward
        seen.append(running)
        running = running * (1 - end)
    expected.append((rewards / np.std(seen)).tolist())
    statistics.scale(rewards, ends, gamma)
    scaled.append(rewards.tolist())
print(json.dumps([scaled, expected, statistics.state()]))
""")
    assert [row for part in scaled for row in part] == [pytest.approx(row) for part in expected for row in part]
    assert state["count"] == 24
