"""Sessions: operators and people side by side, played command by command, in one interactive run of the arena.

A session is its run: what happens on its boards is in the run's journal, and nothing is kept here.
"""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING

from mosaic_bus import topics
from mosaic_bus.commands import (
    Ack,
    Cancel,
    CloseSession,
    OpenSession,
    Runs,
    Session,
    SessionList,
    Sessions,
    Show,
    Submit,
    Tell,
    TellSession,
)
from mosaic_bus.errors import CommandRefusedError
from mosaic_bus.refusals import RefusalCode, RefusalDetails
from mosaic_services.experiments.plan import make_plan
from mosaic_services.experiments.shards import SESSIONS, session_spec
from mosaic_services.operator.preparation import read_fields
from mosaic_services.operator.resolution import resolve

if TYPE_CHECKING:
    from mosaic_bus.client import BusClient
    from mosaic_bus.commands import RunDetail

__all__ = ["SessionDesk"]

MOST_BOARDS = 8
_ANSWER_S = 10.0


class SessionDesk:
    """Opens sessions and passes commands on to them."""

    def __init__(self, bus: BusClient) -> None:
        self._bus = bus

    async def open(self, command: OpenSession) -> Session:
        """Submit the run of a session."""
        experiment = read_fields(command.experiment)
        resolved, _ = await resolve(self._bus, experiment.operators)
        plan = make_plan(experiment, resolved)
        if len(plan["lineups"]) > MOST_BOARDS:
            said = f"a session has at most {MOST_BOARDS} boards, not {len(plan['lineups'])}"
            raise CommandRefusedError(RefusalCode.INVALID_EXPERIMENT, said, RefusalDetails(field="lineups"))
        spec = session_spec(plan, f"{experiment.name}-session")
        answer = await self._bus.request("scheduler", Submit(run=command.run, spec=spec), timeout=_ANSWER_S)
        boards = {each["name"]: each["agents"] for each in plan["lineups"]}
        return Session(session=answer.run, name=answer.name, state="queued", boards=boards)

    async def tell(self, command: TellSession) -> Ack:
        """Pass a line on to the host of a session."""
        run = (await self._find(command.session)).run
        if run.host is None or not run.attempt:
            said = f"session {run.name} has not started yet: {run.reason}"
            raise CommandRefusedError(RefusalCode.NOT_STARTED, said, RefusalDetails(run=run.run))
        line = Tell(run=run.run, attempt=run.attempt, line=json.dumps(command.request))
        return await self._bus.request(topics.supervisor(run.host), line, timeout=_ANSWER_S)

    async def close(self, command: CloseSession) -> Ack:
        """Let a session end; one that does not listen is cancelled."""
        run = (await self._find(command.session)).run
        with contextlib.suppress(CommandRefusedError):
            await self.tell(TellSession(session=run.run, request={"cmd": "stop"}))
            return Ack(note=f"session {run.name} ends")
        return await self._bus.request("scheduler", Cancel(run=run.run, reason="the session was closed"), _ANSWER_S)

    async def list(self, _: Sessions) -> SessionList:
        """List the sessions that are open."""
        try:
            found = (await self._bus.request("scheduler", Runs(group=SESSIONS), timeout=_ANSWER_S)).runs
        except CommandRefusedError as error:
            if error.code != RefusalCode.UNKNOWN_GROUP:
                raise
            found = []
        open_ = [each for each in found if not each.state.final]
        return SessionList(sessions=[Session(session=each.run, name=each.name, state=each.state) for each in open_])

    async def _find(self, session: str) -> RunDetail:
        return await self._bus.request("scheduler", Show(run=session), timeout=_ANSWER_S)
