"""PettingZoo's Classic games in words, from the observation alone: only chess can print itself."""

from typing import Any

import numpy as np

from llm_worker.sights.base import Describer, Scene
from mosaic_worker.board_moves import chess_move

__all__ = ["ChessDescriber", "ConnectFourDescriber", "GoDescriber", "RpsDescriber", "TicTacToeDescriber"]

_START = {0: "rnbqkbnr", 1: "pppppppp", 6: "PPPPPPPP", 7: "RNBQKBNR"}


class TicTacToeDescriber(Describer):
    """Three by three cells; the first index of the board is the column."""

    rules = (
        "Tic-tac-toe: you and your opponent take turns to mark one of nine cells. Whoever has three marks in a row, "
        "column or diagonal wins. Your marks are X, those of your opponent are O, and a dot is an empty cell."
    )

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self.names = [f"column {cell // 3 + 1} row {cell % 3 + 1}" for cell in range(9)]

    def text(self, observation: Any) -> str:
        """Draw what is seen."""
        board = np.asarray(observation)
        rows = [" ".join(_mark(board[column, row]) for column in range(3)) for row in range(3)]
        return "The board:\n         column 1 2 3\n" + "\n".join(
            f"row {n}:          {row}" for n, row in enumerate(rows, 1)
        )


class ConnectFourDescriber(Describer):
    """Six rows of seven columns."""

    rules = (
        "Connect four: you and your opponent take turns to drop a piece into one of seven columns; it falls to the "
        "lowest free cell. Whoever has four pieces in a row, column or diagonal wins. Your pieces are X, those of your "
        "opponent are O, and a dot is an empty cell."
    )

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self.names = [f"column {column + 1}" for column in range(7)]

    def text(self, observation: Any) -> str:
        """Draw what is seen."""
        board = np.asarray(observation)
        rows = [" ".join(_mark(cell) for cell in row) for row in board]
        return "The board, from the top row to the bottom row:\n1 2 3 4 5 6 7\n" + "\n".join(rows)


class GoDescriber(Describer):
    """A board of any size; the last action is to pass."""

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self._size = int(scene.observation_space["shape"][0])
        cells = [f"row {row + 1} column {column + 1}" for row in range(self._size) for column in range(self._size)]
        self.names = [*cells, "pass"]

    @property
    def rules(self) -> str:
        """The rules, with the size of the board."""
        return (
            f"Go on a board of {self._size} by {self._size}: you and your opponent take turns to put a stone on an "
            "empty point. Stones without a free neighbour are captured. Whoever surrounds more wins; the game ends "
            "when both pass. Your stones are X, those of your opponent are O, and a dot is an empty point."
        )

    def text(self, observation: Any) -> str:
        """Draw what is seen."""
        board = np.asarray(observation)[:, :, 1::-1]  # the stones of whoever moved last come first
        rows = [" ".join(_mark(board[row, column]) for column in range(self._size)) for row in range(self._size)]
        return "The board:\n" + "\n".join(f"row {number:2d}: {row}" for number, row in enumerate(rows, 1))


class RpsDescriber(Describer):
    """Rock, paper, scissors."""

    rules = (
        "Rock, paper, scissors, over several rounds: rock beats scissors, scissors beat paper, paper beats rock. "
        "You and your opponent choose at the same time."
    )

    def text(self, observation: Any) -> str:
        """Draw what is seen."""
        seen = int(np.asarray(observation))
        known = list(self.scene.meanings or ("rock", "paper", "scissors"))
        if seen >= len(known):
            return "The first round begins."
        return f"In the last round your opponent chose {known[seen]}."


class ChessDescriber(Describer):
    """The board from the planes of the observation; moves in UCI notation, from the mover's own side."""

    rules = (
        "Chess. The board is shown from your side: you move up the board. Your pieces are capital letters (P pawn, N "
        "knight, B bishop, R rook, Q queen, K king), those of your opponent are small letters, and a dot is an empty "
        "square. A move is the square from which and the square to which a piece moves, such as e2e4; a pawn that "
        "reaches the last row becomes a queen unless another letter follows, as in e7e8n. Files a to h go from left to "
        "right, ranks 1 to 8 from the bottom to the top, as on the board that is shown."
    )
    _PIECES = "PNBRQKpnbrqk"
    _FIRST = 7

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self.names = [chess_move(action) for action in range(int(scene.action_space["n"]))]

    def text(self, observation: Any) -> str:
        """Draw what is seen."""
        planes = np.asarray(observation)[:, :, self._FIRST : self._FIRST + 12]
        board = {}
        for row, column, kind in np.argwhere(planes).tolist():
            piece = self._PIECES[kind]
            # A pawn that may be taken en passant stands in the last row instead of its own place.
            at = 3 if (row, piece) == (0, "p") else 4 if (row, piece) == (7, "P") else row
            board[at, column] = piece
        if not board:  # the first observation of a game is empty
            board = {(row, column): piece for row, pieces in _START.items() for column, piece in enumerate(pieces)}
        rows = [" ".join(board.get((row, column), ".") for column in range(8)) for row in range(8)]
        return (
            "The board:\n" + "\n".join(f"{8 - row} {cells}" for row, cells in enumerate(rows)) + "\n  a b c d e f g h"
        )


def _mark(cell: Any) -> str:
    return "X" if cell[0] else "O" if cell[1] else "."
