"""Interactive mode: one JSON request per line on stdin, one JSON answer per line on stdout.

With the environment inside the worker a client sends `reset` and `step`; with the environment outside, `init_agent`,
`begin_episode` and `select_action` or, for several episodes at once, `select_actions`. A bad request is answered with
an error, and the worker continues. `docs/protocol.md`, part 5, describes the requests.
"""

import os
from collections.abc import Callable
from typing import Any, NamedTuple

from mosaic_worker.arrays import unstack
from mosaic_worker.errors import RequestError

__all__ = ["InteractiveWorker", "Reply", "StepResult", "write_line"]

Reply = Callable[[dict[str, Any]], None]


class StepResult(NamedTuple):
    """The result of one step, and the action that was taken."""

    action: Any
    observation: Any
    reward: Any
    terminated: bool
    truncated: bool
    info: dict[str, Any]


class InteractiveWorker:
    """The commands of interactive mode; override those that the worker has. Results may hold numpy values.

    Observations and masks are plain JSON or numpy arrays; `value_from_json` and `values_from_json` take both.
    """

    def reset(self, seed: int | None) -> tuple[Any, dict[str, Any]]:
        """Start an episode in the worker's own environment; return observation and info."""
        raise RequestError("this worker has no environment of its own: reset is not supported")

    def step(self, action: Any) -> StepResult:
        """Take one step; `action` is plain JSON, or None to let the worker's own agent choose."""
        raise RequestError("this worker has no environment of its own: step is not supported")

    def inform(self, agent: str | None, facts: dict[str, Any]) -> None:
        """Learn what else a request says: `action_meanings` before `init_agent`, `info` before `select_action`."""

    def init_agent(self, observation_space: Any, action_space: Any, seed: int | None, agent: str | None) -> None:
        """Prepare an agent for an environment elsewhere; spaces are plain JSON (see `space_from_json`)."""
        raise RequestError("this worker has no agent for outside environments: init_agent is not supported")

    def begin_episode(self, agent: str | None, seed: int, episode: int, lane: int) -> None:
        """Begin an episode in a lane: seed the lane's random numbers and forget what it has seen."""
        raise RequestError("this worker cannot begin an episode: send init_agent again")

    def select_action(self, observation: Any, agent: str | None, action_mask: Any) -> Any:
        """Choose an action for an observation; `action_mask`, if given, has a 1 for each legal action."""
        raise RequestError("this worker has no agent for outside environments: select_action is not supported")

    def select_actions(self, agent: str | None, observations: Any, lanes: list[int], action_masks: Any) -> Any:
        """Choose an action for each lane; the observations of the lanes are joined (see `values_from_json`).

        A worker that overrides this and `begin_episode` can play several episodes at once, and needs no
        `select_action`. The action of a lane must not depend on the other lanes.
        """
        masks = action_masks if action_masks is not None else [None] * len(lanes)
        return [self.select_action(unstack(observations, row), agent, masks[row]) for row in range(len(lanes))]

    def answer_later(
        self, agent: str | None, observation: Any, lane: int, action_mask: Any, facts: dict[str, Any], reply: Reply
    ) -> None:
        """Begin to decide in one lane, and call `reply` with the answer when it is there, from any thread.

        A worker that overrides this is asked for many lanes at once and answers in any order. `facts` has what else
        the request says. It also overrides `begin_episode` and `select_actions`, for clients that wait for each answer.
        """
        raise RequestError("this worker answers one request after the other")

    def introduction(self, agent: str | None) -> dict[str, Any]:
        """Return what the answer to `init_agent` says beside `lanes`, such as `fingerprint`, `decision_s`, `wants`."""
        return {}

    def probabilities(self) -> Any:
        """Return the action probabilities of the last decision, a row per observation; None if there are none."""
        return None

    def handle(self, command: str, request: dict[str, Any]) -> dict[str, Any] | None:
        """Answer a command of the worker's own; None for any other."""
        return None

    def close(self) -> None:
        """Release resources."""


def write_line(fd: int, line: bytes) -> None:
    """Write a line and its newline."""
    line += b"\n"
    while line:
        line = line[os.write(fd, line) :]
