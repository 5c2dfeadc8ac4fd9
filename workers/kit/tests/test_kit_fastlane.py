"""Live frames: every kind of environment is shown at the requested rate, and a fault never stops training."""

import copy
import json
import math
import os
import re
from typing import NamedTuple

import numpy as np
import pytest

from mosaic_worker.emitter import Emitter
from mosaic_worker.errors import RunCancelled
from mosaic_worker.frames.fastlane import FastLane, FastLaneSettings, FastLaneTelemetryWrapper, RecordSettings

gymnasium = pytest.importorskip("gymnasium", reason="gymnasium is in the workers' environments")

CLOSED = 2


class Shown(NamedTuple):
    """A frame as a reader gets it, with the fields of its slot and of the header."""

    frame: np.ndarray
    number: int
    step: int
    episode: int
    last_reward: float
    rolling_return: float
    step_rate_hz: float
    epoch: int
    state: int


class Clock:
    """A clock that the test advances; counts how often it is read."""

    def __init__(self):
        self.now = 100.0
        self.asked = 0

    def __call__(self):
        self.asked += 1
        return self.now


class Painted(gymnasium.Env):
    """An environment that renders a single colour and counts its renders."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012 - as in Gymnasium
    observation_space = gymnasium.spaces.Discrete(2)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, colour=9, shape=(4, 6, 3), length=5, reward=1.0, render_mode="rgb_array"):
        self.frame = np.full(shape, colour, np.uint8)
        self.length, self.reward, self.render_mode = length, reward, render_mode
        self.renders, self.steps, self.is_closed = 0, 0, False

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return 0, {}

    def step(self, action):
        self.steps += 1
        return 0, self.reward, self.steps == self.length, False, {}

    def render(self):
        self.renders += 1
        if isinstance(self.frame, Exception):
            raise self.frame
        return self.frame

    def close(self):
        self.is_closed = True


class FakeOldGym:
    """A fake with the API of gym 0.21, which conflicts with the packages of the test environment."""

    def __init__(self):
        self.modes, self.seeds, self.steps, self.marker = [], [], 0, "inside"

    def seed(self, seed=None):
        self.seeds.append(seed)
        return [seed]

    def reset(self):
        self.steps = 0
        return "observation"

    def step(self, action):
        self.steps += 1
        return "observation", 2.0, self.steps == 3, {"action": action}

    def render(self, mode="human"):
        self.modes.append(mode)
        return np.full((2, 2, 3), 50, np.uint8) if mode == "rgb_array" else None

    def close(self):
        self.marker = "closed"


class FakeParallel:
    """A fake PettingZoo parallel environment: agent `b` terminates after two steps, `a` after four."""

    render_mode = "rgb_array"
    possible_agents = ("a", "b")

    def reset(self, seed=None, options=None):
        self.seed_given, self.steps, self.agents = seed, 0, ["a", "b"]
        return dict.fromkeys(self.agents, 0), {}

    def step(self, actions):
        self.steps += 1
        present = self.agents
        terminated = {agent: self.steps >= {"a": 4, "b": 2}[agent] for agent in present}
        self.agents = [agent for agent in present if not terminated[agent]]
        rewards = dict.fromkeys(present, 1.0)
        return dict.fromkeys(present, 0), rewards, terminated, dict.fromkeys(present, False), {}

    def render(self):
        return np.full((2, 2, 3), 60, np.uint8)

    def close(self):
        pass


class FakeAec:
    """A fake PettingZoo AEC environment: two agents act in turn, twice each."""

    render_mode = "rgb_array"
    possible_agents = ("a", "b")

    def reset(self, seed=None, options=None):
        self.agents, self.steps = ["a", "b"], 0
        self.terminations = self.truncations = dict.fromkeys(self.agents, False)
        self.rewards = dict.fromkeys(self.agents, 0.0)
        self.agent_selection = "a"

    def agent_iter(self):
        while self.agents:
            yield self.agent_selection

    def step(self, action):
        if self.terminations[self.agent_selection]:
            assert action is None
            self.agents.remove(self.agent_selection)
            self.rewards = dict.fromkeys(self.agents, 0.0)
            self.agent_selection = (self.agents or [None])[0]
            return
        self.steps += 1
        self.rewards = {agent: 1.0 if agent == self.agent_selection else 0.5 for agent in self.agents}
        self.terminations = dict.fromkeys(self.agents, self.steps == 4)
        self.agent_selection = "ab"[self.steps % 2]

    def render(self):
        return np.full((2, 2, 3), 70, np.uint8)

    def close(self):
        pass


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def lane(tmp_path, clock):
    """Return a factory of fast lanes that write to the test's folder."""

    def make(mode="single", emitter=None, folder=tmp_path, **settings):
        given = FastLaneSettings(mode=mode, interval_ms=100, **settings)
        return FastLane(given, folder, emitter=emitter, clock=clock)

    return make


