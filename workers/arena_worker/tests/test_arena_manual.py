"""Manual mode: boards side by side in lock-step, a person among the players, and what each saw and answered."""

import json
import os
import signal
import struct
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

RANDOM = {"worker": "baseline", "config": {"behavior": "random"}}


class Session:
    """An interactive run: requests to its stdin, replies in its journal."""

    def __init__(self, arena, config, **environ):
        self.folder = arena.write("session", {**config, "mode": "manual"}, interactive=True)
        self._journal = self.folder / "journal.jsonl"
        with self._journal.open("wb") as out, (self.folder / "log.txt").open("wb") as log:
            self.process = subprocess.Popen(
                arena.command(self.folder),
                cwd=self.folder,
                env={**arena.environ, "MOSAIC_RUN_DIR": str(self.folder), **environ},
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=log,
            )
        self._read = 0

    def tell(self, **request):
        self.process.stdin.write(json.dumps(request).encode() + b"\n")
        self.process.stdin.flush()

    def wait(self, count=1, **wanted):
        """The next replies, in the order of the journal, that have these fields."""
        found, deadline = [], time.monotonic() + 120
        while len(found) < count:
            lines = self._journal.read_bytes().split(b"\n")[:-1]  # the last may be half written
            for line in lines[self._read :]:
                self._read += 1
                event = json.loads(line)
                reply = {**event.get("reply", {}), "id": event.get("id")}
                if all(reply.get(name) == value for name, value in wanted.items()):
                    found.append(reply)
                    if len(found) == count:
                        break
            assert time.monotonic() < deadline, (wanted, self._journal.read_text()[-3000:], self.log())
            assert self.process.poll() is None, self.log()
            time.sleep(0.005)
        return found

    def log(self):
        return (self.folder / "log.txt").read_text()[-3000:]

    def stop(self):
        self.tell(cmd="stop")
        assert self.process.wait(60) == 0, self.log()


@pytest.fixture
def session(arena):
    """Start sessions, and end those that are left."""
    started = []

    def start(config, **environ):
        started.append(Session(arena, config, **environ))
        return started[-1]

    yield start
    for each in started:
        each.process.kill()
        each.process.wait(60)
        each.process.stdin.close()


def test_boards_are_reset_and_stepped_together_and_a_dead_one_blocks_nobody(arena, session, tmp_path):
    operators = {
        "own": {"worker": "random"},
        "random": RANDOM,
        "hung": {"worker": "odd", "config": {"fault": "hung", "episodes": [0], "at": 1}},
        "bad": {"worker": "baseline", "config": {"behavior": "clever"}},
    }
    config = arena.shard("CartPole-v1", operators, fastlane_video_mode="grid", deadlines={"action_s": 10})
    frames = tmp_path / "frames"
    frames.mkdir()
    talk = session(config, MOSAIC_FASTLANE_DIR=str(frames))
    (refused,) = talk.wait(board="bad", status="refused")
    assert "clever" in refused["message"]
    talk.tell(cmd="reset", seed=7, id=1)
    began = {reply["board"]: reply for reply in talk.wait(3, status="reset")}
    assert set(began) == {"own", "random", "hung"}
    assert {reply["seed"] for reply in began.values()} == {7}
    seen = [reply["turns"]["agent"]["observation"] for reply in began.values()]
    assert seen[0] == seen[1] == seen[2], "one seed, one beginning"
    legal = [{"action": 0, "label": "left", "key": "left"}, {"action": 1, "label": "right", "key": "right"}]
    assert began["own"]["turns"]["agent"]["legal_moves"] == legal
    talk.tell(cmd="step", n=4, id=2)
    steps = talk.wait(4, board="random", status="step")
    assert [reply["step"] for reply in steps] == [1, 2, 3, 4], "while another hangs"
    assert steps[0]["moved"]["agent"]["label"] in {"left", "right"}
    (failure,) = talk.wait(board="hung", status="failure")
    assert (failure["kind"], failure["operator"]) == ("hung", "hung")
    talk.wait(board="hung", status="over")
    talk.tell(cmd="play", rate=200, boards=["own"], id=3)
    (over,) = talk.wait(board="own", status="over")
    assert over["ended"] == "terminated"
    assert (frames / "main.ring").exists()
    talk.tell(cmd="dance", id=4)
    talk.tell(cmd="step", boards=["nobody"], id=5)
    assert [reply["message"][:20] for reply in talk.wait(2, type="error")] == [
        "cmd 'dance' is not o",
        "there is no board 'n",
    ]
    talk.stop()
    assert {path.suffix for path in frames.iterdir()} == {".ring"}


