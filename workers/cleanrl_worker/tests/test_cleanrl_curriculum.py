"""Curricula: stages change without a break in training and survive a checkpoint; bad schedules are refused."""

import signal

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

FIRST, SECOND = "MiniGrid-Empty-5x5-v0", "MiniGrid-Empty-6x6-v0"
TWO_STAGES = [{"env_id": FIRST, "steps": 1500}, {"env_id": SECOND}]


def stages_seen(events):
    return [(event["info"]["stage"], event["info"]["env_id"]) for event in events["episode"]]


def stage_scalars(events):
    return [
        (event["step"], event["values"]["curriculum/stage"])
        for event in events.get("scalars", [])
        if "curriculum/stage" in event["values"]
    ]


def test_a_stage_ends_after_its_steps_and_the_loop_continues(cleanrl):
    events = cleanrl.run(algo="ppo", total_timesteps=4096, seed=1, extras={"curriculum_schedule": TWO_STAGES})
    seen = stages_seen(events)
    assert set(seen) == {(1, FIRST), (2, SECOND)}
    (_, one), (changed_at, two) = stage_scalars(events)
    assert (one, two) == (1, 2)
    first_stage = [event for event in events["episode"] if event["step"] <= changed_at]
    assert sum(event["length"] for event in first_stage) >= 1500, "steps are those of episodes that have ended"
    assert all(event["info"]["stage"] == 1 for event in first_stage)
    late = [event for event in events["episode"] if event["step"] > changed_at and event["info"]["stage"] == 1]
    assert len(late) <= 3, "the other three environments end their episodes, and then change, too"
    assert [event["message"].split(" (")[0] for event in events["log"]] == [
        f"stage 1 of 2: {FIRST}",
        f"stage 2 of 2: {SECOND}",
    ]
    updates = [event["step"] for event in events["scalars"] if "losses/policy_loss" in event["values"]]
    assert updates == list(range(512, 4097, 512)), "one loop, without a break"
    summary = events["run_completed"][0]["summary"]
    assert (summary["stage"], summary["stages"]) == (2, 2)
    assert "leaked" not in cleanrl.log
    assert "\n1 1\n" not in cleanrl.log, "Syllabus prints a line for each sample, which nobody wants to read"


def test_the_first_stage_of_doorkey_is_passed_by_its_return(cleanrl):
    # The unchanged preset: a mean return of 0.8 over 100 episodes, or 300,000 steps. A random agent gets about 0.05.
    settings = {"learning_rate": 1e-3, "num_envs": 8, "num_steps": 64, "update_epochs": 2, "anneal_lr": False}
    extras = {"curriculum_schedule": "BABYAI_DOORKEY_CURRICULUM", "algo_params": settings}
    with cleanrl.start(algo="ppo", total_timesteps=60_000, seed=1, extras=extras) as run:
        changed_at, _ = run.wait_until(lambda events: stage_scalars(events)[1:], deadline_s=500)[0]
        run.wait_until(lambda events: stages_seen(events)[-1][0] == 2)
        assert run.signal(signal.SIGTERM) == 143
        events = run.events()
    assert changed_at < 60_000, "so it was not by its steps"
    window = [event["return"] for event in events["episode"] if event["step"] <= changed_at][-100:]
    assert sum(window) / len(window) >= 0.8
    assert stages_seen(events)[-1] == (2, "MiniGrid-DoorKey-6x6-v0")


def test_a_curriculum_repeats_by_seed(cleanrl):
    config = {"algo": "ppo", "total_timesteps": 3072, "seed": 3, "extras": {"curriculum_schedule": TWO_STAGES}}
    first, again = (cleanrl.run(**config) for _ in range(2))
    assert stages_seen(first)[-1] == (2, SECOND)
    played = [[(e["step"], e["return"], e["length"]) for e in events["episode"]] for events in (first, again)]
    assert played[0] == played[1]


def test_a_curriculum_goes_on_in_the_stage_where_it_was_killed(worker_in, tmp_path):
    schedule = [*TWO_STAGES[:1], {"env_id": SECOND, "condition": "steps>=1000000"}, {"env_id": "MiniGrid-Empty-8x8-v0"}]
    config = {"algo": "ppo", "total_timesteps": 500_000, "seed": 1}
    first = worker_in(tmp_path / "first")
    with first.start(**config, extras={"curriculum_schedule": schedule, "checkpoint_every": 512}) as run:
        run.wait_until(
            lambda events: (
                any(e["info"]["stage"] == 2 for e in events.get("episode", []))
                and events["checkpoint_saved"][-1]["step"] > stage_scalars(events)[-1][0]
            )
        )
        run.signal(signal.SIGKILL)
        saved = run.events()["checkpoint_saved"][-1]
    path = str(first.folder / saved["path"])
    # The next attempt of the same run resumes in stage 2.
    second = worker_in(tmp_path / "second")
    resume = {"path": path, "step": saved["step"]}
    with second.start(**config, extras={"curriculum_schedule": schedule}, resume=resume) as run:
        run.wait_until(lambda events: len(events.get("episode", [])) > 3)
        assert run.signal(signal.SIGTERM) == 143
        events = run.events()
    assert set(stages_seen(events)) == {(2, SECOND)}
    assert stage_scalars(events) == [(saved["step"], 2)]
    # A new run that resumes from the checkpoint takes the schedule from it.
    third = worker_in(tmp_path / "third")
    extras = {"mode": "resume_training", "checkpoint_path": path}
    events = third.run(algo="ppo", total_timesteps=1024, extras=extras)
    assert set(stages_seen(events)) == {(2, SECOND)}
    assert events["run_completed"][0]["summary"]["steps"] == saved["step"] + 1024
    # A resumed attempt must not change the schedule.
    fourth = worker_in(tmp_path / "fourth")
    said = fourth.refusal(**config, extras={"curriculum_schedule": TWO_STAGES}, resume=resume)
    assert "was saved by a training with another schedule" in said