@pytest.fixture
def shown(tmp_path):
    """Return a reader of the newest frame, by docs/protocol.md, part 6; it returns None if nothing was published."""

    def read():
        path = tmp_path / "main.ring"
        if not path.exists():
            return None
        data = path.read_bytes()
        words = np.frombuffer(data, np.uint64)
        number = int(words[11]) - 1
        start = 256 + number % int(words[3]) * int(words[4])
        at = start // 8
        assert int(words[at]) == 2 * number + 2
        height, width, channels, _, size, step, episode = (int(word) for word in words[at + 1 : at + 8])
        pixels = np.frombuffer(data, np.uint8, size, start + 128).reshape(height, width, channels)
        figures = [float(real) for real in np.frombuffer(data, np.float64)[at + 10 : at + 13]]
        return Shown(pixels, number, step, episode, *figures, int(words[6]), int(words[10]))

    return read


@pytest.fixture
def journal(tmp_path):
    """An emitter and a function that returns the events it has written."""
    path = tmp_path / "journal.jsonl"
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    yield Emitter(fd), lambda: [json.loads(line) for line in path.read_text().splitlines()]
    os.close(fd)


def play(env, steps):
    for _ in range(steps):
        if env.step(0)[2]:
            env.reset()


@pytest.mark.parametrize("mode", ["single", "grid", "off"])
def test_an_environment_that_is_not_shown_is_returned_unwrapped(lane, mode):
    env = Painted()
    assert lane("off").wrap(env) is env
    assert lane(mode, folder=None).wrap(env) is env, "no folder, no frames"
    assert lane("single", slot=1).wrap(env, 0) is env
    assert lane("grid", grid_limit=2).wrap(env, 2) is env
    assert not lane("off").wants_frames
    assert lane("grid").wants_frames


def test_gymnasium_keeps_its_type_its_results_and_other_wrappers_on_top(lane, shown):
    env = lane().wrap(Painted(length=3))
    assert isinstance(env, gymnasium.Env)
    assert isinstance(env, gymnasium.Wrapper)
    assert isinstance(env, FastLaneTelemetryWrapper)
    top = gymnasium.wrappers.RecordEpisodeStatistics(gymnasium.wrappers.TimeLimit(env, 2))
    assert top.reset(seed=5) == (0, {})
    assert top.step(0) == (0, 1.0, False, False, {})
    *_, truncated, info = top.step(0)
    assert truncated
    assert info["episode"]["r"] == 2.0
    assert "FastLaneTelemetryWrapper" in str(env)
    assert top.unwrapped.np_random_seed == 5
    assert (shown().frame == 9).all()


def test_a_library_with_its_own_wrapper_can_report_to_a_watch(lane, shown):
    assert lane(mode="off").watch(Painted()) is None
    env = Painted()
    watch = lane().watch(env)
    env.reset()
    watch.began(3)
    assert (shown().step, env.renders) == (0, 1)
    watch.close()
    assert shown().state == CLOSED


def test_a_frame_is_rendered_only_when_it_is_due_and_the_clock_is_asked_once_a_step(lane, clock, shown):
    env = lane().wrap(inner := Painted(length=10**9))
    env.reset()
    assert inner.renders == 1
    clock.asked = 0
    play(env, 1000)
    assert (inner.renders, clock.asked) == (1, 1000)
    clock.now += 0.099
    play(env, 5)
    assert inner.renders == 1
    clock.now += 0.002
    play(env, 50)
    assert inner.renders == 2
    clock.now += 3600
    play(env, 50)
    assert inner.renders == 3, "frames that were not taken are not made up for"
    assert shown().number == 2


