"""Interactive mode: one JSON request per line on stdin, one JSON answer per line on stdout.

With the environment inside the worker a client sends `reset` and `step`; with the environment outside, `init_agent`
and `select_action`. A bad request is answered with an error, and the worker continues.
"""

import json
import os
import traceback
from collections.abc import Callable
from typing import Any, NamedTuple

from mosaic_worker.errors import RequestError, RunCancelled, WorkerError

__all__ = ["InteractiveWorker", "StepResult", "answer", "serve", "write_line"]


class StepResult(NamedTuple):
    """The result of one step, and the action that was taken."""

    action: Any
    observation: Any
    reward: Any
    terminated: bool
    truncated: bool
    info: dict[str, Any]


class InteractiveWorker:
    """The commands of interactive mode; override those that the worker has. Results may hold numpy values."""

    def reset(self, seed: int | None) -> tuple[Any, dict[str, Any]]:
        """Start an episode in the worker's own environment; return observation and info."""
        raise RequestError("this worker has no environment of its own: reset is not supported")

    def step(self, action: Any) -> StepResult:
        """Take one step; `action` is plain JSON, or None to let the worker's own agent choose."""
        raise RequestError("this worker has no environment of its own: step is not supported")

    def init_agent(self, observation_space: Any, action_space: Any, seed: int | None, agent: str | None) -> None:
        """Prepare an agent for an environment elsewhere; spaces are plain JSON (see `space_from_json`)."""
        raise RequestError("this worker has no agent for outside environments: init_agent is not supported")

    def select_action(self, observation: Any, agent: str | None, action_mask: Any) -> Any:
        """Choose an action for an observation; `action_mask`, if given, has a 1 for each legal action."""
        raise RequestError("this worker has no agent for outside environments: select_action is not supported")

    def close(self) -> None:
        """Release resources."""


def serve(make: Callable[[], InteractiveWorker], requests: int, send: Callable[[dict[str, Any]], None]) -> None:
    """Make the worker and answer requests from a descriptor until `stop` or the end of input."""
    worker = make()
    try:
        with open(requests, "rb", closefd=False) as lines:
            for line in lines:
                if not line.strip():
                    continue
                reply = answer(worker, line)
                send(reply)
                if reply["type"] == "stopped":
                    return
    finally:
        worker.close()


def answer(worker: InteractiveWorker, line: bytes) -> dict[str, Any]:
    """Answer one request line; errors of the request or the worker become an answer, too."""
    identity: dict[str, Any] = {}
    try:
        request = _parse(line)
        if "id" in request:
            identity = {"id": request["id"]}
        return {**_dispatch(worker, request), **identity}
    except RunCancelled:
        raise
    except WorkerError as error:
        return {"type": "error", "message": str(error), **identity}
    except Exception as error:
        traceback.print_exc()
        return {"type": "error", "message": f"{type(error).__name__}: {error}", **identity}


def _parse(line: bytes) -> dict[str, Any]:
    try:
        request = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"not JSON: {error}") from error
    if not isinstance(request, dict):
        raise RequestError(f'a request is a JSON object with "cmd", not {type(request).__name__}')
    return request


def _dispatch(worker: InteractiveWorker, request: dict[str, Any]) -> dict[str, Any]:
    command = request.get("cmd")
    handler = _COMMANDS.get(command) if isinstance(command, str) else None
    if handler is None:
        raise RequestError(f"cmd {command!r} is not one of {', '.join(_COMMANDS)}")
    return handler(worker, request)


def _ping(_worker: InteractiveWorker, _request: dict[str, Any]) -> dict[str, Any]:
    return {"type": "pong"}


def _stop(_worker: InteractiveWorker, _request: dict[str, Any]) -> dict[str, Any]:
    return {"type": "stopped"}


def _reset(worker: InteractiveWorker, request: dict[str, Any]) -> dict[str, Any]:
    observation, info = worker.reset(_seed(request))
    return {"type": "reset", "observation": observation, "info": info}


def _step(worker: InteractiveWorker, request: dict[str, Any]) -> dict[str, Any]:
    return {"type": "step", **worker.step(request.get("action"))._asdict()}


def _init_agent(worker: InteractiveWorker, request: dict[str, Any]) -> dict[str, Any]:
    if "action_space" not in request:
        raise RequestError("init_agent needs action_space")
    worker.init_agent(request.get("observation_space"), request["action_space"], _seed(request), _agent(request))
    return {"type": "agent_ready"}


def _select_action(worker: InteractiveWorker, request: dict[str, Any]) -> dict[str, Any]:
    if "observation" not in request:
        raise RequestError("select_action needs observation")
    action = worker.select_action(request["observation"], _agent(request), request.get("action_mask"))
    return {"type": "action", "action": action}


_COMMANDS: dict[str, Callable[[InteractiveWorker, dict[str, Any]], dict[str, Any]]] = {
    "ping": _ping,
    "reset": _reset,
    "step": _step,
    "init_agent": _init_agent,
    "select_action": _select_action,
    "stop": _stop,
}


def _seed(request: dict[str, Any]) -> int | None:
    seed = request.get("seed")
    if seed is None or (type(seed) is int and seed >= 0):
        return seed
    raise RequestError(f"seed {seed!r} is not a whole number of 0 or more")


def _agent(request: dict[str, Any]) -> str | None:
    agent = request.get("agent")
    if agent is None or isinstance(agent, str):
        return agent
    raise RequestError(f"agent {agent!r} is not a name")


def write_line(fd: int, line: bytes) -> None:
    """Write a line and its newline."""
    line += b"\n"
    while line:
        line = line[os.write(fd, line) :]
