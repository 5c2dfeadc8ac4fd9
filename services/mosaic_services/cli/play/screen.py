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
_OVER = frozenset({"over", "failed", "refused"})
_ARROWS = {"left": "←", "right": "→", "up": "↑", "down": "↓", "space": "space"}


@dataclass
class _Board:
    """What is known of one board."""

    name: str
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

    def __init__(self, bus: Bus, talk: Conversation, boards: dict[str, dict[str, Any]], seed: int | None) -> None:
        """Show boards; each has the reply with which it became ready."""
        self._talk = talk
        self._seed = seed
        self._boards = {name: _Board(name) for name in boards}
        for name, ready in boards.items():
            if ready.get("stream"):
                self._boards[name].feed = FrameFeed(bus, talk.session, ready["stream"])
        self._waiting: dict[str, Any] | None = None
        self._typed = ""
        self._message = ""
        self._is_playing = False
        self._shown = ""

    def run(self, watched: tuple[int, float] | None) -> None:
        """Play until the person leaves."""
        steps, rate = watched or (None, None)
        self._begin(rate)
        with Keys() as keys:
            sys.stdout.write(ALTERNATE)
            try:
                while True:
                    self._hear(steps)
                    self._show(rate)
                    key = keys.next(_KEY_S)
                    if key is not None and not self._press(" ".join(key.split()) or "space", rate):
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

    def _begin(self, rate: float | None) -> None:
        self._talk.ask(cmd="reset", **({} if self._seed is None else {"seed": self._seed}))
        self._seed = None  # the next episode is another one
        self._is_playing = True
        self._talk.ask(**({"cmd": "step"} if rate is None else {"cmd": "play", "rate": rate}))

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
        if kind == "error":
            self._message = str(told.get("message"))
        elif kind == "confirm":
            self._message = f"{told['label']}? once more to play it, backspace to take it back"
        elif kind == "board" and told["board"] in self._boards:
            board = self._boards[told["board"]]
            board.told = told if told["status"] != "failure" else {**board.told, "message": told.get("message")}
            if told["status"] == "waiting_for_human":
                self._waiting, self._message = told, ""
            elif told["status"] == "step" and steps is None:
                self._waiting = None
                self._talk.ask(cmd="step")
            elif told["status"] in _OVER:
                self._waiting = None
            if steps is not None and told.get("step", 0) >= steps and self._is_playing:
                self._is_playing = False
                self._talk.ask(cmd="pause")

    # What the person does.

    def _press(self, key: str, rate: float | None) -> bool:
        """Carry out a key; False if it is the one that ends it."""
        if key == "q" and not self._typed:
            return False
        if all(board.is_over for board in self._boards.values()):
            if key == "enter":
                self._begin(rate)
        elif self._waiting is not None:
            self._move(key)
        elif rate is not None:
            self._steer(key, rate)
        else:
            self._message = "it is not your turn yet"
        return True

    def _steer(self, key: str, rate: float) -> None:
        """Watch: pause, go on, or take one step."""
        if key == "space":
            self._is_playing = not self._is_playing
            self._talk.ask(**({"cmd": "play", "rate": rate} if self._is_playing else {"cmd": "pause"}))
        elif key == "s":
            self._is_playing = False
            self._talk.ask(cmd="pause")
            self._talk.ask(cmd="step")

    def _move(self, key: str) -> None:
        keys = self._keys()
        if keys is not None:
            if key == "escape":
                self._talk.ask(cmd="cancel_input")
                self._message = ""
            elif key in keys:
                self._talk.ask(cmd="human_input", action=keys[key])
            else:
                self._message = f"{key} plays nothing now"
        elif key == "enter" and self._typed:
            self._talk.ask(cmd="human_input", action=load_yaml(self._typed) if self._typed[0] == "[" else self._typed)
            self._typed = ""
        elif key == "escape":
            self._typed = self._typed[:-1]
        elif len(key) == 1 or key == "space":
            self._typed += " " if key == "space" else key

    def _legal(self) -> list[dict[str, Any]] | None:
        """The legal moves of the person whose turn it is; None if they cannot be listed."""
        if self._waiting is None:
            return None
        turn = self._waiting["turns"][self._waiting["waiting"][0]]
        found: list[dict[str, Any]] | None = turn.get("legal_moves")
        return found

    def _keys(self) -> dict[str, Any] | None:
        """The action of each key; None if some move has none, so that moves are typed."""
        legal = self._legal()
        if legal is None or any(each.get("key") is None for each in legal):
            return None
        return {each["key"]: each["action"] for each in legal}

    # What is shown.

    def _show(self, rate: float | None) -> None:
        columns, rows = shutil.get_terminal_size()
        width = max(8, columns // len(self._boards) - 1)
        height = max(1, rows - _ABOUT - _BELOW)
        parts = [f"\033[{row};1H\033[0m\033[K" for row in range(1, rows + 1)]
        for place, board in enumerate(self._boards.values()):
            left = place * (width + 1) + 1
            lines = board.lines(width, height)
            parts += [f"\033[{row};{left}H\033[0m{line}" for row, line in enumerate(lines, start=1)]
        below = [self._offer(columns), self._message, self._help(rate)]
        for row, line in enumerate(below, start=rows - _BELOW + 1):
            parts.append(f"\033[{row};1H\033[0m{plain(line)[:columns]}")
        text = "".join(parts)
        if text != self._shown:
            self._shown = text
            sys.stdout.write(text)
            sys.stdout.flush()

    def _offer(self, columns: int) -> str:
        if self._waiting is None:
            return ""
        who, legal = self._waiting["waiting"][0], self._legal()
        if self._keys() is not None:
            moves = sorted(legal or (), key=lambda each: str(each["key"]))
            named = "  ".join(f"[{_ARROWS.get(each['key'], each['key'])}] {each['label']}" for each in moves)
            if len(named) + len(who) < columns:
                return f"{who}: {named}"
            return f"{who}: " + "  ".join(f"[{_ARROWS.get(each['key'], each['key'])}]" for each in moves)
        known = ", ".join(f"{each['action']} {each['label']}" for each in legal or ()) or "numbers, such as [0.5]"
        return f"{who} types a move and enter> {self._typed}_   legal: {known}"

    def _help(self, rate: float | None) -> str:
        if all(board.is_over for board in self._boards.values()):
            return "[enter] play again   [q] quit"
        if rate is None:
            return "[q] quit"
        return f"[space] {'pause' if self._is_playing else 'play'}   [s] step   [q] quit"
