"""Sessions: operators and people side by side, played command by command, in one interactive run of the arena.

A session is its run: what happens on its boards is in the run's journal, and nothing is kept here.
"""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING, Any

from mosaic_bus import topics
from mosaic_bus.commands import (
    Ack,
    Cancel,
    CloseSession,
    Events,
    OpenSession,
    Runs,
    Session,
    SessionList,
    Sessions,
    SessionView,
    Show,
    ShowSession,
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
    from pathlib import Path

    from mosaic_bus.client import BusClient
    from mosaic_bus.commands import RunDetail

__all__ = ["SessionDesk"]

MOST_BOARDS = 8
_ANSWER_S = 10.0
_PAGE = 1000


class SessionDesk:
    """Opens sessions and passes commands on to them."""

    def __init__(self, bus: BusClient, runs: Path) -> None:
        self._bus = bus
        self._runs = runs

    async def open(self, command: OpenSession) -> Session:
        """Submit the run of a session."""
        experiment = read_fields(command.experiment)
        resolved, _ = await resolve(self._bus, experiment.operators, self._runs)
        plan = make_plan(experiment, resolved)
        if len(plan["lineups"]) > MOST_BOARDS:
            said = f"a session has at most {MOST_BOARDS} boards, not {len(plan['lineups'])}"
            raise CommandRefusedError(RefusalCode.INVALID_EXPERIMENT, said, RefusalDetails(field="lineups"))
        spec = session_spec(plan, f"{experiment.name}-session", command.frames)
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

    async def show(self, command: ShowSession) -> SessionView:
        """Read what the boards have said, from the journal of the run."""
        run = (await self._find(command.session)).run
        heard, start = _Heard(), command.start or 0
        position: int | None = start if run.attempt else None
        while position is not None:
            wanted = Events(run=run.run, attempt=run.attempt, kinds=["reply"], start=position, limit=_PAGE)
            try:
                page = await self._bus.request("telemetry", wanted, timeout=_ANSWER_S)
            except CommandRefusedError as error:
                if error.code != RefusalCode.UNKNOWN_RUN:  # nothing is stored yet
                    raise
                break
            for row in page.rows:
                start = row["number"] + 1
                heard.take(json.loads(row["line"]).get("reply"))
            # A whole session is read for what was said last; else a page is enough.
            position = page.next if command.start is None else None
        return SessionView(
            session=run.run,
            name=run.name,
            state=run.state,
            reason=run.reason,
            host=run.host,
            boards=heard.boards,
            latest=heard.latest,
            ready=heard.ready,
            replies=heard.replies if command.start is not None else [],
            next=start,
        )

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


class _Heard:
    """Replies of boards, and the last of each."""

    def __init__(self) -> None:
        self.replies: list[dict[str, Any]] = []
        self.latest: dict[str, dict[str, Any]] = {}
        self.ready: dict[str, dict[str, Any]] = {}

    @property
    def boards(self) -> dict[str, dict[str, str]]:
        """Who plays on each board that is ready."""
        return {name: each["agents"] for name, each in self.ready.items()}

    def take(self, reply: Any) -> None:
        if not isinstance(reply, dict):
            return
        self.replies.append(reply)
        if reply.get("type") == "board":
            self.latest[reply["board"]] = reply
            if reply["status"] == "ready":
                self.ready[reply["board"]] = reply