@pytest.mark.parametrize(("mode", "count"), [("single", 1), ("grid", 1), ("grid", 4)])
def test_frames_of_environments_that_draw_slowly_take_a_twentieth_of_the_time(lane, clock, mode, count):
    class Slow(Painted):
        def render(self):
            clock.now += 0.03
            return super().render()

    one = lane(mode)
    drawn = [Slow(length=10**9) for _ in range(count)]
    envs = [one.wrap(env, index) for index, env in enumerate(drawn)]
    for env in envs:
        env.reset()
    began = clock.now
    for _ in range(100_000):
        clock.now += 0.001
        for env in envs:
            env.step(0)
    spent = 0.03 * sum(env.renders - 1 for env in drawn)
    assert 0.048 < spent / (clock.now - began) <= 0.052


def test_a_slow_first_render_or_one_stall_delays_later_frames_only_briefly(lane, clock):
    takes = [0.8, 0.001, 0.001, 0.5]

    class Starting(Painted):
        def render(self):
            clock.now += takes.pop(0) if takes else 0.001
            return super().render()

    env = lane().wrap(inner := Starting(length=10**9))
    env.reset()
    env.step(0)
    assert inner.renders == 1
    clock.now += 0.1
    env.step(0)
    assert inner.renders == 2, "the first one took 0.8 s, but the next is due after the interval"
    for _ in range(2):
        clock.now += 0.1
        env.step(0)
    assert (inner.renders, takes) == (4, [])
    clock.now += 0.9
    env.step(0)
    assert inner.renders == 4
    clock.now += 0.1
    env.step(0)
    assert inner.renders == 5, "a tenth of what it lost by getting stuck is waited for at once"


def test_a_frame_carries_reward_rolling_return_rate_step_and_episode(lane, clock, shown):
    env = lane().wrap(inner := Painted(length=4, reward=0.5))
    env.reset()
    first = shown()
    assert (first.step, first.episode) == (0, 0)
    assert math.isnan(first.rolling_return)
    assert math.isnan(first.step_rate_hz)
    play(env, 4)
    inner.reward = 5.5
    play(env, 5)
    clock.now += 0.5
    play(env, 1)
    last = shown()
    assert (last.step, last.episode, last.last_reward) == (10, 2, 5.5)
    assert last.rolling_return == pytest.approx(2.0 + 0.1 * (22.0 - 2.0))
    assert last.step_rate_hz == pytest.approx(20.0)


def test_in_mode_single_only_the_slot_is_rendered(lane, shown):
    envs = [Painted(colour=colour) for colour in (10, 20, 30)]
    one = lane(slot=1)
    vector = gymnasium.vector.SyncVectorEnv([lambda at=at: one.wrap(envs[at], at) for at in range(3)])
    vector.reset(seed=1)
    vector.step(np.zeros(3, int))
    assert [env.renders for env in envs] == [0, 1, 0]
    assert (shown().frame == 20).all()
    vector.close()
    assert shown().state == CLOSED


def test_in_mode_grid_slot_0_tiles_unequal_grey_and_missing_frames(lane, clock, shown):
    envs = [Painted(10, (4, 6, 3)), Painted(20, (2, 2)), Painted(30, (4, 4, 4)), Painted(40), Painted(50)]
    envs[3].frame = RuntimeError("no window")
    grid = lane("grid", grid_limit=4)
    vector = gymnasium.vector.SyncVectorEnv([lambda at=at: grid.wrap(envs[at], at) for at in range(5)])
    vector.reset(seed=1)
    clock.now += 1
    vector.step(np.zeros(5, int))
    clock.now += 1
    vector.step(np.zeros(5, int))
    expected = np.zeros((8, 12, 3), np.uint8)
    expected[0:4, 0:6] = 10
    expected[1:3, 8:10] = 20
    expected[4:8, 1:5] = 30
    assert (shown().frame == expected).all()
    assert shown().step == 5, "two of slot 0, one of each that is yet to take its second step"
    assert shown().step_rate_hz == pytest.approx(4.0), "those that cannot render train, too"
    assert envs[4].renders == 0
    vector.close()
    assert shown().state == CLOSED


def test_a_grid_continues_when_its_first_environment_cannot_render(lane, clock, shown):
    grid = lane("grid")
    first, second = (grid.wrap(Painted(colour), at) for at, colour in enumerate((10, 20)))
    first.unwrapped.frame = None
    for _ in range(2):
        first.reset()
        second.reset()
        clock.now += 1
    expected = np.zeros((4, 12, 3), np.uint8)
    expected[:, 6:] = 20
    assert (shown().frame == expected).all()


