"""Seats: an agent of the game and the operator that decides for it."""

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from arena_worker.actions import Moves
from arena_worker.games import Game, Turn
from arena_worker.process import PolicyError, PolicyProcess
from mosaic_worker.arrays import SMALL, Slots, as_base64, stack
from mosaic_worker.encoding import encode
from mosaic_worker.frames.fastlane import FOLDER
from mosaic_worker.spaces import space_to_json

__all__ = ["BATCH", "OUTSTANDING", "Decision", "OwnSeat", "PolicySeat", "Seat", "said_in"]

BATCH = 64
"""The largest batch. The probe tries every size up to it, whatever the number of lanes, so that the way in which a
policy is asked does not depend on them."""
OUTSTANDING = 2
"""Batches of one seat that may be on their way: the policy decides on one while the environments take the other."""
_MOST_BYTES = 16 << 20
"""Of the shared memory for one batch; larger ones are written out."""


_MOST_SAID = 2000
"""Characters of a policy's words that are kept."""


class Decision(NamedTuple):
    """What an operator answered in one lane, and how likely it held each action."""

    action: Any
    probabilities: Any = None


def said_in(answer: dict[str, Any]) -> str | None:
    """Return the words with which a policy gave its answer, if there are any; the original's are `reasoning`."""
    said = answer.get("said", answer.get("reasoning"))
    return said[:_MOST_SAID] if isinstance(said, str) else None


class Seat:
    """An agent, and the operator that decides for it."""

    def __init__(self, operator: str, agent: str, game: Game) -> None:
        """Take the seat of an agent."""
        self.operator = operator
        self.agent = agent
        self.moves = Moves(game.action_spaces[agent], game.meanings[agent], game.keys.get(agent))
        self.fingerprint = operator

    def leave(self) -> None:
        """Give back what the seat holds."""


class OwnSeat(Seat):
    """An operator that needs no process: at random, or nothing at all."""

    def __init__(self, operator: str, agent: str, game: Game, behavior: str) -> None:
        """Act at `random`, or do nothing (`noop`)."""
        super().__init__(operator, agent, game)
        self.fingerprint = behavior
        self._generators: dict[int, np.random.Generator] = {}

    def begin(self, lane: int, seed: int) -> None:
        """Begin an episode."""
        self._generators[lane] = np.random.default_rng(seed)

    def decide(self, lane: int, turn: Turn) -> Decision:
        """Choose an action."""
        if self.fingerprint == "noop":
            return Decision(self.moves.noop(turn.mask))
        return Decision(self.moves.random(turn.mask, self._generators[lane]))


