"""One conversation in interactive mode: reads requests, asks the worker, and writes its answers.

The requests of the original MOSAIC are understood, too: the verb may stand in `type` or `command`, and the agent in
`player_id`.
"""

import os
import select
import threading
import traceback
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from pydantic_core import from_json

from mosaic_worker.arrays import Slots, is_in_slot, read_arrays
from mosaic_worker.close_watch import CloseWatch
from mosaic_worker.errors import RequestError, RunCancelled, WorkerError
from mosaic_worker.interactive import InteractiveWorker

__all__ = ["Conversation", "serve"]

_VERBS = ("cmd", "command", "type")
_KNOWN_FACTS = frozenset(
    {*_VERBS, "id", "agent", "player_id", "observation_space", "action_space", "seed", "lanes", "slots", "lockstep"}
)
_DECISION_FACTS = frozenset({*_VERBS, "id", "agent", "player_id", "observation", "action_mask", "lane", "info"})
_CHUNK = 1 << 16
_MAX_LANES = 4096
_MAX_KNOWN = 64
_REPEATABLE = frozenset({"cmd", "agent", "lane", "lanes", "observation", "observations", "action_mask", "action_masks"})
"""What a request may hold that is remembered by its bytes: they name places in shared memory, and no values."""


def serve(make: Callable[[], InteractiveWorker], requests: int, send: Callable[[dict[str, Any]], None]) -> None:
    """Make the worker and answer requests from a descriptor until `stop` or the end of input."""
    worker = make()
    lock = threading.Lock()

    def send_one(reply: dict[str, Any]) -> None:
        with lock:  # answers that were put off come from other threads
            send(reply)

    conversation = Conversation(worker, send_one)
    try:
        for line in _lines(requests, conversation):
            if not line or line.isspace():
                continue
            reply = conversation.answer(line)
            if reply is None:
                continue
            send_one(reply)
            if reply["type"] == "stopped":
                return
    finally:
        conversation.close()
        worker.close()


