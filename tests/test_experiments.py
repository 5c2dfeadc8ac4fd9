"""Experiments through a real stack: real environments, policies of several libraries, and processes that are killed."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import select
import statistics
import struct
import subprocess
import sys
import termios
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest
from gateway_client import Gateway, say, until
from mosaic_cli import MOSAIC, Cli
from stack import ROOT, Stack, wait_until

from mosaic_bus import CommandRefusedError
from mosaic_bus.commands import Hosts, Show, ShowExperiment, StartExperiment, StopExperiment, WriteReport
from mosaic_services.environments import build, recipe_for
from mosaic_services.experiments.folder import ExperimentFolder
from mosaic_services.home import StackHome

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mosaic_bus.messages import ExperimentState

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

CONFIGS = ROOT / "configs" / "experiments"
BASELINES = {name: {"worker": "baseline", "behavior": name} for name in ("random", "passive")}


@pytest.fixture(scope="module")
def arena(tmp_path_factory) -> Iterator[Stack]:
    """A stack whose host has the arena."""
    home = StackHome.find(tmp_path_factory.mktemp("build-home"))
    for worker in ("arena", "baseline"):
        build(recipe_for(worker, home), "default", lambda _step, _percent: None)
    with Stack(tmp_path_factory.mktemp("arena") / "home", cpus=4, also=("gateway",)) as running:
        yield running
    assert running.leftovers() == []


def start(stack: Stack, name: str, shards: int = 2, **fields: Any) -> ExperimentState:
    document = {"name": name, "operators": BASELINES, "episodes": 4, **fields}
    return stack.bus.request("operator", StartExperiment(experiment=document, shards=shards), timeout=60)


def show(stack: Stack, name: str) -> ExperimentState:
    return stack.bus.request("operator", ShowExperiment(experiment=name), timeout=60)


def finish(stack: Stack, name: str, state: str = "finished") -> list[dict[str, Any]]:
    """Wait for an experiment; return its records."""
    ended = wait_until(f"{name} ends", lambda: (found := show(stack, name)).state.final and found, 800)
    assert ended.state == state, ended
    return [json.loads(line) for line in lines(stack, name)]


def lines(stack: Stack, name: str) -> list[str]:
    return (stack.home.experiments / name / "episodes.jsonl").read_text().splitlines()


def worker_of(stack: Stack, run: str) -> psutil.Process:
    host = json.loads((stack.home.runs / run / "1" / "host.json").read_text())["pid"]
    (worker,) = psutil.Process(host).children()
    return worker


def test_operator_and_a_shard_killed_in_the_middle_lose_and_double_no_episode(arena):
    task: dict[str, Any] = {"environment": {"id": "MiniGrid-Empty-8x8-v0", "max_steps": 60}, "episodes": 120}
    start(arena, "calm", shards=1, **task)
    finish(arena, "calm")
    # Slow enough to be killed in the middle.
    start(arena, "stormy", shards=3, **task, videos=[0], steps=True, pacing={"steps_per_second": 50})
    folder = arena.home.experiments / "stormy"
    state = ExperimentFolder(folder).read_state
    wait_until("a video is known", lambda: (state() or {}).get("found", {}).get("videos"))

    def hold() -> psutil.Process | None:
        """Suspend a shard that plays, so that it has not ended when the operator service is back."""
        for each in show(arena, "stormy").shards:
            if each.state == "running" and each.done < each.total:
                with contextlib.suppress(ValueError, psutil.NoSuchProcess):  # it has ended just now
                    worker = worker_of(arena, each.run)
                    worker.suspend()
                    return worker
        return None

    victim = wait_until("a shard is held", hold)
    arena.kill_and_restart("operator")
    arena.wait_for("operator")
    victim.kill()
    finish(arena, "stormy")
    ended = show(arena, "stormy")
    assert (ended.lost, ended.conflicts) == (1, 0)
    assert lines(arena, "stormy") == lines(arena, "calm")
    plan = json.loads((folder / "experiment.json").read_text())
    (host,) = plan["provenance"]["hosts"].values()
    assert plan["hosts"] == ["testhost"]
    assert host["processor"]
    assert host["environments"]["arena"]["versions"]["minigrid"]
    assert host["environments"]["baseline/default"]["environment"].startswith("baseline-default-")
    assert host["environments"]["baseline/default"]["versions"]["numpy"]

    cli = Cli(arena.home.path)
    cli("delete", *(each.run for each in ended.shards))  # what a report and a replay need is with the experiment
    report = Path(cli.json("report", "stormy")["report"]).parent
    assert len(list((report / "videos").iterdir())) == 2
    again = cli.json("replay", "stormy", "--episode", "100", "--lineup", "random")
    assert (again["from"], again["same"]) == ("actions", True)
    assert again["played"]["length"] > 1
    records = [json.loads(line) for line in lines(arena, "stormy")]
    broken = [{**each, "action_hash": "0"} if each["episode"] == 100 else each for each in records]
    (folder / "episodes.jsonl").write_text("".join(json.dumps(each) + "\n" for each in broken))
    said = cli("replay", "stormy", "--episode", "100", "--lineup", "random", code=1).stdout
    assert "not the same: action_hash" in said


def test_mosaic_eval_prints_a_table_and_called_again_plays_only_what_is_new(arena, tmp_path):
    cli = Cli(arena.home.path)
    path = tmp_path / "trial.yaml"
    path.write_text((CONFIGS / "baselines.yaml").read_text().replace("name: baselines", "name: trial"))
    planned = cli.json("eval", str(path), "episodes=5", "--shards", "2", "--dry-run")["experiments"][0]
    assert (planned["missing"], len(planned["shards"])) == (10, 2)
    said = cli("eval", str(path), "episodes=5", "--shards", "2", "--hosts", "testhost").stdout
    specs = [arena.bus.request("scheduler", Show(run=each.run)).spec for each in show(arena, "trial").shards]
    assert {spec.requires for spec in specs} == {("host:testhost",)}  # no host that joins later plays
    assert "passive" in said
    assert "random" in said
    first = lines(arena, "trial")
    assert len(first) == 10
    (again,) = cli.json("eval", str(path), "episodes=5")["experiments"]
    assert (again["state"], again["shards"]) == ("finished", [])
    (more,) = cli.json("eval", str(path), "episodes=6", "operators.third={worker: random}")["experiments"]
    played = sum(each["total"] for each in more["shards"])
    assert played == 2 + 6
    assert set(first) <= set(lines(arena, "trial"))
    refused = cli("eval", str(path), "environment.max_steps=9", code=2)
    assert "--restart" in refused.stderr
    assert cli.json("experiments", "show", "trial")["done"] == 18
    assert "trial" in cli("experiments").stdout
    same = cli.json("replay", "trial", "--episode", "2", "--lineup", "random")
    assert (same["same"], same["differing"]) == (True, [])


@pytest.mark.parametrize("path", sorted((CONFIGS / "original").glob("*_*.py")), ids=lambda path: path.stem)
def test_scripts_of_the_originals_shape_run_headless(arena, path):
    if path.stem == "minigrid_trained":
        train(arena, "cleanrl", "ppo-minigrid", MINIGRID)
    (ended,) = Cli(arena.home.path).json("eval", str(path))["experiments"]
    assert ended["state"] == "finished"
    assert ended["done"] == ended["wanted"] == sum(each["wanted"] for each in ended["lineups"])
    if path.stem == "minigrid_trained":
        curve = Path(ended["report"]).parent / "figures" / "learning-steps.svg"
        assert curve.exists()
        curve.unlink()
        note = arena.bus.request("operator", WriteReport(experiment=ended["experiment"]), timeout=60).note
        wait_until(f"the page has its curve, too: {note}", curve.exists)


class TestDefectsOfTheOriginal:
    """Each is a defect of the original's operators that must not come back."""

    def test_two_operators_with_two_episodes_play_two_each(self, arena):
        start(arena, "two", environment={"id": "CartPole-v1"}, episodes=2)
        found = [(each["lineup"], each["episode"]) for each in finish(arena, "two")]
        assert found == [("passive", 0), ("passive", 1), ("random", 0), ("random", 1)]

    def test_random_heeds_masks_seed_and_max_steps_and_nobody_steps_past_the_end(self, arena):
        start(arena, "masks", environment={"id": "tictactoe_v3"}, episodes=10)
        games = finish(arena, "masks")
        assert all(not each["failures"] and each["ended"] == "terminated" for each in games)
        assert all(5 <= each["length"] <= 9 for each in games)
        start(arena, "capped", environment={"id": "CartPole-v1", "max_steps": 7}, seeds=[3, 3, 4], episodes=3)
        capped = [each for each in finish(arena, "capped") if each["lineup"] == "random"]
        assert [each["env_seed"] for each in capped] == [3, 3, 4]
        assert {each["length"] for each in capped} == {7}
        assert {each["ended"] for each in capped} == {"max_steps"}
        start(arena, "capped-again", environment={"id": "CartPole-v1", "max_steps": 7}, seeds=[3, 3, 4], episodes=3)
        finish(arena, "capped-again")
        assert lines(arena, "capped-again") == lines(arena, "capped")

    def test_error_of_an_operator_is_recorded_and_does_not_hang_the_experiment(self, arena, tmp_path):
        junk = tmp_path / "model.pt"
        junk.write_bytes(b"no model")
        operators = {**BASELINES, "broken": {"worker": "cleanrl", "checkpoint": str(junk)}}
        start(arena, "broken", environment={"id": "CartPole-v1"}, operators=operators, episodes=3)
        records = finish(arena, "broken")
        failed = [each for each in records if each["lineup"] == "broken"]
        assert [each["ended"] for each in failed] == ["failed"] * 3
        assert all(each["failures"][0]["operator"] == "broken" for each in failed)
        assert sum(each["ended"] == "terminated" for each in records) == 6

    def test_config_of_an_operator_is_not_in_the_arguments_of_its_process(self, arena):
        secret = {"worker": "baseline", "behavior": "random", "config": {"env_kwargs": {"key": "sk-secret"}}}
        task = {"environment": {"id": "CartPole-v1"}, "operators": {"secret": secret}, "episodes": 3000}
        (shard,) = start(arena, "secret", shards=1, **task).shards
        wait_until("it plays", lambda: show(arena, "secret").done)
        family = [worker_of(arena, shard.run), *worker_of(arena, shard.run).children(recursive=True)]
        assert len(family) > 1
        assert "sk-secret" not in " ".join(word for each in family for word in each.cmdline())
        with pytest.raises(CommandRefusedError) as refused:  # a file that was edited meanwhile is not ignored
            start(arena, "secret", shards=1, **{**task, "episodes": 4000})
        assert [each.field for each in refused.value.details.problems] == ["episodes"]
        arena.bus.request("operator", StopExperiment(experiment="secret"))
        finish(arena, "secret", "stopped")


