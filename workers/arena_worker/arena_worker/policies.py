"""The policies of a shard: starts their processes, seats them, and starts one again that has died."""

import os
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from arena_worker.config import EVERY_AGENT, HUMAN, OWN_WORKERS, ArenaConfig, LineupConfig
from arena_worker.games import Game
from arena_worker.human import HumanConfig, HumanSeat
from arena_worker.probe import Sights, probe
from arena_worker.process import PolicyError, PolicyProcess
from arena_worker.seats import OwnSeat, PolicySeat, Seat
from mosaic_worker.config import describe, near
from mosaic_worker.emitter import Emitter
from mosaic_worker.errors import ConfigError, InfrastructureError

__all__ = ["Policies", "RefusedError", "SpentError", "operators_of"]

_JOIN_SEED = 0


class RefusedError(Exception):
    """An operator cannot play a lineup, and never will: its spaces, its config or its model do not fit."""

    def __init__(self, operator: str, agent: str, message: str) -> None:
        """Name both."""
        self.operator = operator
        self.agent = agent
        super().__init__(message)


class SpentError(RefusedError):
    """An operator will not decide any more in this experiment: what it may use up is used up."""


def operators_of(lineup: LineupConfig, agents: Sequence[str]) -> dict[str, str]:
    """Return the operator of each agent; RefusedError if an agent has none, or a name is no agent."""
    unknown = [agent for agent in lineup.agents if agent not in agents and agent != EVERY_AGENT]
    if unknown:
        raise RefusedError(
            lineup.agents[unknown[0]],
            unknown[0],
            f"lineup {lineup.name}: {unknown[0]!r} is no agent of the environment, which has {', '.join(agents)}"
            f"{near(unknown[0], list(agents))}",
        )
    found = {}
    for agent in agents:
        operator = lineup.agents.get(agent, lineup.agents.get(EVERY_AGENT))
        if operator is None:
            raise RefusedError("", agent, f"lineup {lineup.name}: agent {agent} has no operator; name one, or use *")
        found[agent] = operator
    return found


class Policies:
    """Processes by operator, and seats by operator and agent."""

    def __init__(
        self,
        config: ArenaConfig,
        uses: Sequence[Mapping[str, Any]],
        run_dir: Path,
        emitter: Emitter,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        """Start policies in the environments that the run uses; `check` is called while they are waited for."""
        self._check = check
        self._config = config
        self._uses = {(use["worker"], use["profile"]): use for use in uses}
        self._run_dir = run_dir
        self._emitter = emitter
        self._processes: dict[str, PolicyProcess] = {}
        self._seats: dict[tuple[str, str], Seat] = {}

    def seats(self, lineup: LineupConfig, game: Game, sights: Sights) -> dict[str, Seat]:
        """Seat the operators of a lineup; RefusedError if one cannot play in it."""
        return {
            agent: self._seat(operator, agent, game, sights)
            for agent, operator in operators_of(lineup, game.agents).items()
        }

    def restart(self, process: PolicyProcess) -> None:
        """End a process and start its operator anew, in the same seats."""
        operator = process.name
        for each in {process, self._processes.pop(operator, process)}:  # not the same if an earlier start failed
            each.kill()
        seats = [seat for (name, _), seat in self._seats.items() if name == operator and isinstance(seat, PolicySeat)]
        for seat in seats:
            seat.leave()
        try:
            fresh = self._start(operator)
            for seat in seats:
                seat.process = fresh
                seat.join(_JOIN_SEED, self._config.deadlines.start_s)
                seat.begin_spare_lanes(self._config.deadlines.action_s)
        except PolicyError as error:
            raise InfrastructureError(f"operator {operator} could not be started again: {error}") from error

    def retire(self, keep: AbstractSet[str]) -> None:
        """Stop the operators that are not needed any more."""
        for operator in [name for name in self._processes if name not in keep]:
            for key in [key for key in self._seats if key[0] == operator]:
                self._seats.pop(key).leave()
            self._processes.pop(operator).stop()

    def close(self) -> None:
        """End every process."""
        for seat in self._seats.values():
            seat.leave()
        self._seats.clear()
        for process in self._processes.values():
            process.kill()
        self._processes.clear()

    def _seat(self, operator: str, agent: str, game: Game, sights: Sights) -> Seat:
        if (operator, agent) in self._seats:
            return self._seats[operator, agent]
        entry = self._config.operators[operator]
        seat: Seat
        if entry.worker == HUMAN:
            seat = self._person(operator, agent, game)
        elif entry.worker in OWN_WORKERS:
            seat = OwnSeat(operator, agent, game, entry.worker)
        else:
            seat = self._join(operator, agent, game, sights)
        self._seats[operator, agent] = seat
        return seat

    def _person(self, operator: str, agent: str, game: Game) -> HumanSeat:
        if self._config.mode != "manual":
            raise RefusedError(operator, agent, f"operator {operator}: a person plays in manual mode only")
        try:
            config = HumanConfig.model_validate(self._config.operators[operator].config)
        except ValidationError as error:
            problems = "; ".join(describe(HumanConfig, problem) for problem in error.errors())
            raise RefusedError(operator, agent, f"operator {operator}: {problems}") from error
        return HumanSeat(operator, agent, game, config)

    def _join(self, operator: str, agent: str, game: Game, sights: Sights) -> PolicySeat:
        """Seat a policy; what it answers itself is a refusal, what its process does is the infrastructure's fault."""
        deadlines = self._config.deadlines
        try:
            process = self._processes.get(operator) or self._start(operator)
            seat = PolicySeat(operator, agent, game, process, self._config.lanes)
            seat.experiment = self._config.experiment
            seat.is_in_lockstep = self._is_in_lockstep(len(game.agents))
            seat.join(_JOIN_SEED, deadlines.start_s)
            if sights.turns.get(agent) and not seat.is_asynchronous:
                way = probe(seat, sights.turns[agent], deadlines.action_s)
                self._emitter.emit("probe", operator=operator, agent=agent, way=way, fingerprint=seat.fingerprint)
        except PolicyError as error:
            if error.kind not in {"died", "hung"}:
                raise RefusedError(operator, agent, f"operator {operator}: {error}") from error
            raise InfrastructureError(f"operator {operator} could not be started: {error}") from error
        return seat

    def _is_in_lockstep(self, agents: int) -> bool:
        """Whether policies wait for one question after the other, and waiting awake takes no CPU from another."""
        config = self._config
        at_once = agents if config.environment.family == "parallel" else 1
        return config.mode != "manual" and config.lanes == 1 and at_once < len(os.sched_getaffinity(0))

    def _start(self, operator: str) -> PolicyProcess:
        entry = self._config.operators[operator]
        use = self._uses.get((entry.worker, entry.profile))
        if use is None:
            raise ConfigError(
                f"operators.{operator}: the run does not use {entry.worker}/{entry.profile}: name it in its `uses`"
            )
        document = {
            "run_id": f"{self._config.run_id}-{operator}",
            "metadata": {"worker": {"name": entry.worker, "profile": entry.profile, "config": entry.config}},
            "checkpoint": entry.checkpoint,
        }
        folder = self._run_dir / "operators" / operator
        process = PolicyProcess(operator, list(use["argv"]), use["environ"], folder, document, self._check)
        self._processes[operator] = process
        return process