def test_an_environment_that_is_only_recorded_is_no_part_of_the_grid(tmp_path, clock, shown):
    settings = FastLaneSettings(mode="grid", slot=7, grid_limit=2)
    grid = FastLane(settings, tmp_path, record=RecordSettings(best=True), run_dir=tmp_path, clock=clock)
    recorded, first = grid.wrap(Painted(1), 7), grid.wrap(Painted(2), 0)
    recorded.reset()
    first.reset()
    assert (shown().frame == 2).all()
    assert shown().frame.shape == (4, 6, 3)


def test_a_tile_waits_without_rendering_for_the_one_that_publishes_the_grid(lane, clock, shown, journal):
    emitter, lines = journal
    grid = lane("grid", emitter=emitter)
    second = grid.wrap(inner := Painted(20), 1)
    second.reset()
    clock.now += 4.9
    play(second, 1)
    assert (inner.renders, lines()) == (0, []), "it may be wrapped last"
    first = grid.wrap(Painted(10), 0)
    clock.now += 1
    second.reset()
    first.reset()
    assert [int(shown().frame[0, column, 0]) for column in (0, 6)] == [10, 20]
    first.close()
    for _ in range(20):
        clock.now += 1
        play(second, 1)
    (line,) = lines()
    assert (
        "environment 1 is not in the grid: environment 0, which publishes it, is not in this process" in line["message"]
    )
    assert inner.renders == 1


def test_a_grid_of_one_environment_is_its_frame(lane, shown):
    lane("grid").wrap(Painted(8)).reset()
    assert shown().frame.shape == (4, 6, 3)


@pytest.mark.parametrize(("mode", "size"), [("single", (25, 50)), ("grid", (14, 28))])
def test_large_frames_are_made_smaller(lane, clock, shown, mode, size):
    wide = lane(mode, max_dim=64)
    envs = [wide.wrap(Painted(77, (100, 200, 3)), index) for index in range(4)]
    for _ in range(2):
        for env in reversed(envs):
            env.reset()
        clock.now += 1
    factor = 2 if mode == "grid" else 1
    assert shown().frame.shape == (size[0] * factor, size[1] * factor, 3)
    assert (shown().frame == 77).all()


def test_old_gym_keeps_its_api(lane, shown):
    env = lane().wrap(inner := FakeOldGym())
    assert env.seed(7) == [7]
    assert env.reset() == "observation"
    assert env.step("left") == ("observation", 2.0, False, {"action": "left"})
    assert inner.modes == ["rgb_array"]
    assert (shown().frame == 50).all()
    env.marker = "changed"
    assert (inner.marker, env.marker) == ("changed", "changed")
    assert isinstance(env, FakeOldGym)
    env.close()
    assert inner.marker == "closed"
    assert shown().state == CLOSED


def test_old_gym_episodes_end_with_done(lane, clock, shown):
    env = lane().wrap(FakeOldGym())
    env.reset()
    play(env, 3)
    clock.now += 1
    play(env, 1)
    assert (shown().step, shown().episode, shown().rolling_return) == (4, 1, 6.0)


def test_pettingzoo_parallel_ends_with_its_last_agent_and_adds_rewards(lane, clock, shown):
    env = lane().wrap(inner := FakeParallel())
    env.reset(seed=3)
    assert (inner.seed_given, env.agents, env.possible_agents) == (3, ["a", "b"], ("a", "b"))
    while env.agents:
        env.step(dict.fromkeys(env.agents, 0))
    clock.now += 1
    env.reset()
    assert (shown().step, shown().episode, shown().rolling_return) == (4, 1, 6.0)
    assert (shown().frame == 60).all()


def test_pettingzoo_aec_does_not_count_the_steps_of_terminated_agents(lane, clock, shown):
    env = lane().wrap(inner := FakeAec())
    env.reset()
    for agent in env.agent_iter():
        env.step(None if env.terminations[agent] else 0)
    assert inner.agents == []
    clock.now += 1
    env.reset()
    assert (shown().step, shown().episode, shown().rolling_return) == (4, 1, 6.0)
    assert (shown().frame == 70).all()