def test_bad_input_is_named_and_the_rest_goes_on(arena):
    operators = {**BASELINES, "nobody": {"worker": "no-such-worker"}}
    start(arena, "unknown-worker", environment={"id": "CartPole-v1"}, operators=operators)
    records = finish(arena, "unknown-worker", "failed")
    assert len(records) == 8
    given_up = {each.lineup: each.given_up for each in show(arena, "unknown-worker").lineups if each.given_up}
    assert set(given_up) == {"nobody"}
    assert "no-such-worker" in given_up["nobody"]
    start(arena, "no-such-environment", environment={"id": "CartPole-v99"})
    assert finish(arena, "no-such-environment", "failed") == []
    for fields, code in (
        ({"environment": {"id": "CartPole-v1"}, "seeds": {"mode": "chaotic"}}, "invalid_experiment"),
        ({"environment": {"id": "tictactoe_v3"}, "lineups": [{"player_1": "random"}]}, "invalid_experiment"),
        ({"environment": {"id": "A-v1"}, "operators": {"me": {"worker": "human"}}}, "invalid_experiment"),
        ({"environment": {"id": "A-v1"}, "operators": {"a": {"worker": "x", "checkpoint": "run:no"}}}, "unknown_run"),
    ):
        with pytest.raises(CommandRefusedError) as refused:
            start(arena, "bad", **fields)
        assert refused.value.code == code
    assert not (arena.home.experiments / "bad").exists()