NOT_READABLE = (
    ([TWO_STAGES[0], {"env_id": SECOND, "condition": "steps>>5"}], "curriculum_schedule.1.condition: 'steps>>5'"),
    ([{"env_id": FIRST, "condition": "step>=5"}, TWO_STAGES[1]], "did you mean 'steps'"),
    ([{"env_id": FIRST, "condition": "steps>=0.5"}, TWO_STAGES[1]], "give a whole number of 1 or more"),
    ([{"env_id": FIRST, "condition": "steps>=5|"}, TWO_STAGES[1]], "curriculum_schedule.0.condition: '' is none of"),
    ([{"env": FIRST}, TWO_STAGES[1]], "unknown field"),
    ([TWO_STAGES[0]], "a curriculum has 2 stages or more"),
    ([], "a curriculum has 2 stages or more"),
    ("BABYAI_GOTO", "no such preset; did you mean 'BABYAI_GOTO_CURRICULUM'"),
    (
        [TWO_STAGES[0], {"env_id": "MiniGrid-Empty-5x5-v9"}],
        "extras.curriculum_schedule.1.env_id: 'MiniGrid-Empty-5x5-v9'",
    ),
    ([TWO_STAGES[0], {"env_id": "CartPole-v1"}], "extras.curriculum_schedule.1.env_id: CartPole-v1 has"),
    (
        [TWO_STAGES[0], {"env_id": "Pendulum-v1"}],
        "extras.curriculum_schedule.1.env_id: ppo needs a discrete action space; Pendulum-v1 has",
    ),
)


def test_a_schedule_that_cannot_be_read_or_played_is_refused_by_name(cleanrl):
    given = [{"algo": "ppo", "total_timesteps": 9, "extras": {"curriculum_schedule": s}} for s, _ in NOT_READABLE]
    for (schedule, message), text in zip(NOT_READABLE, cleanrl.refusals(*given), strict=True):
        assert message in text, schedule
    for number in (0, -3, -2, -1):  # a dry run refuses bad syntax and bad environments, too
        code, answer = cleanrl.dry_run(**given[number])
        assert code == 2
        assert NOT_READABLE[number][1] in answer["problems"][0]


def test_conditions_and_presets(cleanrl):
    code = """
import json
import gymnasium
from cleanrl_worker.config import Stage
from cleanrl_worker.wrappers.schedule import Condition, PRESETS, condition_of
either = Condition.parse("steps>=300 | episode_return>=0.9")
print(json.dumps({
    "steps": [either.holds(299, 50, [0.8] * 50), either.holds(300, 50, [0.8] * 50)],
    "returns": [either.holds(1, 50, [0.9] * 50), either.holds(1, 5, [1.0] * 5), either.holds(1, 0, [])],
    "episodes": [Condition.parse("episodes>=3").holds(0, n, []) for n in (2, 3)],
    "zero": Condition.parse("episode_return>=0").holds(0, 0, []),
    "negative": Condition.parse("episode_return>=-1.5e1").clauses,
    "default": condition_of(Stage(env_id="x")).clauses,
    "both": condition_of(Stage(env_id="x", steps=5, condition="episodes>=2")).clauses,
    "presets": {name: [stage.env_id for stage in stages] for name, stages in PRESETS.items()},
    "unregistered": [s.env_id for stages in PRESETS.values() for s in stages if s.env_id not in gymnasium.registry],
}))
"""
    said = cleanrl.python_says(code)
    assert said["steps"] == [False, True]
    assert said["returns"] == [True, False, False], "one lucky episode, or none, is no mean"
    assert said["episodes"] == [False, True]
    assert said["zero"] is False, "an empty window is not a return of 0"
    assert said["negative"] == [["episode_return", -15.0]]
    assert said["default"] == [["steps", 100000.0]]
    assert said["both"] == [["steps", 5.0], ["episodes", 2.0]]
    assert said["presets"]["BABYAI_DOORKEY_CURRICULUM"] == [f"MiniGrid-DoorKey-{n}x{n}-v0" for n in (5, 6, 8, 16)]
    assert len(said["presets"]["BABYAI_GOTO_CURRICULUM"]) == 4
    assert said["unregistered"] == []


def test_an_episode_of_the_previous_stage_does_not_count(cleanrl):
    code = """
import json
from cleanrl_worker.config import Stage
from cleanrl_worker.wrappers.curriculum import StagedCurriculum
names = ["a", "b", "c"]
course = StagedCurriculum([Stage(env_id=name, condition="episodes>=2") for name in names])
seen = []
for stage in (0, 0, 0, 0, 1, 1):
    course.finished(stage, 1.0, 10)
    seen.append([course.stage, course.sample(), course.state()["episodes"]])
print(json.dumps(seen))
"""
    assert cleanrl.python_says(code) == [[0, 0, 1], [1, 1, 0], [1, 1, 0], [1, 1, 0], [1, 1, 1], [2, 2, 0]]