@pytest.mark.parametrize(
    ("frame", "reason"),
    [
        (None, "it rendered None"),
        ("ansi", "it rendered a str, not an array of pixels"),
        (np.zeros((4, 4, 3)), r"it rendered float64 \(4, 4, 3\); a frame is height × width"),
        (np.zeros((4, 4, 2), np.uint8), r"uint8 \(4, 4, 2\)"),
        (np.zeros((0, 4, 3), np.uint8), r"uint8 \(0, 4, 3\)"),
        (np.zeros(7, np.uint8), r"uint8 \(7,\)"),
        (RuntimeError("no display"), "render raised RuntimeError: no display"),
    ],
)
def test_an_invalid_frame_is_reported_once_and_training_continues(lane, clock, journal, shown, frame, reason):
    emitter, lines = journal
    env = lane(emitter=emitter).wrap(inner := Painted())
    inner.frame = frame
    env.reset()
    for _ in range(20):
        clock.now += 1
        play(env, 1)
    assert inner.renders == 1
    assert shown() is None
    (line,) = lines()
    assert (line["event"], line["level"]) == ("log", "warning")
    assert line["message"].startswith("no frames of environment 0: ")
    assert re.search(reason, line["message"])
    env.close()
    assert inner.is_closed


def test_an_environment_made_without_render_mode_is_told_what_to_do(lane, capfd):
    env = lane().wrap(inner := Painted(render_mode=None))
    env.reset()
    play(env, 3)
    assert inner.renders == 0
    assert 'its render_mode is None; make it with render_mode="rgb_array"' in capfd.readouterr().err


def test_a_cancelled_run_is_not_taken_for_a_render_error(lane):
    env = lane().wrap(inner := Painted())
    inner.frame = RunCancelled("SIGTERM")
    with pytest.raises(RunCancelled):
        env.reset()


@pytest.mark.parametrize("kind", ["gymnasium", "old gym", "parallel", "aec"])
def test_an_invalid_step_result_is_reported_once_and_training_continues(lane, journal, shown, kind):
    emitter, lines = journal
    inner = {"gymnasium": Painted, "old gym": FakeOldGym, "parallel": FakeParallel, "aec": FakeAec}[kind]()
    env = lane(emitter=emitter).wrap(inner)
    env.reset()
    strange = [0, 1.0, np.array([False, True]), False, {}] if kind == "gymnasium" else [0, None, np.zeros(2), {}]
    inner.step = lambda action: strange
    inner.rewards = {"a": None}  # AEC reads rewards here: its step returns None
    for _ in range(3):
        assert env.step(0) is (None if kind == "aec" else strange)
    (line,) = lines()
    assert line["message"].startswith("no more frames of environment 0: ")
    assert shown().state == CLOSED
    env.close()


@pytest.mark.parametrize("mode", ["single", "grid"])
def test_an_internal_error_is_reported_once_and_training_continues(lane, clock, journal, monkeypatch, mode):
    def fail(*_, **__):
        raise MemoryError("no room for tiles")

    monkeypatch.setattr("mosaic_worker.frames.fastlane.shrink", fail)
    emitter, lines = journal
    watch = lane(mode, emitter=emitter).watch(inner := Painted())
    for over in (False, True) * 3:
        clock.now += 1
        watch.began(None)
        watch.stepped(1.0, over)
    assert [line["message"] for line in lines()] == ["no more frames of environment 0: MemoryError: no room for tiles"]
    assert inner.renders == 1
    watch.close()


def test_a_run_cancelled_while_a_frame_is_published_is_cancelled(lane, clock, monkeypatch):
    def cancel(*_, **__):
        raise RunCancelled("SIGTERM")

    env = lane().wrap(Painted())
    env.reset()
    clock.now += 1
    monkeypatch.setattr("mosaic_worker.frames.fastlane.shrink", cancel)
    with pytest.raises(RunCancelled):
        env.step(0)
    with pytest.raises(RunCancelled):
        env.reset()


def test_full_shared_memory_is_reported_once_and_training_continues(lane, clock, journal, monkeypatch):
    emitter, lines = journal
    full = os.statvfs_result((4096, 4096, 0, 0, 0, 0, 0, 0, 0, 255))
    monkeypatch.setattr(os, "statvfs", lambda path: full)  # a fake: a test must not fill shared memory
    env = lane(emitter=emitter).wrap(inner := Painted())
    env.reset()
    for _ in range(20):
        clock.now += 1
        play(env, 1)
    assert inner.renders == 1
    (line,) = lines()
    assert "no live frames: " in line["message"]
    assert "0 bytes free" in line["message"]