LESSON = """\
environment: {id: simple_spread_v3, max_steps: 4}
operators:
  me: {worker: human}
  passive: {worker: baseline, behavior: passive}
lineups:
  - {name: mine, "*": me, agent_2: passive}
  - {name: theirs, "*": passive}
"""


def test_person_plays_in_the_terminal_and_a_session_passes_commands_on(arena, tmp_path):
    cli = Cli(arena.home.path)
    moves = "4\n99\n" + "".join(f"{move}\n" for move in 3 * list(range(9)))
    played = cli("play", "tictactoe_v3", "--with", "random", "--seed", "1", stdin=moves)
    assert "legal: 0 " in played.stdout
    assert "99 is not in" in played.stdout
    assert ": over " in played.stdout
    spread = cli("play", "simple_spread_v3", "--with", "random", stdin="no_action\n" * 40)
    assert "agent_0 sees" in spread.stdout
    assert "agent_1 sees" not in spread.stdout, "others are played by the operator"
    assert ": over " in spread.stdout
    file = tmp_path / "lesson.yaml"
    file.write_text(LESSON)
    lesson = cli("play", str(file), stdin="no_action\n" * 8)
    said = [line.removeprefix("move> ") for line in lesson.stdout.splitlines()]
    moves = [line for line in said if line.startswith("mine: step")]
    assert all(f"{agent} plays no_action" in moves[0] for agent in ("agent_0", "agent_1"))
    asked = [line.split()[0] for line in said if " sees " in line]
    assert asked == ["agent_0", "agent_1"] * 4
    assert "leave --with" in cli("play", str(file), "--with", "random", code=2).stderr
    watched = cli(
        "play", "CartPole-v1", "--watch", "--with", "random", "--with", "noop", "--seed", "3", "--rate", "200"
    )
    assert {"noop: over", "random: over"} <= {line.partition("   ")[0] for line in watched.stdout.splitlines()}


