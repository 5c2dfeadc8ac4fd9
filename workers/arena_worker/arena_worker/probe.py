"""The probe finds out whether a decision depends on the batch that it is part of.

Rounding may differ with the size of a batch and with the place of a row. A policy is asked about the same observations
alone and in batches, and every bit is compared. Equal: it is batched freely. Equal within batches of one size: batches
are filled up to that size. Otherwise it is asked one by one. The answers' hash is the policy's numerics fingerprint.
"""

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from arena_worker.games import Game, Turn
from arena_worker.seats import BATCH, PolicySeat
from mosaic_worker.encoding import encode

__all__ = ["Sights", "look_around", "probe"]

_STEPS = 20
_SEED = 20_000
_SIZES = (16, 32, 64)
"""Sizes to which batches may be filled up. They are the same for every number of lanes."""
_TRIED = (*range(2, 18), 24, 31, 32, 33, 48, 63, 64)
"""Sizes of batches that are compared."""
_KNOWN, _KNOWN_SLOW = 16, 3
"""Observations that are compared, and how many for a policy that is asked one by one, which may be a slow one."""
_SHIFTS = (0, 5, 10)


class Sights:
    """What agents see in a few steps of an environment, and the hash of it: the environment's fingerprint."""

    def __init__(self) -> None:
        self.turns: dict[str, list[Turn]] = {}
        self._hash = hashlib.sha256()

    def add(self, turns: dict[str, Turn], rewards: dict[str, float]) -> None:
        """Keep what is seen."""
        for agent, turn in turns.items():
            self.turns.setdefault(agent, []).append(turn)
            self._hash.update(encode([agent, turn.observation, turn.mask]))
        self._hash.update(encode(rewards))

    @property
    def fingerprint(self) -> str:
        """Identify the numerics of the environment on this machine."""
        return self._hash.hexdigest()[:16]


def look_around(game: Game, moves: dict[str, Any]) -> Sights:
    """Take 20 steps at random, the same wherever this runs."""
    generator, sights = np.random.default_rng(_SEED), Sights()
    turns = game.reset(_SEED)
    sights.add(turns, {})
    for step in range(_STEPS):
        turns = game.move({agent: moves[agent].random(turn.mask, generator) for agent, turn in turns.items()})
        sights.add(turns, game.rewards)
        if not turns:
            turns = game.reset(_SEED + step)
    return sights


def probe(seat: PolicySeat, turns: Sequence[Turn], timeout_s: float) -> str:
    """Find out how a policy may be asked, set the seat accordingly, and return a word for it.

    PolicyError if it does not answer.
    """
    count = _KNOWN if seat.is_able else _KNOWN_SLOW
    turns = [turns[row % len(turns)] for row in range(count)]
    seat.batch, seat.sizes = 1, ()
    alone = [_ask(seat, [turn], [row], timeout_s)[0] for row, turn in enumerate(turns)]
    again = [_ask(seat, [turn], [row], timeout_s)[0] for row, turn in enumerate(turns)]
    way = "single" if alone == again else "unrepeatable"
    reference = alone
    if seat.is_able and way == "single":
        seat.batch = BATCH
        if all(_same(seat, turns, alone, size, timeout_s) for size in _TRIED):
            way = "free"
        else:
            way, reference = _padded(seat, turns, alone, timeout_s)
    digest = hashlib.sha256(way.encode())
    for answer in reference if way != "unrepeatable" else ():
        digest.update(answer)
    seat.fingerprint = f"{way}-{digest.hexdigest()[:16]}"
    return way


def _padded(seat: PolicySeat, turns: list[Turn], alone: list[bytes], timeout_s: float) -> tuple[str, list[bytes]]:
    """Look for a size of batches at which neither the place of a row nor its neighbours matter.

    Larger sizes that give the same bits are allowed, too.
    """
    for size in _SIZES:
        _fill(seat, (size,), timeout_s)
        first = [_ask(seat, [turn], [row], timeout_s)[0] for row, turn in enumerate(turns)]
        if not all(_same(seat, turns, first, count, timeout_s) for count in _TRIED if count <= size):
            continue
        allowed = [size]
        for larger in _SIZES[_SIZES.index(size) + 1 :]:
            _fill(seat, (larger,), timeout_s)
            if all(_same(seat, turns, first, count, timeout_s) for count in (1, *_TRIED) if count <= larger):
                allowed.append(larger)
        _fill(seat, tuple(allowed), timeout_s)
        return f"filled-{size}", first
    _fill(seat, (), timeout_s)
    return "single", alone


def _fill(seat: PolicySeat, sizes: tuple[int, ...], timeout_s: float) -> None:
    seat.batch, seat.sizes = max(sizes, default=1), sizes
    seat.begin_spare_lanes(timeout_s)


def _same(seat: PolicySeat, turns: list[Turn], expected: list[bytes], size: int, timeout_s: float) -> bool:
    """Whether batches of a size give what is expected, with the observations in several places."""
    known = len(expected)
    for shift in _SHIFTS:
        rows = [(row + shift) % known for row in range(size)]
        answers = _ask(seat, [turns[row] for row in rows], rows, timeout_s)
        if any(answer != expected[row] for answer, row in zip(answers, rows, strict=True)):
            return False
    return True


def _ask(seat: PolicySeat, turns: list[Turn], seeds: list[int], timeout_s: float) -> list[bytes]:
    """Ask about observations, each in a fresh episode whose seed belongs to it; return every bit of the answers."""
    lanes = range(seat.probe_lane, seat.probe_lane + len(turns)) if seat.is_able else [0]
    for lane, seed in zip(lanes, seeds, strict=True):
        seat.process.post(seat.begin(lane, seed, 0), None, timeout_s, "begin_episode")
    line = seat.request(lanes, turns, probabilities=True)
    seat.process.post(line, "decision", timeout_s, "select_actions")
    while True:
        for sent, reply in seat.process.wait():
            if reply.get("type") == "error" or sent.purpose == "decision":
                return [encode(list(each)) for each in seat.decisions(reply, len(turns))]