def test_a_folder_that_is_gone_does_not_disturb_training(lane, tmp_path, capfd):
    env = lane(folder=tmp_path / "gone").wrap(Painted())
    env.reset()
    play(env, 3)
    assert "no live frames" in capfd.readouterr().err


def test_an_environment_wrapped_after_the_first_was_closed_goes_on_with_the_stream(lane, shown):
    one = lane()
    for colour in (1, 2):
        env = one.wrap(Painted(colour))
        env.reset()
        env.close()
    last = shown()
    assert (last.number, last.epoch, last.state) == (1, 2, CLOSED)
    assert (last.frame == 2).all()


def test_the_last_of_two_with_the_same_index_is_shown(lane, clock, shown):
    one = lane()
    old, new = one.wrap(first := Painted(1)), one.wrap(Painted(2))
    new.reset()
    clock.now += 1
    old.reset()
    old.close()
    assert first.renders == 0
    assert shown().state != CLOSED
    assert (shown().frame == 2).all()


def test_a_copy_of_an_environment_is_not_watched(lane, clock, shown):
    for original in (lane().wrap(Painted()), lane().wrap(FakeOldGym())):
        original.reset()
        before = shown().number
        twin = copy.deepcopy(original)
        clock.now += 1
        twin.reset()
        twin.step(0)
        twin.close()
        assert (shown().number, shown().state) == (before, 1)


def in_fork(action):
    """Run an action in a forked process; return the exit code."""
    child = os.fork()
    if child == 0:
        code = 70
        try:
            code = action() or 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_leaves_its_parents_writer_alone(lane, clock, shown, capfd):
    one = lane()
    env = one.wrap(Painted(1))
    env.reset()
    clock.now += 1

    def child():
        env.unwrapped.frame[:] = 2
        play(env, 10)  # the parent's environment
        another = one.wrap(Painted(3))  # the child's own environment
        another.reset()
        another.close()
        env.close()

    assert in_fork(child) == 0
    assert shown().number == 0
    assert shown().state != CLOSED
    said = capfd.readouterr().err
    assert "is written by process" in said
    assert said.count(f"it was wrapped in {os.getpid()}; wrap it in the process that steps it") == 1
    play(env, 1)
    assert shown().number == 1


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_publishes_what_its_parent_does_not(lane, shown):
    one = lane()
    one.wrap(Painted(1)).close()  # as AsyncVectorEnv does to learn the spaces

    assert in_fork(lambda: one.wrap(Painted(3)).reset() and None) == 0
    assert (shown().frame == 3).all()


class Several:
    """A fake for a torch tensor with several elements: it supports addition but not conversion to float."""

    def __radd__(self, other):
        return self

    def __float__(self):
        raise RuntimeError("a tensor with 2 elements cannot be converted to a scalar")


@pytest.mark.parametrize("reward", [{"a": 1.0}, None, "much", Several(), 10**400], ids=lambda reward: str(reward)[:9])
def test_rewards_that_are_no_numbers_do_not_disturb_training(lane, clock, shown, reward):
    env = lane().wrap(Painted(reward=reward, length=2))
    env.reset()
    play(env, 3)
    clock.now += 1
    play(env, 1)
    assert shown().step == 4
    assert math.isnan(shown().last_reward)
    assert math.isnan(shown().rolling_return)


def test_rewards_that_change_their_shape_do_not_disturb_training(lane, clock, shown):
    env = lane().wrap(inner := Painted(length=4))
    env.reset()
    for size in (2, 3, 2, 3):
        inner.reward = np.ones(size)
        env.step(0)
    clock.now += 1
    env.step(0)
    assert (shown().step, shown().episode, shown().last_reward) == (5, 1, 3.0)


def test_rewards_that_are_arrays_are_added_up(lane, clock, shown):
    env = lane().wrap(Painted(reward=np.array([1.0, 2.0]), length=2))
    env.reset()
    play(env, 3)
    clock.now += 1
    play(env, 1)
    assert (shown().last_reward, shown().rolling_return) == (3.0, 6.0)
