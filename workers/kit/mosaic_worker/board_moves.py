"""The names of moves on PettingZoo's boards, for people and for language models."""

from math import isqrt

__all__ = ["chess_move", "go_move"]

_KNIGHT = [(x, y) for x in range(-2, 3) for y in range(-2, 3) if abs(x) + abs(y) == 3]  # noqa: PLR2004 - a knight's move
_QUEEN = [(x, y) for x in (-1, 0, 1) for y in (-1, 0, 1) if x or y]
_QUEEN_WAYS, _WAYS = 56, 73
_FILES = "abcdefgh"
_COLUMNS = "abcdefghjklmnopqrst"
"""Of a Go board: there is no i."""


def chess_move(action: int, *, is_mirrored: bool = False) -> str:
    """Name one of the moves of PettingZoo's chess in UCI notation: a square, and one of 73 ways to leave it.

    Ranks count from the mover's own side, or with `is_mirrored` from the other.
    """
    square, way = divmod(action, _WAYS)
    column, row = divmod(square, 8)
    piece = ""
    if way < _QUEEN_WAYS:
        length, direction = divmod(way, 8)
        right, up = (part * (length + 1) for part in _QUEEN[direction])
    elif way < _QUEEN_WAYS + 8:
        right, up = _KNIGHT[way - _QUEEN_WAYS]
    else:
        direction, rank = divmod(way - _QUEEN_WAYS - 8, 3)
        right, up, piece = direction - 1, 1, "nbr"[rank]
    to_column, to_row = column + right, row + up
    if not (0 <= to_column < 8 and 0 <= to_row < 8):  # noqa: PLR2004 - it is never legal, but needs a name of its own
        return f"off the board {action}"
    if is_mirrored:
        row, to_row = 7 - row, 7 - to_row
    return f"{_FILES[column]}{row + 1}{_FILES[to_column]}{to_row + 1}{piece}"


def go_move(action: int, count: int) -> str:
    """Name one of the `count` moves of PettingZoo's Go: a column and a row from the bottom, as its picture shows them.

    The last is to pass.
    """
    size = isqrt(count - 1)
    if action == size * size:
        return "pass"
    column, row = divmod(action, size)
    return f"{_COLUMNS[column]}{size - row}"
