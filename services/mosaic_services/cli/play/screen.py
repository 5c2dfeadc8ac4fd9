"""Plays in a terminal: boards side by side with their frames, legal moves with their keys, one key a move."""

from __future__ import annotations

import shutil
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mosaic_bus.frames.feed import FrameFeed
from mosaic_services.cli.display.keys import Keys
from mosaic_services.cli.display.output import number, plain
from mosaic_services.cli.frames.terminal import ALTERNATE, BACK, draw
from mosaic_services.specs import load_yaml

if TYPE_CHECKING:
    from mosaic_bus import Bus
    from mosaic_bus.frames import Frame
    from mosaic_services.cli.play.conversation import Conversation

__all__ = ["Screen"]

_LISTEN_S = 0.01
_FRAME_S = 0.005
_KEY_S = 0.02
# Lines of a board besides its frame, and lines below the boards.
_ABOUT, _BELOW = 3, 3
_PLAIN_COLUMNS = 200
_SLOWEST, _FASTEST = 0.1, 1000.0
_MOST_DIGITS = 4
_OVER = frozenset({"over", "failed", "refused"})
_ARROWS = {"left": "←", "right": "→", "up": "↑", "down": "↓", "space": "space"}


@dataclass
class _Board:
    """What is known of one board."""

    name: str
    agents: tuple[str, ...] = ()
    has_people: bool = False
    feed: FrameFeed | None = None
    frame: Frame | None = None
    told: dict[str, Any] = field(default_factory=dict)

    @property
    def is_over(self) -> bool:
        return self.told.get("status") in _OVER

    def lines(self, columns: int, rows: int) -> list[str]:
        """What is shown of it: its name, its frame, and how it stands."""
        told = self.told
        title = f"{plain(self.name)}  {told.get('status', 'starting')}"
        moved = [f"{agent}: {each.get('label')}" for agent, each in (told.get("moved") or {}).items()]
        returns = [f"{agent} {number(value)}" for agent, value in (told.get("returns") or {}).items()]
        ended = [str(told["ended"])] if told.get("ended") else []
        ended += [f"won by {', '.join(told['winners'])}"] if told.get("winners") else []
        step = f"step {told.get('step', told.get('length', 0))}"
        below = ["  ".join([step, *moved]), "  ".join([*(["return"] if returns else []), *returns, *ended])]
        if self.frame is not None:
            picture = draw(self.frame, columns, rows)
        else:
            seen = [f"{agent} sees {turn.get('observation')}" for agent, turn in (told.get("turns") or {}).items()]
            picture = [
                plain(each)[:columns] for each in [*seen, *([str(told["message"])] if "message" in told else [])]
            ]
        return [title[:columns], *picture[:rows], *(plain(each)[:columns] for each in below)]