def test_a_person_plays_with_names_keys_confirmation_and_a_default_when_time_is_up(arena, session):
    person = {"worker": "human", "config": {"confirm": True, "keys": {"q": 0}, "timeout_s": 60}}
    operators = {"me": person, "own": {"worker": "noop"}}
    lineups = {"game": {"player_1": "me", "player_2": "own"}}
    talk = session(arena.shard("tictactoe_v3", operators, lineups, environment={"family": "aec"}))
    talk.wait(status="ready")
    talk.tell(cmd="reset")
    talk.wait(status="reset")
    talk.tell(cmd="step")
    (waiting,) = talk.wait(status="waiting_for_human")
    assert waiting["waiting"] == ["player_1"]
    assert len(waiting["turns"]["player_1"]["legal_moves"]) == 9
    talk.tell(cmd="human_input", move="q")
    assert talk.wait(type="confirm")[0]["action"] == 0
    talk.tell(cmd="cancel_input")
    talk.wait(type="input_cancelled")
    talk.tell(cmd="human_input", move="column 2 row 2")
    assert talk.wait(type="confirm")[0]["action"] == 4
    talk.tell(cmd="human_input", player_id="player_1", move=4)
    talk.wait(type="accepted", action=4)
    (moved,) = talk.wait(status="step")
    assert moved["moved"]["player_1"]["action"] == 4
    talk.tell(cmd="human_input", move=3)
    assert "not the turn" in talk.wait(type="error")[0]["message"]
    talk.tell(cmd="step", agent="player_2")
    (moved,) = talk.wait(status="step")
    assert set(moved["moved"]) == {"player_2"}
    talk.tell(cmd="step")
    talk.wait(status="waiting_for_human")
    talk.tell(cmd="human_input", move=4)
    assert "not legal now" in talk.wait(type="error")[0]["message"]
    talk.stop()


def test_a_reset_while_a_person_is_asked_drops_their_move_and_the_steps_behind_it(arena, session):
    operators = {"me": {"worker": "human"}, "own": {"worker": "random"}}
    lineups = {"mine": {"player_1": "me", "player_2": "own"}}
    talk = session(arena.shard("tictactoe_v3", operators, lineups, environment={"family": "aec"}))
    talk.tell(cmd="reset", seed=3)
    talk.tell(cmd="step", n=5)
    talk.wait(status="waiting_for_human")
    talk.tell(cmd="step")
    talk.tell(cmd="reset", seed=4, id="again")
    assert talk.wait(type="board")[0]["id"] == "again"
    talk.tell(cmd="human_input", move=4)
    assert "not the turn" in talk.wait(type="error")[0]["message"]
    talk.tell(cmd="play", rate=1000)
    assert talk.wait(type="board")[0]["status"] == "waiting_for_human"
    talk.tell(cmd="human_input", move=4)
    assert talk.wait(status="step")[0]["moved"]["player_1"]["action"] == 4
    talk.wait(status="waiting_for_human")
    talk.stop()


def test_pause_and_the_end_of_an_episode_stop_steps_that_are_left(arena, session):
    operators = {"me": {"worker": "human"}, "own": {"worker": "random"}}
    lineups = {"mine": {"player_1": "me", "player_2": "own"}, "theirs": {"*": "own"}}
    talk = session(arena.shard("tictactoe_v3", operators, lineups, environment={"family": "aec"}))
    talk.tell(cmd="reset", seed=3)
    talk.wait(2, status="reset")
    talk.tell(cmd="step", n=9, boards=["mine"])
    talk.wait(status="waiting_for_human")
    talk.tell(cmd="pause")
    talk.tell(cmd="human_input", move=4)
    assert talk.wait(type="board")[0]["step"] == 1, "a person who was asked may still move"
    talk.tell(cmd="step", agent="player_2", boards=["mine"], id="last")
    (stepped,) = talk.wait(type="board")
    assert (stepped["id"], stepped["step"]) == ("last", 2)
    talk.tell(cmd="step", n=10_000, boards=["theirs"], id="all")
    (over,) = talk.wait(status="over")
    assert (over["id"], over["ended"]) == ("all", "terminated")
    talk.tell(cmd="step", boards=["theirs"], id="more")
    (over,) = talk.wait(type="board")
    assert (over["id"], over["message"]) == ("more", "no episode is running: send reset")
    for n in (0, 10_001):
        talk.tell(cmd="step", n=n)
        assert talk.wait(type="error")[0]["message"] == f"n {n} is not a number of steps from 1 to 10,000"
    talk.stop()


