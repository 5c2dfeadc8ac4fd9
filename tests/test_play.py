"""Manual mode through a real stack: in a terminal, and over the gateway as the page does it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import select
import statistics
import struct
import subprocess
import termios
from typing import Any

import pytest
from experiments import BASELINES, finish
from gateway_client import Gateway, say, until
from mosaic_cli import MOSAIC, Cli
from stack import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

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