def _lines(fd: int, conversation: "Conversation") -> Iterator[bytes]:
    """Yield requests as they come."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    begun: list[bytes] = []
    while True:
        if conversation.watch is not None:
            conversation.watch.look(poll)
        chunk = os.read(fd, _CHUNK)
        if not chunk:
            break
        first, *others = chunk.split(b"\n")
        begun.append(first)
        if others:  # a line of many megabytes is joined once, not at each of its pieces
            *whole, rest = others
            yield b"".join(begun)
            yield from whole
            begun = [rest]
    yield b"".join(begun)


class _Known(NamedTuple):
    """A request for decisions that was checked before: only what lies in shared memory has changed since."""

    agent: str | None
    lanes: list[int]
    observations: Any
    masks: Any
    is_single: bool


class Conversation:
    """Answers one request after the other."""

    def __init__(self, worker: InteractiveWorker, later: Callable[[dict[str, Any]], None] = lambda _: None) -> None:
        """Answer with a worker; `later` sends the answers that the worker puts off."""
        self._worker = worker
        self._later = later
        self.watch: CloseWatch | None = None
        """How the next request is waited for, if it comes soon after each answer."""
        kind = type(worker)
        self._begins = kind.begin_episode is not InteractiveWorker.begin_episode
        self._batches = kind.select_actions is not InteractiveWorker.select_actions
        self._defers = kind.answer_later is not InteractiveWorker.answer_later
        self._lanes: dict[str | None, int] = {}
        self._slots: dict[str | None, Slots] = {}
        self._known: dict[bytes, _Known] = {}
        self._remembers = self._batches and kind.handle is InteractiveWorker.handle
        self._steps_left: int | None = None
        self._commands: dict[str, Callable[[dict[str, Any]], dict[str, Any] | None]] = {
            "ping": self._ping,
            "reset": self._reset,
            "step": self._step,
            "init_agent": self._init_agent,
            "begin_episode": self._begin_episode,
            "select_action": self._select_action,
            "select_actions": self._select_actions,
            "stop": self._stop,
        }

    def answer(self, line: bytes) -> dict[str, Any] | None:
        """Answer one request line, or None if the answer comes later; errors become an answer, too."""
        request: dict[str, Any] = {}
        known = self._known.get(line)
        try:
            if known is not None:
                return self._decide(known)
            request = _parse(line)
            reply = self._dispatch(request)
            if self._remembers and request.keys() <= _REPEATABLE:
                self._remember(line, request)
        except RunCancelled:
            raise
        except WorkerError as error:
            reply = {"type": "error", "message": str(error)}
        except Exception as error:
            traceback.print_exc()
            reply = {"type": "error", "message": f"{type(error).__name__}: {error}"}
        if reply is not None and "id" in request:
            reply["id"] = request["id"]
        return reply

    def close(self) -> None:
        """Unmap the files that were named."""
        self._known.clear()  # its arrays lie in the files
        for slots in self._slots.values():
            slots.close()

    def _dispatch(self, request: dict[str, Any]) -> dict[str, Any] | None:
        command = next((request[key] for key in _VERBS if key in request), None)
        if isinstance(command, str):
            own = self._worker.handle(command, request)
            if own is not None:
                return own
            if command in self._commands:
                return self._commands[command](request)
        raise RequestError(f"cmd {command!r} is not one of {', '.join(self._commands)}")

    def _ping(self, _request: dict[str, Any]) -> dict[str, Any]:
        return {"type": "pong"}

    def _stop(self, _request: dict[str, Any]) -> dict[str, Any]:
        return {"type": "stopped"}

    def _reset(self, request: dict[str, Any]) -> dict[str, Any]:
        observation, info = self._worker.reset(_seed(request))
        self._steps_left = _whole(request, "max_steps", least=1)
        return {"type": "reset", "observation": observation, "info": info}

    def _step(self, request: dict[str, Any]) -> dict[str, Any]:
        result = self._worker.step(request.get("action"))
        if self._steps_left is not None:
            self._steps_left -= 1
            result = result._replace(truncated=result.truncated or self._steps_left <= 0)
        return {"type": "step", **result._asdict()}

    def _init_agent(self, request: dict[str, Any]) -> dict[str, Any]:
        if "action_space" not in request:
            raise RequestError("init_agent needs action_space")
        agent, seed, wanted = _agent(request), _seed(request), _whole(request, "lanes", least=1)
        self._known.clear()
        self.watch = CloseWatch() if request.get("lockstep") is True else None
        if facts := {name: value for name, value in request.items() if name not in _KNOWN_FACTS}:
            self._worker.inform(agent, facts)
        self._worker.init_agent(request.get("observation_space"), request["action_space"], seed, agent)
        if request.get("slots") is not None:
            slots = Slots.open(request["slots"])
            if agent in self._slots:
                self._slots[agent].close()
            self._slots[agent] = slots
        able = (_MAX_LANES if self._batches else 1) if self._begins else 0
        self._lanes[agent] = max(1, min(wanted or 1, able))
        ready: dict[str, Any] = {"type": "agent_ready", **self._worker.introduction(agent)}
        if self._defers:
            ready["asynchronous"] = True
        if wanted is not None:
            ready["lanes"] = min(wanted, able)
        if request.get("slots") is not None:
            ready["slots"] = True
        return ready

    def _begin_episode(self, request: dict[str, Any]) -> dict[str, Any]:
        agent, seed = _agent(request), _seed(request)
        if seed is None:
            raise RequestError("begin_episode needs seed")
        episode, lane = _whole(request, "episode") or 0, _whole(request, "lane") or 0
        self._require_lane(agent, lane)
        self._worker.begin_episode(agent, seed, episode, lane)
        return {"type": "episode_ready"}

    def _select_action(self, request: dict[str, Any]) -> dict[str, Any] | None:
        if "observation" not in request:
            raise RequestError("select_action needs observation")
        agent, worker = _agent(request), self._worker
        slots = self._slots.get(agent)
        observation, mask = read_arrays(request["observation"], slots), read_arrays(request.get("action_mask"), slots)
        if "info" in request:
            worker.inform(agent, {"info": request["info"]})
        lane = _whole(request, "lane") or 0
        if self._batches:
            self._require_lane(agent, lane)
        if self._defers and "id" in request:
            number, later = request["id"], self._later
            facts = {name: read_arrays(request[name], slots) for name in request if name not in _DECISION_FACTS}
            worker.answer_later(agent, observation, lane, mask, facts, lambda reply: later({**reply, "id": number}))
            return None
        if self._batches:
            masks = None if mask is None else [mask]
            (action,) = worker.select_actions(agent, _only(observation), [lane], masks)
        else:
            action = worker.select_action(observation, agent, mask)
        reply = {"type": "action", "action": action}
        if request.get("probabilities") is True and (found := worker.probabilities()) is not None:
            reply["probabilities"] = found[0]
        return reply

    def _select_actions(self, request: dict[str, Any]) -> dict[str, Any]:
        agent, lanes = _agent(request), request.get("lanes")
        if not isinstance(lanes, list) or not lanes or not all(type(lane) is int and lane >= 0 for lane in lanes):
            raise RequestError(f"lanes {lanes!r} is not a list of lanes")
        if "observations" not in request:
            raise RequestError("select_actions needs observations")
        self._require_lane(agent, max(lanes))
        slots = self._slots.get(agent)
        observations = read_arrays(request["observations"], slots)
        if any(rows != len(lanes) for rows in _rows(observations)):
            raise RequestError(f"observations are not those of {len(lanes)} lanes")
        masks = read_arrays(request.get("action_masks"), slots)
        actions = self._worker.select_actions(agent, observations, lanes, masks)
        reply = {"type": "actions", "actions": actions}
        if request.get("probabilities") is True and (found := self._worker.probabilities()) is not None:
            reply["probabilities"] = found
        return reply

    def _remember(self, line: bytes, request: dict[str, Any]) -> None:
        """Remember a request that was answered and whose arrays all lie in shared memory."""
        is_single = "observation" in request
        seen = request.get("observation" if is_single else "observations")
        mask = request.get("action_mask" if is_single else "action_masks")
        agent = _agent(request)
        slots = self._slots.get(agent)
        if slots is None or seen is None or not is_in_slot(seen) or not (mask is None or is_in_slot(mask)):
            return
        if len(self._known) >= _MAX_KNOWN:  # requests that do not repeat themselves
            self._known.clear()
        lanes = [request.get("lane") or 0] if is_single else request["lanes"]
        masks = None if mask is None else slots.view(mask["slot"])
        self._known[line] = _Known(agent, lanes, slots.view(seen["slot"]), masks, is_single)

    def _decide(self, known: _Known) -> dict[str, Any]:
        """Answer a request that is known; a policy may keep what it saw, so it gets copies."""
        agent, lanes, observations, masks, is_single = known
        seen, masks = observations.copy(), None if masks is None else masks.copy()
        if not is_single:
            return {"type": "actions", "actions": self._worker.select_actions(agent, seen, lanes, masks)}
        masks = None if masks is None else masks[None]
        (action,) = self._worker.select_actions(agent, seen[None], lanes, masks)
        return {"type": "action", "action": action}

    def _require_lane(self, agent: str | None, lane: int) -> None:
        if lane >= self._lanes.get(agent, 1):
            raise RequestError(f"lane {lane} is not one of the {self._lanes.get(agent, 1)} of agent {agent!r}")


def _parse(line: bytes) -> dict[str, Any]:
    try:
        request = from_json(line)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"not JSON: {error}") from error
    if not isinstance(request, dict):
        raise RequestError(f'a request is a JSON object with "cmd", not {type(request).__name__}')
    return request


def _only(observation: Any) -> Any:
    """Make a batch of one observation."""
    if isinstance(observation, dict):
        return {key: _only(part) for key, part in observation.items()}
    return observation[None] if isinstance(observation, np.ndarray) else [observation]


def _rows(observations: Any) -> list[int]:
    """Return the number of rows of each part of joined observations."""
    if isinstance(observations, dict):
        return [rows for part in observations.values() for rows in _rows(part)]
    return [len(observations) if isinstance(observations, list) or np.ndim(observations) else -1]


def _seed(request: dict[str, Any]) -> int | None:
    return _whole(request, "seed")


def _whole(request: dict[str, Any], name: str, least: int = 0) -> int | None:
    value = request.get(name)
    if value is None or (type(value) is int and value >= least):
        return value
    raise RequestError(f"{name} {value!r} is not a whole number of {least} or more")


def _agent(request: dict[str, Any]) -> str | None:
    agent = request.get("agent", request.get("player_id"))
    if agent is None or isinstance(agent, str):
        return agent
    raise RequestError(f"agent {agent!r} is not a name")