def test_each_board_may_have_a_seed_of_its_own(arena, session):
    talk = session(arena.shard("CartPole-v1", {"own": {"worker": "random"}, "still": {"worker": "noop"}}))
    talk.tell(cmd="reset", seeds={"own": 5, "still": 6})
    assert {reply["board"]: reply["seed"] for reply in talk.wait(2, status="reset")} == {"own": 5, "still": 6}
    talk.tell(cmd="reset", seeds={"stil": 6})
    assert "no board 'stil'; did you mean 'still'?" in talk.wait(type="error")[0]["message"]
    talk.tell(cmd="reset", seeds={"own": "six"})
    assert talk.wait(type="error")[0]["message"] == "seed of own 'six' is not a whole number of 0 or more"
    talk.tell(cmd="reset", seeds={"own": 7})
    assert {reply["episode"] for reply in talk.wait(2, status="reset")} == {1}, "what is refused begins no episode"
    talk.stop()


def test_nine_boards_are_refused(arena):
    lineups = {f"board {number}": {"*": "own"} for number in range(9)}
    config = arena.shard("CartPole-v1", {"own": {"worker": "random"}}, lineups, mode="manual")
    events, _ = arena.run("nine", config, code=2, interactive=True)
    assert events["run_failed"][0]["error"] == "lineups: 9 do not fit side by side; give at most 8"


def test_moves_of_chess_go_and_cards_have_the_names_that_players_use(arena, session):
    config = arena.shard("chess_v6", {"me": {"worker": "human"}}, environment={"family": "aec"})
    talk = session(config)
    talk.tell(cmd="reset")
    for move in ("e2e4", "e7e5", "G1F3"):  # of both sides, in the squares of the picture
        talk.tell(cmd="step")
        talk.wait(status="waiting_for_human")
        talk.tell(cmd="human_input", move=move)
        (stepped,) = talk.wait(status="step")
        (moved,) = stepped["moved"].values()
        assert moved["label"] == move.lower()
    talk.stop()
    script = (
        "import json, chess\n"
        "from arena_worker.labels import labels_of\n"
        "from gymnasium.spaces import Discrete\n"
        "from mosaic_worker.board_moves import chess_move\n"
        "from pettingzoo.classic import go_v5\n"
        "from pettingzoo.classic.chess import chess_utils\n"
        "for fen in (chess.STARTING_FEN, 'n1q1k3/1P6/8/8/3QN3/8/8/R3K2R w KQ - 0 1'):\n"
        "    chess_utils.legal_moves(chess.Board(fen))\n"
        "known = chess_utils.actions_to_moves\n"
        "wrong = [uci for action, uci in known.items() if chess_move(action) != uci.removesuffix('q')]\n"
        "env = go_v5.env(board_size=9, render_mode='rgb_array')\n"
        "names = labels_of('go_v5', env, env.action_space('black_0'), 'black_0')\n"
        "env.reset()\n"
        "env.step(names.index('c9'))\n"
        "picture = env.render()\n"
        "size = picture.shape[0] // 9\n"
        "dark = [[int(picture[(2 * row + 1) * size // 2, (2 * column + 1) * size // 2].sum()) for column in range(9)]\n"
        "    for row in range(9)]\n"
        "gin = labels_of('gin_rummy_v4', None, Discrete(110), 'player_0')\n"
        "lowest = min((value, row, column) for row, line in enumerate(dark) for column, value in enumerate(line))\n"
        "print(json.dumps([wrong, len(known), names[-1], lowest[1:], gin[18], gin[58]]))\n"
    )
    command = [arena.python, "-c", script]
    done = subprocess.run(command, env=arena.environ, capture_output=True, text=True, check=True, timeout=120)
    wrong, known, last, darkest, discard, knock = json.loads(done.stdout.splitlines()[-1])
    assert wrong == []
    assert known > 60, "moves of every kind"
    assert (last, darkest) == ("pass", [0, 2]), "c9 is in the top row of the picture, third from the left"
    assert (discard, knock) == ("discard KS", "knock AS")