@pytest.mark.parametrize(
    ("arguments", "keys", "shown"),
    [
        (
            ["FrozenLake-v1"],
            [("[→] right", "\x1b[C"), ("step 1 … [→] right", "x"), ("x plays nothing", "\x1b[B")],
            "step 2",
        ),
        (["tictactoe_v3", "--confirm"], [("[5] column 2 row 2", "5"), ("once more", "5")], "step 2"),
        (
            ["CartPole-v1", "--watch", "--rate", "0.1"],
            [("[space] pause", " "), ("[space] play", "3"), ("[s] 3 steps", "p"), ("3 steps of agent", "s")],
            "[s] step of agent … step",
        ),
    ],
)
def test_person_plays_with_single_keys_in_a_terminal(arena, arguments, keys, shown):
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 240, 0, 0))
    environ = {**Cli(arena.home.path).env, "TERM": "xterm-256color"}
    command = [*MOSAIC, "play", *arguments, "--with", "random", "--seed", "1"]
    process = subprocess.Popen(command, env=environ, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    seen = ""

    def reads(text: str) -> bool:
        nonlocal seen
        if select.select([ours], [], [], 0.1)[0]:
            with contextlib.suppress(OSError):  # the other side has gone
                seen += os.read(ours, 65536).decode(errors="replace")
        pictures = seen.split("\x1b[1;1H\x1b[0m\x1b[K")
        is_shown = any(all(part in picture for part in text.split(" … ")) for picture in pictures)
        return is_shown if text else process.poll() is not None

    for text, key in keys:
        wait_until(f"{text} is shown", lambda text=text: reads(text))
        seen = ""
        os.write(ours, key.encode())
    wait_until("the move is shown", lambda: reads(shown))
    wait_until("a frame is drawn", lambda: reads("\u2580"))
    os.write(ours, b"q")
    wait_until("q ends it", lambda: reads(""))
    os.close(ours)
    assert process.returncode == 0


def _state_of(experiment: dict[str, Any]) -> tuple[str, str]:
    return experiment["experiment"], experiment["state"]


def test_page_follows_an_experiment_and_plays_by_hand_through_the_gateway(arena):
    gateway = Gateway(arena)

    def command(name: str, **arguments: Any) -> Any:
        answer = gateway.command("operator", name, **arguments)
        assert answer.status == 200, answer.body
        return answer.json()

    with gateway.page() as page:
        say(page, type="watch_states")
        document = {"name": "live", "environment": {"id": "CartPole-v1"}, "operators": BASELINES, "episodes": 6}
        command("start_experiment", experiment=document, shards=2)

        wanted = ("live", "finished")
        states = until(page, lambda message: wanted in [_state_of(each) for each in message.get("experiments", ())])
        ended = next(each for each in states["experiments"] if _state_of(each) == wanted)
    assert all(each["host"] for each in ended["shards"])
    assert [each["done"] for each in ended["shards"]] == [6, 6]
    records = finish(arena, "live")
    for each in ended["lineups"]:
        scores = [sum(record["returns"].values()) for record in records if record["lineup"] == each["lineup"]]
        assert each["mean_return"] == pytest.approx(statistics.mean(scores))
        half = 2.570582 * statistics.stdev(scores) / 6**0.5
        assert (each["low"], each["high"]) == pytest.approx((each["mean_return"] - half, each["mean_return"] + half))

    document = {
        "name": "lesson",
        "environment": {"id": "tictactoe_v3"},
        "operators": {"me": {"worker": "human", "config": {"confirm": True}}, "random": {"worker": "random"}},
        "lineups": [{"player_1": "me", "player_2": "random"}, {"*": "random"}],
    }
    session = command("open_session", experiment=document, frames="single")["session"]

    def both_ready() -> Any:
        found = command("show_session", session=session)
        return found if len(found["ready"]) == 2 else None

    ready = wait_until("two boards", both_ready)
    mine, theirs = sorted(ready["ready"], key=lambda board: not ready["ready"][board]["people"])
    assert [each["session"] for each in command("sessions")["sessions"]] == [session]
    about = ready["ready"][mine]
    assert (about["people"], about["stream"]) == (["player_1"], "board-0")
    assert about["layout"]["cells"]["3"] == [0, 1]
    start, replies = ready["next"], []

    def heard(board: str, status: str, mover: str = "") -> Any:
        nonlocal start
        found = command("show_session", session=session, start=start)
        start = found["next"]
        replies.extend(found["replies"])
        hits = [each for each in replies if (each.get("board"), each.get("status")) == (board, status)]
        return next((each for each in hits if not mover or mover in each["moved"]), None)

    command("tell_session", session=session, request={"cmd": "reset", "seed": 5})
    command("tell_session", session=session, request={"cmd": "step"})
    asked = wait_until("it is my turn", lambda: heard(mine, "waiting_for_human"))
    assert {"action": 3, "label": "column 2 row 1", "key": "2"} in asked["turns"]["player_1"]["legal_moves"]
    for _ in range(2):  # the second time confirms
        command("tell_session", session=session, request={"cmd": "human_input", "key": "2", "board": mine})
    moved = wait_until("my move was played", lambda: heard(mine, "step", "player_1"))
    assert moved["moved"]["player_1"]["action"] == 3
    command("tell_session", session=session, request={"cmd": "step", "agent": "player_2", "boards": [theirs]})
    for mover in ("player_1", "player_2"):
        moved = wait_until(f"{mover} moves on the other board", lambda mover=mover: heard(theirs, "step", mover))
        assert moved["moved"][mover]["operator"] == "random"
    with gateway.page() as page:
        for number, stream in enumerate(("board-0", "board-1")):
            say(page, type="watch_frames", id=number, run=session, stream=stream, max_dim=160)
        command("tell_session", session=session, request={"cmd": "reset", "seed": 6})
        for number in (0, 1):
            until(page, lambda message, number=number: (message["type"], message.get("id")) == ("frame", number))
    command("close_session", session=session)
    assert arena.wait_final(session).state == "succeeded"


WOBBLY = """
import os, gymnasium, numpy

class Wobbly(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-9, 9, (1,), numpy.float64)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return numpy.zeros(1), {}

    def step(self, action):
        self.steps += 1
        return numpy.full(1, 1e-9 if "WOBBLE" in os.environ else 0.0), float(action), self.steps == 400, False, {}

gymnasium.register("Wobbly-v0", Wobbly)
"""


def test_exact_experiment_is_played_only_on_hosts_that_compute_the_same(arena, tmp_path):
    (tmp_path / "wobbly.py").write_text(WOBBLY)
    with Stack(tmp_path / "home", cpus=1, environ={"MOSAIC_PYTHONPATH": str(tmp_path)}) as stack:
        other = StackHome.find(tmp_path / "other")
        other.create()
        options = ["--home", other.path, "--bus", f"ipc://{stack.home.sockets}", "--host", "odd", "--cpus", "1"]
        with (tmp_path / "odd.log").open("wb") as log:
            odd = subprocess.Popen(
                [sys.executable, "-m", "mosaic_services.supervisor", *options],
                stdout=log,
                stderr=log,
                env={**stack.environ, "WOBBLE": "1"},
            )
        try:
            wait_until("two hosts", lambda: len(stack.bus.request("scheduler", Hosts()).hosts) == 2)
            fields = {"environment": {"id": "wobbly:Wobbly-v0"}, "operators": {"me": {"worker": "random"}}}
            start(stack, "exact", shards=4, **fields, episodes=400, lanes=1, exact=True)
            records = finish(stack, "exact")
            state = show(stack, "exact")
        finally:
            odd.terminate()
            assert odd.wait(60) is not None
    assert len(records) == 400
    assert len({record["numerics"]["environment"] for record in records}) == 1
    played = {each.host for each in state.shards if each.done}
    assert len(played) == 1
    assert f"host {({'odd', 'testhost'} - played).pop()} computes other numbers (environment)" in state.notes[0]
    assert stack.leftovers() == []


PPO = {"algo": "ppo", "total_timesteps": 1024, "seed": 1, "extras": {"algo_params": {"num_steps": 128}}}
MINIGRID = PPO | {"env_id": "MiniGrid-Empty-5x5-v0"}
DDPG = {"algorithm": "DDPG", "env": "classic_control", "env_id": "Pendulum-v1", "running_steps": 400, "seed": 1}
ROOM = {"cpus": 1, "memory_mb": 1500}


def train(stack: Stack, worker: str, name: str, config: dict[str, Any]) -> None:
    """Train a small policy, unless one of that name is there."""
    with contextlib.suppress(CommandRefusedError):
        if stack.state(name).state == "succeeded":
            return
    run = stack.submit(worker=worker, name=name, config=config, resources=ROOM)
    state = stack.wait_final(run, 800)
    assert state.state == "succeeded", state.reason
    stack.wait_stored(run)


@pytest.mark.parametrize(
    ("worker", "name", "config", "environment"),
    [
        pytest.param("cleanrl", "ppo-cartpole", PPO | {"env_id": "CartPole-v1"}, {"id": "CartPole-v1"}, id="mlp"),
        pytest.param("cleanrl", "ppo-minigrid", MINIGRID, {"id": "MiniGrid-Empty-5x5-v0"}, id="cnn"),
        pytest.param("xuance", "ddpg-pendulum", DDPG, {"id": "Pendulum-v1", "max_steps": 100}, id="continuous"),
    ],
)
def test_one_two_and_eight_shards_with_a_supervisor_killed_play_the_same_actions(
    arena, worker, name, config, environment
):
    train(arena, worker, name, config)
    operators = {"trained": {"worker": worker, "checkpoint": f"run:{name}@last"}, **BASELINES}
    for shards in (1, 2, 8):
        experiment = f"{name}-in-{shards}"
        start(arena, experiment, shards=shards, environment=environment, operators=operators, episodes=16, lanes=4)
        if shards > 1:
            wait_until("records come", lambda name=experiment: show(arena, name).done)
            arena.kill_and_restart("supervisor")
            arena.wait_for("supervisor")
        records = finish(arena, experiment)
        assert len(records) == 3 * 16
        assert [each["failures"] for each in records if each["failures"]] == []
        assert all(each["action_hash"] for each in records)
        assert lines(arena, experiment) == lines(arena, f"{name}-in-1")
    assert len(show(arena, f"{name}-in-8").shards) == 8
