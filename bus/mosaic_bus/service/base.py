"""The base of every service: heartbeat, commands carried out once, `ping` / `info` / `stats`, clean shutdown."""

from __future__ import annotations

import asyncio
import gc
import os
import resource
import signal
import sys
import time
from typing import TYPE_CHECKING, Any, Literal, TypeGuard, TypeVar

from pydantic import ValidationError

from mosaic_bus import topics
from mosaic_bus.client.connection import BusClient, Subscription
from mosaic_bus.commands import Ack, Command, Info, InfoResult, Ping, Query, Stats
from mosaic_bus.errors import (
    BadMessageError,
    BusError,
    CommandRefusedError,
    MessageTooLargeError,
    NameTakenError,
    NoAnswerError,
)
from mosaic_bus.logs import Logger, configure_logging
from mosaic_bus.messages import Model, ServiceState
from mosaic_bus.refusals import Problem, RefusalCode, RefusalDetails, brief, explain, find_problems
from mosaic_bus.service.answers import AnswerBook
from mosaic_bus.service.queries import QueryQueue
from mosaic_bus.wire import envelope
from mosaic_bus.wire.envelope import PROTOCOL_VERSION, Message
from mosaic_bus.wording import near_names, shown

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

    from mosaic_bus.home import Home

__all__ = ["HEARTBEAT_S", "Service", "serve"]

_log = Logger()

_GARBAGE_THRESHOLDS = (100_000, 20, 100)
_MOST_FILES = 65_536
# Seconds between switches of threads. With Python's default of 5 ms a service that reads its store in threads would
# answer a small query late.
_SWITCH_S = 0.001

Result = TypeVar("Result", bound=Model)

HEARTBEAT_S = 1.0
_NAME_TAKEN_WITHIN_S = 0.3
_LONGEST_NAME = 64
# Queries that are answered side by side.
_QUERIES_AT_ONCE = 4
# Seconds that start-up may continue after a stop signal; without a broker it never finishes.
_BEGIN_S = 5.0
VERSION = "0.1.0"