def test_a_person_who_does_not_move_has_the_declared_default_played(arena, session):
    person = {"worker": "human", "config": {"timeout_s": 0.2, "default": "noop"}}
    talk = session(arena.shard("MiniGrid-Empty-5x5-v0", {"me": person}))
    talk.tell(cmd="reset", seed=1)
    talk.tell(cmd="step")
    assert talk.wait(status="failure")[0]["kind"] == "hung"
    (moved,) = talk.wait(status="step")
    assert moved["moved"]["agent"]["label"] == "done"
    talk.stop()


def test_each_board_has_a_stream_that_shows_every_step(arena, session, tmp_path):
    operators = {"own": {"worker": "random"}, "still": {"worker": "noop"}}
    config = arena.shard("FrozenLake-v1", operators, fastlane_video_mode="single")
    talk = session(config, MOSAIC_FASTLANE_DIR=str(tmp_path))
    streams = {reply["board"]: reply["stream"] for reply in talk.wait(2, status="ready")}
    assert streams == {"own": "board-0", "still": "board-1"}
    talk.tell(cmd="reset", seed=3)
    talk.wait(2, status="reset")
    talk.tell(cmd="step", n=3)
    talk.wait(2, step=2)
    for stream in streams.values():
        assert struct.unpack_from("<Q", (tmp_path / f"{stream}.ring").read_bytes(), 8 * 11)[0] >= 3, (
            "no step is left out"
        )
    talk.stop()


def test_a_slow_model_has_its_own_time_and_what_it_said_is_shown(arena, session):
    model = {"worker": "odd", "config": {"thinks_s": 7}}
    config = arena.shard("MiniGrid-Empty-5x5-v0", {"model": model}, failures={"retry": 1}, deadlines={"action_s": 6})
    talk = session(config)
    talk.tell(cmd="reset", seed=1)
    talk.tell(cmd="step")
    (failure,) = talk.wait(status="failure")
    assert (failure["kind"], failure["then"]) == ("no_answer", "retry")
    (stepped,) = talk.wait(status="step")
    moved = stepped["moved"]["agent"]
    assert (moved["action"], moved["report"]) == (1, {"calls": 2}), "it was waited for, and not killed"
    assert moved["said"] == "step 0 of [160, 160, 3]", "it has seen a picture"
    talk.stop()


def test_a_policy_that_died_between_episodes_is_started_again_by_reset(arena, session):
    operators = {
        "gone": {"worker": "odd", "config": {}},
        "mute": {"worker": "odd", "config": {"fault": "no beginning", "episodes": [1]}},
        "off": {"worker": "odd", "config": {"fault": "raised", "episodes": [1], "at": -1}},
    }
    talk = session(arena.shard("CartPole-v1", operators))
    talk.tell(cmd="reset")
    talk.wait(3, status="reset")
    os.kill(process_with(str(talk.folder / "gone")), signal.SIGKILL)
    talk.tell(cmd="reset")
    seen = {}
    for reply in talk.wait(7, type="board"):
        said = (reply["kind"], reply.get("then")) if reply["status"] == "failure" else reply["status"]
        seen.setdefault(reply["board"], []).append(said)
    assert seen == {
        "gone": [("died", "restart"), "reset"],
        "mute": [("died", "restart"), ("died", None), "over"],
        "off": [("raised", "forfeit"), "over"],
    }
    talk.tell(cmd="reset")
    assert {reply["board"] for reply in talk.wait(3, status="reset")} == {"gone", "mute", "off"}
    talk.tell(cmd="step")
    talk.wait(3, status="step")
    talk.stop()


def process_with(text):
    """The process that has a text in its command line."""
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if text.encode() in (entry / "cmdline").read_bytes():
                return int(entry.name)
    raise AssertionError(text)