class Screen:
    """The terminal of a person who plays, or who watches."""

    def __init__(
        self, bus: Bus, talk: Conversation, boards: dict[str, dict[str, Any]], seed: int | None, rate: float
    ) -> None:
        """Show boards; each has the reply with which it became ready. `rate` is that of boards without people."""
        self._talk = talk
        self._seed = seed
        self._rate = rate
        self._boards = {
            name: _Board(name, agents=tuple(ready["agents"]), has_people=bool(ready["people"]))
            for name, ready in boards.items()
        }
        for name, ready in boards.items():
            if ready.get("stream"):
                self._boards[name].feed = FrameFeed(bus, talk.session, ready["stream"])
        # Moves that are waited for, in order: agents, each with what its board said.
        self._wanted: list[tuple[str, dict[str, Any]]] = []
        self._player: str | None = None
        self._typed = ""
        self._message = ""
        self._is_playing = False
        self._shown = ""

    def run(self, steps: int | None) -> None:
        """Play until the person leaves; with `steps`, nobody plays by hand."""
        self._begin()
        with Keys(letters=True) as keys:
            sys.stdout.write(ALTERNATE)
            try:
                while True:
                    self._hear(steps)
                    self._show()
                    key = keys.next(_KEY_S)
                    if key is not None and not self._press(" ".join(key.split()) or "space"):
                        return
            except KeyboardInterrupt:
                return
            finally:
                sys.stdout.write(BACK)
                sys.stdout.flush()
                for board in self._boards.values():
                    if board.feed is not None:
                        board.feed.close()
                for board in self._boards.values():
                    print(f"{plain(board.name)}: {' '.join(board.lines(_PLAIN_COLUMNS, 0)[1:])}")

    def _begin(self) -> None:
        self._talk.ask(cmd="reset", **({} if self._seed is None else {"seed": self._seed}))
        self._seed = None  # the next episode is another one
        if people := self._named(has_people=True):
            self._talk.ask(cmd="step", boards=people)
        self._play()

    def _play(self) -> None:
        """Have the boards play on which nobody moves by hand."""
        self._is_playing = True
        if others := self._named(has_people=False):
            self._talk.ask(cmd="play", rate=self._rate, boards=others)

    def _named(self, *, has_people: bool) -> list[str]:
        return [name for name, board in self._boards.items() if board.has_people == has_people]

    # What the boards say.

    def _hear(self, steps: int | None) -> None:
        told = self._talk.listen(_LISTEN_S)
        while told is not None:
            self._take(told, steps)
            told = self._talk.listen(0.001)
        for board in self._boards.values():
            if board.feed is not None:
                board.frame = board.feed.next(_FRAME_S) or board.frame

    def _take(self, told: dict[str, Any], steps: int | None) -> None:
        kind = told.get("type")
        if kind == "accepted" and "agent" in told:
            if self._wanted and self._wanted[0][0] == told["agent"]:
                self._wanted.pop(0)
        elif kind == "error":
            self._message = str(told.get("message"))
        elif kind == "confirm":
            self._message = f"{told['label']}? once more to play it, backspace to take it back"
        elif kind == "board" and told["board"] in self._boards:
            board = self._boards[told["board"]]
            board.told = told if told["status"] != "failure" else {**board.told, "message": told.get("message")}
            if board.has_people and told["status"] != "failure":
                self._wanted = [each for each in self._wanted if each[1]["board"] != board.name]
            if told["status"] == "waiting_for_human":
                self._wanted += [(agent, told) for agent in told["waiting"]]
                self._message = ""
            elif told["status"] == "step" and board.has_people:
                self._talk.ask(cmd="step", boards=[board.name])
            if steps is not None and told.get("step", 0) >= steps and self._is_playing:
                self._is_playing = False
                self._talk.ask(cmd="pause")

    # What the person does.

    def _press(self, key: str) -> bool:
        """Carry out a key; False if it is the one that ends it."""
        if key == "q" and not (self._typed and self._wanted):
            return False
        if all(board.is_over for board in self._boards.values()):
            if key == "enter":
                self._begin()
        elif self._wanted:
            self._move(key)
        elif not self._named(has_people=True):
            self._steer(key)
        else:
            self._message = "it is not your turn yet"
        return True

    def _steer(self, key: str) -> None:
        """Watch: pause and go on, take steps, choose whose, change the rate."""
        self._message = ""
        if key == "space" and self._is_playing:
            self._pause()
        elif key == "space":
            self._play()
        elif key.isdigit():
            self._typed = (self._typed + key)[-_MOST_DIGITS:]
        elif key == "s":
            if self._is_playing:  # a pause also drops steps that were asked for before
                self._pause()
            whose = {} if self._player is None else {"agent": self._player}
            self._talk.ask(cmd="step", n=int(self._typed or 1), **whose)
            self._typed = ""
        elif key == "p":
            players = [None, *dict.fromkeys(agent for board in self._boards.values() for agent in board.agents)]
            self._player = players[(players.index(self._player) + 1) % len(players)]
        elif key in {"+", "-"}:
            self._rate = min(_FASTEST, max(_SLOWEST, self._rate * (2 if key == "+" else 0.5)))
            if self._is_playing:
                self._play()

    def _pause(self) -> None:
        self._is_playing = False
        self._talk.ask(cmd="pause")

    def _move(self, key: str) -> None:
        keys = self._keys()
        if keys is not None:
            if key == "escape":
                agent, told = self._wanted[0]
                self._talk.ask(cmd="cancel_input", agent=agent, board=told["board"])
                self._message = ""
            elif key in keys:
                self._offer_move(keys[key])
            else:
                self._message = f"{key} plays nothing now"
        elif key == "enter" and self._typed:
            self._offer_move(load_yaml(self._typed) if self._typed[0] == "[" else self._typed)
            self._typed = ""
        elif key == "escape":
            self._typed = self._typed[:-1]
        elif len(key) == 1 or key == "space":
            self._typed += " " if key == "space" else key

    def _offer_move(self, action: Any) -> None:
        agent, told = self._wanted[0]
        self._talk.ask(cmd="human_input", action=action, agent=agent, board=told["board"])

    def _legal(self) -> list[dict[str, Any]] | None:
        """The legal moves of the person whose turn it is; None if they cannot be listed."""
        if not self._wanted:
            return None
        agent, told = self._wanted[0]
        turn = told["turns"][agent]
        found: list[dict[str, Any]] | None = turn.get("legal_moves")
        return found

    def _keys(self) -> dict[str, Any] | None:
        """The action of each key; None if some move has none, so that moves are typed."""
        legal = self._legal()
        if legal is None or any(each.get("key") is None for each in legal):
            return None
        return {each["key"]: each["action"] for each in legal}

    # What is shown.

    def _show(self) -> None:
        columns, rows = shutil.get_terminal_size()
        width = max(8, columns // len(self._boards) - 1)
        height = max(1, rows - _ABOUT - _BELOW)
        parts = [f"\033[{row};1H\033[0m\033[K" for row in range(1, rows + 1)]
        for place, board in enumerate(self._boards.values()):
            left = place * (width + 1) + 1
            lines = board.lines(width, height)
            parts += [f"\033[{row};{left}H\033[0m{line}" for row, line in enumerate(lines, start=1)]
        below = [self._offer(columns), self._message, self._help()]
        for row, line in enumerate(below, start=rows - _BELOW + 1):
            parts.append(f"\033[{row};1H\033[0m{plain(line)[:columns]}")
        text = "".join(parts)
        if text != self._shown:
            self._shown = text
            sys.stdout.write(text)
            sys.stdout.flush()

    def _offer(self, columns: int) -> str:
        if not self._wanted:
            return ""
        (who, _), legal = self._wanted[0], self._legal()
        if self._keys() is not None:
            moves = sorted(legal or (), key=lambda each: str(each["key"]))
            named = "  ".join(f"[{_ARROWS.get(each['key'], each['key'])}] {each['label']}" for each in moves)
            if len(named) + len(who) < columns:
                return f"{who}: {named}"
            return f"{who}: " + "  ".join(f"[{_ARROWS.get(each['key'], each['key'])}]" for each in moves)
        known = ", ".join(f"{each['action']} {each['label']}" for each in legal or ()) or "numbers, such as [0.5]"
        return f"{who} types a move and enter> {self._typed}_   legal: {known}"

    def _help(self) -> str:
        if all(board.is_over for board in self._boards.values()):
            return "[enter] play again   [q] quit"
        if self._named(has_people=True):
            return "[q] quit"
        steps = f"{self._typed} steps" if self._typed else "step"
        steps += f" of {self._player}" if self._player is not None else ""
        return (
            f"[space] {'pause' if self._is_playing else 'play'}   [s] {steps} (type a number before)   [p] player   "
            f"[+] [-] {number(self._rate)} steps/s   [q] quit"
        )