class Service:
    """Base of all services. A subclass registers handlers, adds tasks in `start` and cleans up in `finish`."""

    def __init__(
        self,
        name: str,
        home: Home,
        bus_address: str | None = None,
        *,
        heartbeat_s: float = HEARTBEAT_S,
        queries_at_once: int = _QUERIES_AT_ONCE,
    ) -> None:
        self.name = name
        self.home = home
        self.epoch = home.next_epoch(name)
        self.bus = BusClient(home.address(bus_address), source=name, epoch=self.epoch)
        self.started_at = time.time()
        self.heartbeat_s = heartbeat_s
        self.status: Literal["ok", "degraded", "stopping"] = "ok"
        self.detail = ""
        self._handlers: dict[str, tuple[type[Command[Any]], Callable[[Any], Awaitable[Model]]]] = {}
        self._answers = AnswerBook()
        self._waiting_queries = QueryQueue(queries_at_once)
        self._tasks: set[asyncio.Task[None]] = set()
        self._stop = asyncio.Event()
        self._failure: BaseException | None = None
        self.handle(Ping, self._on_ping)
        self.handle(Info, self._on_info)
        self.handle(Stats, self._on_stats)

    # ── for subclasses ──────────────────────────────────────────────────────────────────────────

    async def start(self) -> None:
        """Begin work; the bus is connected. Add background tasks with `spawn`."""

    async def finish(self) -> None:
        """Clean up; the bus is still connected."""

    def counters(self) -> dict[str, int | float]:
        """Counters of this service, besides those of its bus connection."""
        return {}

    def details(self) -> dict[str, Any]:
        """Further details for `info`."""
        return {}

    def handle(self, command: type[Command[Result]], handler: Callable[[Any], Awaitable[Result]]) -> None:
        """Answer a command with a coroutine that takes it and returns its result."""
        self._handlers[command.name] = (command, handler)

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        """Run a task in the background; if it fails, the service ends with that error."""
        task = asyncio.create_task(work, name=f"{self.name}:{name}")
        self._tasks.add(task)
        task.add_done_callback(self._task_ended)

    def set_status(self, status: Literal["ok", "degraded"], detail: str = "") -> None:
        """Set the status; a change is logged and published at once."""
        if (status, detail) != (self.status, self.detail) and self.status != "stopping":
            self.status, self.detail = status, detail
            _log.info("status", status=status, detail=detail)
            self._beat()

    def stop(self) -> None:
        """Ask the service to end."""
        self._stop.set()

    # ── running ─────────────────────────────────────────────────────────────────────────────────

    async def run(self) -> None:
        """Connect, work until stopped, clean up."""
        if not await self._unless_stopped(self.bus.connect(timeout=None), 0):
            return
        _log.info("connected", service=self.name, epoch=self.epoch, address=self.bus.address.ingress)
        try:
            if await self._unless_stopped(self._begin(), _BEGIN_S):
                await self._stop.wait()
        except BaseException as error:
            self._failure = self._failure or error  # `finish` can tell a failure from a stop signal.
            raise
        finally:
            self.status = "stopping"
            self._beat()
            try:
                await self.finish()
            finally:
                tasks = list(self._tasks)
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
                await self.bus.close()
        if self._failure is not None:
            raise self._failure

    async def _begin(self) -> None:
        await self._require_own_name()
        commands = self.bus.subscribe(topics.command(self.name))
        await self.bus.synced()
        await self.start()
        self.spawn(self._take_commands(commands), "commands")
        self.spawn(self._heartbeat(), "heartbeat")

    async def _require_own_name(self) -> None:
        """Refuse to run beside another service of the same name: both would carry out every command."""
        try:
            other = await self.bus.request(self.name, Info(), timeout=_NAME_TAKEN_WITHIN_S)
        except NoAnswerError:
            return
        raise NameTakenError(self.name, self.bus.address.ingress, other.pid)

    async def _unless_stopped(self, work: Coroutine[Any, Any, None], grace_s: float) -> bool:
        """Wait for work that needs the broker; False if a stop signal came and it did not finish in time."""
        working = asyncio.create_task(work)
        stopped = asyncio.create_task(self._stop.wait())
        await asyncio.wait([working, stopped], return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        await asyncio.wait([working], timeout=grace_s)
        if not working.done():
            working.cancel()
            await asyncio.gather(working, return_exceptions=True)
            return False
        working.result()
        return True

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (failure := task.exception()) is not None:
            _log.error("task failed", task=task.get_name(), exc_info=failure)
            self._failure = self._failure or failure
            self._stop.set()

    async def _heartbeat(self) -> None:
        while True:
            self._beat()
            await asyncio.sleep(self.heartbeat_s)

    def _beat(self) -> None:
        self.bus.publish(topics.service_state(self.name), self._state())

    def _state(self) -> ServiceState:
        return ServiceState(
            service=self.name,
            pid=os.getpid(),
            started_at=self.started_at,
            status=self.status,
            detail=self.detail,
            counters={**self.bus.counters, "queries_dropped": self._waiting_queries.dropped, **self.counters()},
        )

    # ── commands ────────────────────────────────────────────────────────────────────────────────

    async def _take_commands(self, commands: Subscription) -> None:
        async for message in commands:
            command_id, client = message.header.id, message.payload.get("reply_to")
            if not _is_name(client) or len(command_id) > _LONGEST_NAME:
                self.bus.counters["unanswerable"] += 1
            elif not self._is_query(message) or self._answers.knows(command_id):
                self.spawn(self._carry_out(message, client), "command")
            elif self._waiting_queries.offer(client, message, time.monotonic()):
                self._start_queries()
            else:
                self.bus.counters["busy"] += 1
                said = f"{self.name} has too many queries to answer: ask again later"
                answer = self._encode_answer(_refusal(CommandRefusedError(RefusalCode.BUSY, said)))
                self.bus.publish_packed(topics.reply(client), answer, cor=command_id)

    def _is_query(self, message: Message) -> bool:
        name = message.payload.get("command")
        found = self._handlers.get(name) if isinstance(name, str) else None
        return found is not None and issubclass(found[0], Query)

    def _start_queries(self) -> None:
        while (taken := self._waiting_queries.take(time.monotonic())) is not None:
            client, message = taken
            self.spawn(self._answer_query(client, message), "query")

    async def _answer_query(self, client: str, message: Message) -> None:
        try:
            await self._carry_out(message, client)
        finally:
            self._waiting_queries.done(client)
            if not self._stop.is_set():
                self._start_queries()

    async def _carry_out(self, message: Message, reply_to: str) -> None:
        command_id = message.header.id
        if self._answers.begin(command_id):
            try:
                self._answers.finish(command_id, self._encode_answer(await self._answer(message)))
            finally:
                self._answers.abandon(command_id)
        answer = self._answers.find(command_id)
        if answer is not None:
            self.bus.publish_packed(topics.reply(reply_to), answer, cor=command_id)

    def _encode_answer(self, answer: dict[str, Any]) -> bytes:
        """Pack an answer; if it cannot be sent, pack a refusal that says why."""
        try:
            packed = envelope.pack(answer)
            envelope.check_size([packed, bytes(envelope.MAX_HEADER_BYTES)])
        except BadMessageError as error:
            _log.warning("answer cannot be sent", reason=str(error))
            code = RefusalCode.TOO_LARGE if isinstance(error, MessageTooLargeError) else RefusalCode.INTERNAL
            refusal = CommandRefusedError(code, f"{self.name} has an answer that cannot be sent: {error}")
            packed = envelope.pack(_refusal(refusal))
        return packed

    async def _answer(self, message: Message) -> dict[str, Any]:
        name = message.payload.get("command")
        try:
            found = self._handlers.get(name) if isinstance(name, str) else None
            if found is None:
                raise self._unknown(name)
            kind, handler = found
            args = message.payload.get("args", {})
            _require_text_keys(args)
            result = await handler(kind.model_validate(args))
            return {"ok": True, "result": result.model_dump(mode="json")}
        except CommandRefusedError as error:
            return _refusal(error)
        except ValidationError as error:
            problems = RefusalDetails(problems=find_problems(error))
            return _refusal(CommandRefusedError(RefusalCode.INVALID_ARGUMENTS, explain(error), problems))
        except Exception as error:
            _log.exception("command failed", command=shown(name))
            reason = f"{self.name} failed on {shown(name)}: {type(error).__name__}: {error}"
            return _refusal(CommandRefusedError(RefusalCode.INTERNAL, reason))

    def _unknown(self, name: object) -> CommandRefusedError:
        known = sorted(self._handlers)
        near = near_names(name, known) if isinstance(name, str) else []
        said = f"{self.name} has no command {shown(name)}; it has {', '.join(known)}"
        details = RefusalDetails(value=brief(name), near=near, allowed=known)
        return CommandRefusedError(RefusalCode.UNKNOWN_COMMAND, said, details)

    async def _on_ping(self, _: Ping) -> Ack:
        return Ack(note="pong")

    async def _on_info(self, _: Info) -> InfoResult:
        return InfoResult(
            service=self.name,
            pid=os.getpid(),
            epoch=self.epoch,
            started_at=self.started_at,
            protocol=PROTOCOL_VERSION,
            version=VERSION,
            commands=sorted(self._handlers),
            details=self.details(),
        )

    async def _on_stats(self, _: Stats) -> ServiceState:
        return self._state()


def _require_text_keys(args: object) -> None:
    """Refuse maps with keys other than strings: pydantic accepts them in fields of any type."""
    inside = [("args", args)]
    while inside:
        where, value = inside.pop()
        if isinstance(value, dict):
            for key, item in value.items():
                if not isinstance(key, str):
                    problem = Problem(field=where, message=f"keys are strings, got {shown(key)}", value=brief(key))
                    details = RefusalDetails(problems=[problem])
                    raise CommandRefusedError(RefusalCode.INVALID_ARGUMENTS, str(problem), details)
                inside.append((f"{where}.{key}"[:_LONGEST_NAME], item))
        elif isinstance(value, list):
            inside += [(where, item) for item in value]


def _is_name(text: object) -> TypeGuard[str]:
    """Whether a client's name can be part of a topic; clients are not trusted."""
    return isinstance(text, str) and text.isascii() and text.isalnum() and len(text) <= _LONGEST_NAME


def _refusal(error: CommandRefusedError) -> dict[str, Any]:
    details = error.details.model_dump(exclude_defaults=True)
    return {"ok": False, "error": {"code": error.code, "message": error.message, "details": details}}


def _allow_many_files() -> None:
    """Raise the limit of descriptors: a host needs three for each run, a broker two for each client."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, _MOST_FILES)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def serve(make: Callable[[], Service], name: str) -> int:
    """Run a service until SIGTERM or SIGINT; return the exit code of the process."""
    configure_logging(name)
    _allow_many_files()
    sys.setswitchinterval(_SWITCH_S)
    # Modules stay. A batch or a list of runs is thousands of small objects that die together; with the default
    # thresholds, collecting them takes a quarter of the time that creating them does.
    gc.freeze()
    gc.set_threshold(*_GARBAGE_THRESHOLDS)

    async def main() -> None:
        service = make()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, service.stop)
        await service.run()

    try:
        asyncio.run(main())
    except BusError as error:
        _log.error("cannot run", reason=str(error))
        return 2
    except Exception:
        _log.exception("failed")
        return 1
    return 0
