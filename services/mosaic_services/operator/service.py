"""The operator service: answers commands about experiments, and plays them."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError
from ulid import ULID

from mosaic_bus import topics
from mosaic_bus.commands import (
    Ack,
    CheckExperiment,
    CloseSession,
    DeletedExperiment,
    DeleteExperiment,
    ExperimentCheck,
    ExperimentList,
    ExperimentPlan,
    Experiments,
    OpenSession,
    PlanExperiment,
    Sessions,
    ShowExperiment,
    ShowSession,
    StartExperiment,
    StopExperiment,
    TellSession,
    WriteReport,
)
from mosaic_bus.errors import CommandRefusedError
from mosaic_bus.logs import Logger
from mosaic_bus.messages import ExperimentState, ExperimentStateName
from mosaic_bus.refusals import Problem, RefusalCode, RefusalDetails
from mosaic_bus.service import Service
from mosaic_bus.wording import near_names
from mosaic_services.experiments.errors import FolderError
from mosaic_services.experiments.folder import ExperimentFolder
from mosaic_services.experiments.plan import edited
from mosaic_services.experiments.provenance import Found
from mosaic_services.operator import events
from mosaic_services.operator import instructions as todo
from mosaic_services.operator.deletion import delete
from mosaic_services.operator.documents import ReportDesk, check_text, read_text
from mosaic_services.operator.looking import decide
from mosaic_services.operator.machine import ExperimentMachine
from mosaic_services.operator.playing import Playing
from mosaic_services.operator.preparation import prepare, read_fields
from mosaic_services.operator.progress import Progress
from mosaic_services.operator.sessions import SessionDesk

if TYPE_CHECKING:
    from mosaic_services.home import StackHome
    from mosaic_services.settings.model import Settings

__all__ = ["OperatorService"]

_log = Logger()


class OperatorService(Service):
    """Owns experiments: what was started is played to its end, across restarts of this service."""

    home: StackHome

    def __init__(self, home: StackHome, bus_address: str | None, settings: Settings) -> None:
        home.create()
        self.lock = home.lock("operator")
        super().__init__("operator", home, bus_address, heartbeat_s=settings.services.heartbeat_s)
        self._playing: dict[str, Playing] = {}
        # Experiments that are over, as they were when they ended.
        self._ended: dict[str, ExperimentState] = {}
        self._starting = asyncio.Lock()
        self._reports = ReportDesk(self.bus.address)
        self._counts: dict[str, int | float] = {"started": 0, "unreadable": 0}
        self.handle(StartExperiment, self._on_start)
        self.handle(PlanExperiment, self._on_plan)
        self.handle(StopExperiment, self._on_stop)
        self.handle(DeleteExperiment, self._on_delete)
        self.handle(ShowExperiment, self._on_show)
        self.handle(Experiments, self._on_experiments)
        self.handle(CheckExperiment, self._on_check)
        self.handle(WriteReport, self._on_report)
        desk = SessionDesk(self.bus, self.home.runs)
        self.handle(OpenSession, desk.open)
        self.handle(TellSession, desk.tell)
        self.handle(CloseSession, desk.close)
        self.handle(Sessions, desk.list)
        self.handle(ShowSession, desk.show)

    async def start(self) -> None:
        """Go on with the experiments that were being played."""
        for path in sorted(self.home.experiments.iterdir()):
            if path.is_dir():
                await self._restore(ExperimentFolder(path))

    def counters(self) -> dict[str, int | float]:
        """Counters of experiments and episodes."""
        playing = [each.machine for each in self._playing.values()]
        return {
            **self._counts,
            "playing": len(playing),
            "shards_open": sum(not shard.settled for each in playing for shard in each.progress.shards),
            "episodes": sum(len(each.records) for each in playing),
        }

    def details(self) -> dict[str, Any]:
        """Where the experiments are."""
        return {"folder": str(self.home.experiments)}

    async def _restore(self, folder: ExperimentFolder) -> None:
        """Continue an experiment, or remember how it ended. One that cannot be read does not stop the others."""
        try:
            stored, plan = folder.read_state(), folder.read_plan()
            if stored is None or plan is None:
                return
            progress = Progress.model_validate(stored["progress"])
            # `complete` writes the state into the plan, as the last of what is to be done at the end.
            if progress.state.final and "state" in plan:
                self._ended[folder.name] = ExperimentState.model_validate(stored["summary"])
                return
            found = Found.model_validate(stored.get("found", {}))
            records = await asyncio.to_thread(folder.read_records, keep=plan["until"] is not None)
        except (FolderError, ValidationError, KeyError, OSError) as error:
            self._counts["unreadable"] += 1
            _log.warning("experiment cannot be read", folder=str(folder.path), reason=str(error))
            return
        machine = ExperimentMachine(plan, records, progress, _new_id, decide)
        # Killed between the decision and the last file: what shards left behind is gathered now.
        decided: list[todo.Instruction] = [todo.Finish()] if progress.state.final else machine.resume()
        self._play(folder, machine, found).apply(decided)

    def _play(self, folder: ExperimentFolder, machine: ExperimentMachine, found: Found | None = None) -> Playing:
        playing = Playing(self.bus, folder, machine, self.spawn, self.epoch, self.home.runs, found)
        self._playing[folder.name] = playing
        self._ended.pop(folder.name, None)
        self.spawn(self._play_to_the_end(playing), f"play {folder.name}")
        return playing

    async def _play_to_the_end(self, playing: Playing) -> None:
        await playing.run()
        state = playing.state
        self._ended[state.experiment] = state
        del self._playing[state.experiment]
        _log.info("experiment over", experiment=state.experiment, state=state.state.value, episodes=state.done)

    # ── commands ────────────────────────────────────────────────────────────────────────────────

    async def _on_start(self, command: StartExperiment) -> ExperimentState:
        if command.text:
            # A page that was shown the fields has seen no secrets: they are read from the text again.
            command = command.model_copy(update={"experiment": read_text(command.text), "text": ""})
        async with self._starting:
            name = str(command.experiment.get("name", ""))
            if name in self._playing:
                said = f"experiment {name} is being played; stop it first, or follow it"
                changed = edited(self._playing[name].machine.plan, read_fields(command.experiment))
                problems = [Problem(field=each, message="differs from what is being played") for each in changed]
                details = RefusalDetails(value=name, problems=problems)
                raise CommandRefusedError(RefusalCode.ALREADY_RUNNING, said, details)
            prepared = await prepare(self.bus, self.home, command, restart=command.restart)
            folder, plan = prepared.folder, {**prepared.plan, "command": command.command}
            if command.restart:
                await asyncio.to_thread(folder.clear)
            try:
                await asyncio.to_thread(folder.write_plan, plan)
            except OSError as error:
                raise CommandRefusedError(RefusalCode.STORE_UNAVAILABLE, f"{folder.path}: {error}") from error
            progress = Progress(
                wanted=prepared.wanted,
                at_once=prepared.at_once,
                requires=prepared.requires,
                notes=prepared.notes,
            )
            machine = ExperimentMachine(plan, prepared.records, progress, _new_id, decide)
            decided = machine.begin(time.time())
            self._counts["started"] += 1
            playing = self._play(folder, machine)
            playing.apply(decided)
        # Answered once it is on disk: from here on it is played to its end.
        await playing.saved.wait()
        return playing.state

    async def _on_plan(self, command: PlanExperiment) -> ExperimentPlan:
        return (await prepare(self.bus, self.home, command, restart=False)).describe()

    async def _on_stop(self, command: StopExperiment) -> Ack:
        playing = self._playing.get(command.experiment)
        if playing is None:
            ended = self._find(command.experiment)
            said = f"experiment {command.experiment} is {ended.state} already"
            details = RefusalDetails(value=command.experiment, state=ended.state.value)
            raise CommandRefusedError(RefusalCode.ALREADY_FINAL, said, details)
        playing.feed(events.StopAsked(time.time(), command.reason))
        return Ack(note=f"stops; {playing.state.done:,} of {playing.state.wanted:,} episodes are recorded")

    async def _on_delete(self, command: DeleteExperiment) -> DeletedExperiment:
        async with self._starting:
            name = command.experiment
            state = self._find(name)
            if name in self._playing:
                said = f"experiment {name} is being played: stop it first"
                raise CommandRefusedError(RefusalCode.NOT_FINAL, said, RefusalDetails(state=state.state.value))
            answer = await delete(self.bus, ExperimentFolder(self.home.experiments / name), state, command)
            if answer.deleted:
                del self._ended[name]
                gone = state.model_copy(update={"state": ExperimentStateName.DELETED, "version": state.version + 1})
                self.bus.publish(topics.experiment_state(name), gone)
        return answer

    async def _on_show(self, command: ShowExperiment) -> ExperimentState:
        return self._find(command.experiment)

    async def _on_experiments(self, command: Experiments) -> ExperimentList:
        known = [*self._ended.values(), *(each.state for each in self._playing.values())]
        newest = sorted(known, key=lambda each: each.started_at, reverse=True)[: command.limit]
        return ExperimentList(experiments=[each.model_copy(update={"shards": []}) for each in newest])

    async def _on_check(self, command: CheckExperiment) -> ExperimentCheck:
        return await check_text(command.text, lambda fields: self._on_plan(PlanExperiment(experiment=fields)))

    async def _on_report(self, command: WriteReport) -> Ack:
        return await self._reports.write(Path(self._find(command.experiment).folder))

    def _find(self, name: str) -> ExperimentState:
        if name in self._playing:
            return self._playing[name].state
        if name in self._ended:
            return self._ended[name]
        near = near_names(name, [*self._playing, *self._ended])
        details = RefusalDetails(value=name, near=near)
        raise CommandRefusedError(RefusalCode.UNKNOWN_EXPERIMENT, f"no experiment is called {name!r}", details)


def _new_id() -> str:
    return str(ULID())