class PolicySeat(Seat):
    """A policy in a process of its own. Requests go out as whole lines; large arrays lie in shared memory."""

    def __init__(self, operator: str, agent: str, game: Game, process: PolicyProcess, lanes: int) -> None:
        """Prepare for `lanes` episodes at once; see `join`."""
        super().__init__(operator, agent, game)
        self.process = process
        self.lanes = 1
        """How many episodes it plays at once."""
        self.batch = 1
        """How many of them may be decided together."""
        self.sizes: tuple[int, ...] = ()
        """The numbers of rows that a batch may have, if that matters: it is then filled up to the next of them."""
        self.is_able = False
        """Whether it can be asked in batches."""
        self.is_asynchronous = False
        """Whether it is asked about each lane as soon as possible, and answers in any order."""
        self.decision_s = 0.0
        """How long a decision may take by the policy's own limits."""
        self.wants_pictures = False
        self.experiment: str | None = None
        self.is_in_lockstep = False
        """Whether it is asked again soon after each answer, one question at a time."""
        self._begins = False
        self._wanted = lanes
        self.probe_lane = lanes + BATCH
        """The first of the lanes that the probe uses. Below are those in which rows are played that fill a batch up."""
        self._game = game
        self._name = encode(agent).decode()
        self.purpose = f"select_action of {agent}"
        self._slots: Slots | None = None
        self._region = 0
        self._used = 0
        self._ready: dict[int, _Ready] = {}

    def join(self, seed: int, start_s: float) -> None:
        """Have the policy prepare for this agent; PolicyError if it refuses."""
        self._make_slots()
        request = self._init(seed) | {"lanes": self.probe_lane + BATCH}
        if self.is_in_lockstep:
            request["lockstep"] = True
        if self._slots is not None:
            request["slots"] = {"path": self._slots.path, "size": self._slots.size}
        try:
            ready = self.process.ask(request, start_s)
        finally:
            if self._slots is not None:  # both sides have mapped it: a file without a name cannot be left behind
                Path(self._slots.path).unlink(missing_ok=True)
        if ready.get("type") not in {"agent_ready", "agent_initialized"}:
            raise PolicyError("raised", f"init_agent was answered with {str(ready)[:120]}")
        if ready.get("slots") is not True:  # it does not read shared memory
            self.leave()
        granted = ready.get("lanes") or 0
        self._begins = granted >= 1
        self.is_able = granted >= self.probe_lane + BATCH
        self.lanes = self._wanted if self.is_able else 1
        self._learn(ready)

    def _learn(self, ready: dict[str, Any]) -> None:
        """Take in what a policy says about itself."""
        self.is_asynchronous = ready.get("asynchronous") is True and self.is_able
        self.wants_pictures = "picture" in (ready.get("wants") or ())
        if isinstance(ready.get("decision_s"), int | float):
            self.decision_s = float(ready["decision_s"])
        if self.is_asynchronous:
            self.leave()  # a place in shared memory is used again before a slow answer is there
            self.fingerprint = str(ready.get("fingerprint") or self.operator)

    def begin(self, lane: int, seed: int, episode: int) -> bytes:
        """Return the request with which an episode begins."""
        if not self._begins:
            return encode(self._init(seed))
        return encode({"cmd": "begin_episode", "agent": self.agent, "seed": seed, "episode": episode, "lane": lane})

    @property
    def least(self) -> int:
        """The smallest batch that wastes nothing."""
        return self.sizes[0] if self.sizes else 1

    def begin_spare_lanes(self, timeout_s: float) -> None:
        """Begin an episode in each lane that only fills batches up; PolicyError if that fails."""
        for lane in range(self._wanted, self._wanted + max(self.sizes, default=0)):
            request = {"cmd": "begin_episode", "agent": self.agent, "seed": 0, "episode": 0, "lane": lane}
            self.process.ask(request, timeout_s)

    def question(self, lane: int, turn: Turn, step: int, picture: Any) -> tuple[bytes, int]:
        """Return the request for a decision that may be answered any time, and the id of its answer."""
        number = next(self.process.numbers)
        request = {
            "cmd": "select_action",
            "id": number,
            "agent": self.agent,
            "lane": lane,
            "step": step,
            "observation": self._wire(turn.observation, 0)[0],
        }
        if turn.mask is not None:
            request["action_mask"] = self._wire(np.asarray(turn.mask), 0)[0]
        if picture is not None:
            request["picture"] = as_base64(np.ascontiguousarray(picture))
        return encode(request), number

    def request(self, lanes: Sequence[int], turns: Sequence[Turn], *, probabilities: bool = False) -> bytes:
        """Return the request for a decision in each lane; a batch that lacks rows is filled up."""
        self._used = (self._used + 1) % OUTSTANDING
        place = self._used * self._region
        if len(lanes) == 1 and not probabilities and not self.sizes and self._slots is not None:
            known = self._ready.get(lanes[0] * OUTSTANDING + self._used)
            line = known.fill(turns[0]) if known is not None else self._prepare(lanes[0], turns[0], place)
            if line is not None:
                return line
        if self.batch == 1 and not self.sizes:
            head = f'"select_action","agent":{self._name},"lane":{lanes[0]},"observation":'
            tail, seen, masks = ',"action_mask":', turns[0].observation, turns[0].mask
        else:
            count = len(lanes)
            lacking = next((size for size in self.sizes if size >= count), count) - count
            if lacking:
                lanes = [*lanes, *range(self._wanted, self._wanted + lacking)]
                turns = [*turns, *(turns[-1],) * lacking]
            head = f'"select_actions","agent":{self._name},"lanes":{list(lanes)},"observations":'
            tail, seen = ',"action_masks":', stack([turn.observation for turn in turns])
            masks = None if turns[0].mask is None else np.stack([turn.mask for turn in turns])
        seen, place = self._wire(seen, place)
        line = b'{"cmd":' + head.encode() + encode(seen)
        if masks is not None:
            line += tail.encode() + encode(self._wire(np.asarray(masks), place)[0])
        return line + (b',"probabilities":true}' if probabilities else b"}")

    @staticmethod
    def actions(reply: dict[str, Any], count: int) -> list[Any]:
        """Return what was decided in each lane; PolicyError if nothing was."""
        kind = reply.get("type")
        if kind == "actions":
            actions = reply.get("actions")
            if isinstance(actions, list) and len(actions) >= count:
                return actions
        elif kind in {"action", "action_selected"} and "action" in reply and reply.get("success") is not False:
            return [reply["action"]]
        said, named = reply.get("message") or reply.get("error"), reply.get("kind")
        raise PolicyError(
            named if isinstance(named, str) else "raised",
            str(said or f"{count} decisions were answered with {str(reply)[:120]}"),
        )

    def decisions(self, reply: dict[str, Any], count: int) -> list[Decision]:
        """Return what was decided in each lane, with probabilities; PolicyError if nothing was."""
        actions, found = self.actions(reply, count)[:count], reply.get("probabilities")
        chances = [found] if reply.get("type") != "actions" else found or [None] * count
        return [Decision(*pair) for pair in zip(actions, chances, strict=False)]

    def leave(self) -> None:
        """Give the shared memory back."""
        self._ready.clear()  # its arrays lie in the file
        if self._slots is not None:
            self._slots.remove()
            self._slots = None

    def _init(self, seed: int) -> dict[str, Any]:
        request = {
            "cmd": "init_agent",
            "agent": self.agent,
            "observation_space": space_to_json(self._game.observation_spaces[self.agent]),
            "action_space": space_to_json(self._game.action_spaces[self.agent]),
            "seed": seed,
            "environment": self._game.about(),
            "experiment": self.experiment,
        }
        meanings = self._game.meanings[self.agent]
        return request if meanings is None else {**request, "action_meanings": meanings}

    def _prepare(self, lane: int, turn: Turn, place: int) -> bytes | None:
        """Keep the request about one lane, to be sent again and again; None if this cannot be done.

        Its bytes name places in shared memory and hold no values, so neither side has to make or read them twice.
        """
        seen, mask, slots = turn.observation, turn.mask, self._slots
        limit = place + self._region
        if slots is None or not isinstance(seen, np.ndarray) or not (mask is None or isinstance(mask, np.ndarray)):
            return None
        many = self.batch > 1
        plural, index = ("s", f'"lanes":[{lane}]') if many else ("", f'"lane":{lane}')
        line = f'{{"cmd":"select_action{plural}","agent":{self._name},{index}'
        views = []
        for name, array in (("observation", seen), ("action_mask", mask)):
            if array is None:
                continue
            if place + array.nbytes > limit:
                return None
            shape = (1, *array.shape) if many else array.shape
            view = slots.place(shape, array.dtype, place)
            view[...] = array
            reference, place = slots.put(view, place)
            line += f',"{name}{plural}":{encode(reference).decode()}'
            views.append(view)
        known = _Ready(line.encode() + b"}", views[0], views[1] if len(views) > 1 else None, seen, mask)
        self._ready[lane * OUTSTANDING + self._used] = known
        return known.line

    def _wire(self, value: Any, place: int) -> tuple[Any, int]:
        """Put arrays into shared memory; return what stands for them in the request, and the next place."""
        if isinstance(value, dict):
            found = {}
            for key, part in value.items():
                found[key], place = self._wire(part, place)
            return found, place
        if not isinstance(value, np.ndarray) or value.nbytes <= SMALL:
            return value, place
        limit = (place // self._region + 1) * self._region if self._slots is not None else 0
        if self._slots is not None and place + value.nbytes <= limit:
            return self._slots.put(value, place)
        return as_base64(value), place

    def _make_slots(self) -> None:
        """Make room for the batches that may be on their way; without it, arrays are written out."""
        size = _bytes_of(self._game.observation_spaces[self.agent]) + 8 * self.moves.count + 256
        self._region = -(-min(_MOST_BYTES, size * BATCH) // 4096) * 4096 + 4096
        folder = os.environ.get(FOLDER)
        options = {"folder": folder} if folder and Path(folder).is_dir() else {}
        with suppress(OSError):
            self._slots = Slots.create(OUTSTANDING * self._region, **options)


class _Ready:
    """A request about one lane whose bytes stay the same: what is seen is put where they say."""

    def __init__(self, line: bytes, seen: Any, mask: Any, like: Any, mask_like: Any) -> None:
        self.line = line
        self._seen = seen
        self._mask = mask
        self._like = (like.dtype, like.shape)
        self._mask_like = None if mask_like is None else (mask_like.dtype, mask_like.shape)

    def fill(self, turn: Turn) -> bytes | None:
        """Put in what is seen now; None if it has another form."""
        seen, mask = turn
        if type(seen) is not np.ndarray or (seen.dtype, seen.shape) != self._like:
            return None
        if self._mask is None:
            if mask is not None:
                return None
        else:
            if type(mask) is not np.ndarray or (mask.dtype, mask.shape) != self._mask_like:
                return None
            self._mask[...] = mask
        self._seen[...] = seen
        return self.line


def _bytes_of(space: Any) -> int:
    """Estimate the size of a value of a space."""
    parts = getattr(space, "spaces", None)
    if parts is not None:
        return sum(_bytes_of(part) + 64 for part in (parts.values() if isinstance(parts, dict) else parts))
    dtype = getattr(space, "dtype", None)
    return int(np.prod(space.shape or (1,))) * getattr(dtype, "itemsize", 8)
