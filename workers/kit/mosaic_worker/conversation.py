"""One conversation in interactive mode: reads requests, asks the worker, and writes its answers.

The requests of the original MOSAIC are understood, too: the verb may stand in `type` or `command`, and the agent in
`player_id`.
"""

import traceback
from collections.abc import Callable
from typing import Any

import numpy as np
from pydantic_core import from_json

from mosaic_worker.arrays import Slots, read_arrays
from mosaic_worker.errors import RequestError, RunCancelled, WorkerError
from mosaic_worker.interactive import InteractiveWorker

__all__ = ["Conversation", "serve"]

_VERBS = ("cmd", "command", "type")
_KNOWN_FACTS = frozenset(
    {*_VERBS, "id", "agent", "player_id", "observation_space", "action_space", "seed", "lanes", "slots"}
)
_MAX_LANES = 4096


def serve(make: Callable[[], InteractiveWorker], requests: int, send: Callable[[dict[str, Any]], None]) -> None:
    """Make the worker and answer requests from a descriptor until `stop` or the end of input."""
    worker = make()
    conversation = Conversation(worker)
    try:
        with open(requests, "rb", closefd=False) as lines:
            for line in lines:
                if line.isspace():
                    continue
                reply = conversation.answer(line)
                send(reply)
                if reply["type"] == "stopped":
                    return
    finally:
        conversation.close()
        worker.close()


class Conversation:
    """Answers one request after the other."""

    def __init__(self, worker: InteractiveWorker) -> None:
        """Answer with a worker."""
        self._worker = worker
        kind = type(worker)
        self._begins = kind.begin_episode is not InteractiveWorker.begin_episode
        self._batches = kind.select_actions is not InteractiveWorker.select_actions
        self._lanes: dict[str | None, int] = {}
        self._slots: dict[str | None, Slots] = {}
        self._steps_left: int | None = None
        self._commands: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
            "ping": self._ping,
            "reset": self._reset,
            "step": self._step,
            "init_agent": self._init_agent,
            "begin_episode": self._begin_episode,
            "select_action": self._select_action,
            "select_actions": self._select_actions,
            "stop": self._stop,
        }

    def answer(self, line: bytes) -> dict[str, Any]:
        """Answer one request line; errors of the request or the worker become an answer, too."""
        request: dict[str, Any] = {}
        try:
            request = _parse(line)
            reply = self._dispatch(request)
        except RunCancelled:
            raise
        except WorkerError as error:
            reply = {"type": "error", "message": str(error)}
        except Exception as error:
            traceback.print_exc()
            reply = {"type": "error", "message": f"{type(error).__name__}: {error}"}
        if "id" in request:
            reply["id"] = request["id"]
        return reply

    def close(self) -> None:
        """Unmap the files that were named."""
        for slots in self._slots.values():
            slots.close()

    def _dispatch(self, request: dict[str, Any]) -> dict[str, Any]:
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
        return {"type": "agent_ready"} if wanted is None else {"type": "agent_ready", "lanes": min(wanted, able)}

    def _begin_episode(self, request: dict[str, Any]) -> dict[str, Any]:
        agent, seed = _agent(request), _seed(request)
        if seed is None:
            raise RequestError("begin_episode needs seed")
        episode, lane = _whole(request, "episode") or 0, _whole(request, "lane") or 0
        self._require_lane(agent, lane)
        self._worker.begin_episode(agent, seed, episode, lane)
        return {"type": "episode_ready"}

    def _select_action(self, request: dict[str, Any]) -> dict[str, Any]:
        if "observation" not in request:
            raise RequestError("select_action needs observation")
        agent, worker = _agent(request), self._worker
        slots = self._slots.get(agent)
        observation, mask = read_arrays(request["observation"], slots), read_arrays(request.get("action_mask"), slots)
        if "info" in request:
            worker.inform(agent, {"info": request["info"]})
        if self._batches:
            lane = _whole(request, "lane") or 0
            self._require_lane(agent, lane)
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
