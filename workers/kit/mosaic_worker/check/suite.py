"""The checks, in the order in which they run; each is a function that raises if it fails."""

import tempfile
from collections.abc import Callable, Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mosaic_worker.arrays import Slots, as_base64
from mosaic_worker.check.noise import NOISE, write_noisy_sitecustomize
from mosaic_worker.check.process import Client, Finished, Subject
from mosaic_worker.check.report import CheckFailedError, CheckSkippedError, Result
from mosaic_worker.config import parse_config
from mosaic_worker.discover import find, load
from mosaic_worker.errors import ConfigError, EventError
from mosaic_worker.events import TERMINAL_EVENTS
from mosaic_worker.events.models import Event, parse_event
from mosaic_worker.metadata import WorkerMetadata
from mosaic_worker.stop import EXIT_STOPPED

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

__all__ = ["CHECKS", "run_suite"]

_UNKNOWN = "no_such_field"
_SIGTERM_ATTEMPTS = 3
_BEFORE_START = frozenset({"heartbeat", "log"})
_SEED = 7
_LANE_STEPS = 8
_ALWAYS = ("entry-point", "metadata")


class Suite:
    """One worker under test, and results of earlier checks."""

    def __init__(self, name: str, folder: Path, timeout_s: float) -> None:
        """Prepare; the checks fill in the rest."""
        self.name = name
        self.point: EntryPoint | None = None
        self._metadata: WorkerMetadata | None = None
        self._folder = folder
        self._timeout_s = timeout_s
        self._first_run: list[Event] | None = None

    @property
    def metadata(self) -> WorkerMetadata:
        """The worker's metadata, if the check that loads it passed."""
        if self._metadata is None:
            raise CheckSkippedError("the metadata could not be loaded")
        return self._metadata

    @property
    def subject(self) -> Subject:
        """The worker, ready to be started."""
        if self.point is None:
            raise CheckSkippedError("the entry point was not found")
        return Subject(self.name, self.point.module.partition(".")[0], self._folder, self._timeout_s)

    @property
    def example(self) -> dict[str, Any]:
        """The example config, with a seed."""
        return {"seed": _SEED, **self.metadata.example_config}

    def entry_point(self) -> None:
        """Look for exactly one entry point of that name."""
        points = find(self.name)
        if len(points) != 1:
            known = ", ".join(point.name for point in find()) or "none"
            raise CheckFailedError(
                f"{len(points)} entry points named {self.name!r} in mosaic.workers; there are: {known}"
            )
        self.point = points[0]

    def load_metadata(self) -> None:
        """Import the worker and try its own example config."""
        if self.point is None:
            raise CheckSkippedError("the entry point was not found")
        try:
            self._metadata = load(self.point)
            parse_config(self._metadata.config_model, {"run_id": "check", **self._metadata.example_config}, {})
        except ConfigError as error:
            raise CheckFailedError(f"the example config is refused:\n{error}") from error
        except Exception as error:
            raise CheckFailedError(f"{type(error).__name__}: {error}") from error

    def describe(self) -> None:
        """Compare what the process prints with what the entry point returns."""
        finished = self.subject.run("describe", "--describe")
        finished.expect(0, "--describe")
        given, expected = finished.only_object("--describe"), self.metadata.describe()
        wrong = sorted(key for key in expected if given.get(key) != expected[key])
        if wrong:
            raise CheckFailedError(f"--describe and the entry point disagree about: {', '.join(wrong)}")

    def dry_run_accepts(self) -> None:
        """Dry-run the example."""
        finished = self._dry_run("dry-run", self.example)
        finished.expect(0, "--dry-run of the example config")
        finished.only_object("--dry-run")

    def dry_run_refuses(self) -> None:
        """Dry-run the example with a field that does not exist."""
        finished = self._dry_run("dry-run-unknown", {**self.example, _UNKNOWN: 1})
        finished.expect(2, "--dry-run with an unknown field")
        if _UNKNOWN not in finished.stderr + finished.stdout.decode(errors="replace"):
            raise CheckFailedError(f"the unknown field {_UNKNOWN!r} is not named{finished.tail()}")

    def flat_and_nested(self) -> None:
        """Dry-run the same config in both forms."""
        flat = self._dry_run("dry-run-flat", {"run_id": "check-form", **self.example})
        nested_document = {"run_id": "check-form", "metadata": {"worker": {"config": self.example}}}
        nested = self._dry_run("dry-run-nested", nested_document)
        flat.expect(0, "--dry-run of a flat config")
        nested.expect(0, "--dry-run of a nested config")
        if flat.only_object("flat") != nested.only_object("nested"):
            raise CheckFailedError(f"the two forms load differently:\n{flat.stdout!r}\n{nested.stdout!r}")

    def bad_config_run(self) -> None:
        """Run, not dry, with a field that does not exist."""
        config = self.subject.write_config("refused", {**self.example, _UNKNOWN: 1})
        finished = self.subject.run("refused", "--config", config)
        finished.expect(2, "a run with an unknown field")
        events = _events(finished)
        names = [event.event for event in events]
        # A heartbeat may come first, if imports take long.
        if names[-1:] != ["run_failed"] or set(names[:-1]) - {"heartbeat"}:
            raise CheckFailedError(f"expected one run_failed, found: {names}")
        category = getattr(events[-1], "category", None)
        if category != "configuration":
            raise CheckFailedError(f"category is {category!r}, expected 'configuration'")

    def example_run(self) -> None:
        """Run the example and read every line."""
        self._first_run = self._run_example("run-1")

    def same_seed(self) -> None:
        """Run the example again and compare episodes."""
        first = _episodes(self._first_run if self._first_run is not None else self._run_example("run-1"))
        second = _episodes(self._run_example("run-2"))
        if not first:
            raise CheckSkippedError("the example reports no episodes")
        if first != second:
            different = next((pair for pair in zip(first, second, strict=False) if pair[0] != pair[1]), None)
            raise CheckFailedError(f"{len(first)} and {len(second)} episodes; the first that differ: {different}")

    def prints(self) -> None:
        """Run the example while code inside the process prints in every possible way."""
        journal = self._folder / "prints.stdout"
        config = self.subject.write_config("prints", self.example)
        environ = write_noisy_sitecustomize(self._folder / "noise", journal)
        finished = self.subject.run("prints", "--config", config, **environ)
        if NOISE.encode() in finished.stdout:
            raise CheckFailedError("what a library prints reached stdout; it must go to stderr")
        _events(finished)
        if NOISE not in finished.stderr:
            raise CheckSkippedError("the example ended before anything could be printed; make it a little longer")

    def sigterm(self) -> None:
        """Stop a run in the middle; try a few times, since the example may end too quickly."""
        config = self.subject.write_config("sigterm", self.example)
        for attempt in range(_SIGTERM_ATTEMPTS):
            with self.subject.start(f"sigterm-{attempt}", "--config", config) as process:
                started = process.wait_for(lambda: b'"run_started"' in process.stdout.read_bytes())
                process.terminate()
                finished = process.wait()
            events = _events(finished)
            if events and events[-1].event == "run_cancelled":
                finished.expect(EXIT_STOPPED, "after run_cancelled")
                _exactly_one_end(events)
                return
            if not events or events[-1].event != "run_completed":
                finished.expect(EXIT_STOPPED, "SIGTERM during a run")
                raise CheckFailedError(
                    f"the last line is {events[-1].event if events else 'missing'}, not run_cancelled"
                )
            if not started:
                raise CheckFailedError("the run ended without run_started")
        raise CheckSkippedError(f"the example ended before SIGTERM arrived, {_SIGTERM_ATTEMPTS} times; make it longer")

    def resume(self) -> None:
        """Stop a run that has saved a checkpoint, and resume from it, as the platform does after a failure."""
        if not self.metadata.capabilities.supports_resume:
            raise CheckSkippedError("the capabilities do not say supports_resume")
        # A worker may save when it is stopped; if not, wait for its first checkpoint.
        saved = self._stopped_at("resume-1", b'"episode"', b'"scalars"', b'"checkpoint_saved"')
        if saved is None or not saved[1]:
            saved = self._stopped_at("resume-2", b'"checkpoint_saved"') or saved
        if saved is None:
            raise CheckFailedError("supports_resume, but a run of the example saves no checkpoint that exists")
        path, step = saved
        document = {"metadata": {"worker": {"config": self.example}}, "resume": {"path": str(path), "step": step}}
        finished = self.subject.run("resumed", "--config", self.subject.write_config("resumed", document))
        finished.expect(0, f"a run that resumes from {path}")
        events = _events(finished)
        _exactly_one_end(events)
        loaded = [getattr(event, "path", None) for event in events if event.event == "checkpoint_loaded"]
        if loaded != [str(path)]:
            raise CheckFailedError(f"expected one checkpoint_loaded with path {str(path)!r}, found: {loaded}")
        steps = [found for event in events if (found := getattr(event, "step", None)) is not None]
        if step is not None and steps and min(steps) < step:
            raise CheckFailedError(f"the checkpoint is of step {step}, but the resumed run reports step {min(steps)}")

    def _stopped_at(self, label: str, *marks: bytes) -> tuple[Path, int | None] | None:
        """Run the example until it writes one of `marks`, stop it, and return its last existing checkpoint."""
        config = self.subject.write_config(label, self.example)
        with self.subject.start(label, "--config", config) as process:
            process.wait_for(lambda: any(mark in process.stdout.read_bytes() for mark in marks))
            process.terminate()
            events = _events(process.wait())
        for event in reversed(events):
            if event.event == "checkpoint_saved":
                path = self._folder / label / str(getattr(event, "path", ""))  # relative to the run's folder
                if path.exists():
                    return path, getattr(event, "step", None)
        return None

    def interactive_basics(self) -> None:
        """Ping, talk nonsense, ping again, stop."""
        with self._client() as client:
            if client.ask({"cmd": "ping", "id": 12}, "pong").get("id") != 12:  # noqa: PLR2004
                raise CheckFailedError("the id of a request is not repeated in its answer")
            for nonsense in (b"{not json", b"[1, 2]", b'{"cmd": "no_such_command"}', b"{}"):
                if not client.ask(nonsense, "error").get("message"):
                    raise CheckFailedError(f"{nonsense!r} was answered with an error without a message")
            client.ask({"cmd": "ping"}, "pong")
            client.ask({"cmd": "stop"}, "stopped")
            code = client.finish()
        if code != 0:
            raise CheckFailedError(f"exit code {code} after stop, expected 0")

    def interactive_environment(self) -> None:
        """Reset and step, twice with the same seed."""
        self._needs("reset", "step")
        played = []
        with self._client() as client:
            for _ in range(2):
                steps = [client.ask({"cmd": "reset", "seed": _SEED}, "reset")]
                _has(steps[0], "observation", "info")
                steps.append(client.ask({"cmd": "step"}, "step"))
                _has(steps[1], "action", "observation", "reward", "terminated", "truncated", "info")
                played.append(steps)
            client.ask({"cmd": "stop"}, "stopped")
        if played[0] != played[1]:
            raise CheckFailedError(f"the same seed gave different answers:\n{played[0]}\n{played[1]}")

    def interactive_agent(self) -> None:
        """Act as an agent with two actions."""
        self._needs("init_agent", "select_action")
        with self._client() as client:
            self._join(client)
            answer = client.ask({"cmd": "select_action", "observation": [0.0] * 4, "agent": "a"}, "action")
            original = {"type": "select_action", "observation": [0.0] * 4, "player_id": "a", "info": {}}
            client.ask(original, "action")
            client.ask({"cmd": "stop"}, "stopped")
        if answer.get("action") not in (0, 1):
            raise CheckFailedError(f"select_action gave {answer.get('action')!r}, which is not 0 or 1")

    def interactive_lanes(self) -> None:
        """Play two episodes at once: as one by one, repeatable by seed, however the observations are sent."""
        self._needs("init_agent", "begin_episode", "select_actions")
        rows = np.linspace(-1, 1, 8, dtype=np.float32).reshape(2, 4)
        slots = Slots.create(4096)
        try:
            with self._client() as client:
                ready = self._join(client, lanes=2, slots={"path": slots.path, "size": slots.size})
                if ready.get("lanes") != 2:  # noqa: PLR2004
                    raise CheckFailedError(f"init_agent with 2 lanes was answered with lanes {ready.get('lanes')!r}")
                forms = (rows.tolist(), as_base64(rows), slots.put(rows, 0)[0])
                played = [_play_lanes(client, together=form) for form in forms]
                played.append(_play_lanes(client, one_by_one=rows.tolist()))
                client.ask({"cmd": "stop"}, "stopped")
        finally:
            slots.remove()
        if any(each != played[0] for each in played):
            raise CheckFailedError(
                f"the same seeds gave different actions as lists, base64, slot and one by one: {played}"
            )

    def _join(self, client: Client, **more: Any) -> dict[str, Any]:
        box = {"type": "Box", "low": "-Infinity", "high": "Infinity", "shape": [4], "dtype": "float32"}
        two = {"type": "Discrete", "n": 2, "start": 0}
        request = {"cmd": "init_agent", "observation_space": box, "action_space": two, "seed": _SEED, "agent": "a"}
        ready = client.ask({**request, **more}, None)
        if ready.get("type") == "error":
            raise CheckSkippedError(f"its agent does not play with 4 numbers and 2 actions: {ready.get('message')}")
        return ready

    def _dry_run(self, label: str, document: dict[str, Any]) -> Finished:
        return self.subject.run(label, "--config", self.subject.write_config(label, document), "--dry-run")

    def _run_example(self, label: str) -> list[Event]:
        config = self.subject.write_config(label, self.example)
        finished = self.subject.run(label, "--config", config)
        finished.expect(0, "a run of the example config")
        events = _events(finished)
        names = [event.event for event in events]
        if names.count("run_started") != 1:
            raise CheckFailedError(f"run_started was written {names.count('run_started')} times")
        if set(names[: names.index("run_started")]) - _BEFORE_START:
            raise CheckFailedError(f"{names[0]} came before run_started")
        _exactly_one_end(events)
        if names[-1] != "run_completed":
            raise CheckFailedError(f"exit code 0, but the last line is {names[-1]}")
        run_id = getattr(events[names.index("run_started")], "run_id", None)
        if run_id != f"check-{label}":
            raise CheckFailedError(f"run_started has run_id {run_id!r}, but MOSAIC_RUN_ID was 'check-{label}'")
        return events

    def _needs(self, *commands: str) -> None:
        missing = set(commands) - set(self.metadata.capabilities.interactive_commands)
        if missing:
            raise CheckSkippedError(f"the capabilities do not list: {', '.join(sorted(missing))}")

    def _client(self) -> Client:
        if not self.metadata.capabilities.interactive_commands:
            raise CheckSkippedError("the worker has no interactive mode")
        return Client(self.subject, self.subject.write_config("interactive", self.example))


CHECKS: tuple[tuple[str, str, Callable[[Suite], None]], ...] = (
    ("entry-point", "an entry point in mosaic.workers", Suite.entry_point),
    ("metadata", "valid metadata, whose example config is accepted", Suite.load_metadata),
    ("describe", "--describe prints one JSON object and nothing else", Suite.describe),
    ("dry-run-accepts", "--dry-run accepts the example config", Suite.dry_run_accepts),
    ("dry-run-refuses", "--dry-run refuses an unknown field by name, exit 2", Suite.dry_run_refuses),
    ("config-forms", "flat and nested configs load alike", Suite.flat_and_nested),
    ("bad-config", "a run with a bad config writes run_failed (configuration), exit 2", Suite.bad_config_run),
    ("run", "a run of the example writes valid lines, one start, one end, exit 0", Suite.example_run),
    ("same-seed", "the same seed gives the same episodes", Suite.same_seed),
    ("prints", "what libraries print does not reach stdout", Suite.prints),
    ("sigterm", "SIGTERM gives run_cancelled, exit 143", Suite.sigterm),
    ("resume", "a run resumes from the checkpoint of a stopped one", Suite.resume),
    ("interactive", "ping, bad requests and stop are answered", Suite.interactive_basics),
    ("interactive-env", "reset and step, repeatable by seed", Suite.interactive_environment),
    ("interactive-agent", "init_agent and select_action", Suite.interactive_agent),
    ("interactive-lanes", "several episodes at once play as one by one", Suite.interactive_lanes),
)


def run_suite(
    name: str,
    timeout_s: float,
    on_result: Callable[[Result], None] = lambda _: None,
    only: Collection[str] = (),
) -> list[Result]:
    """Run the checks, all or `only` some, on an installed worker, and report each as it is done."""
    results = []
    wanted = {*only, *_ALWAYS} if only else {identity for identity, _, _ in CHECKS}
    with tempfile.TemporaryDirectory(prefix="mosaic-check-") as folder:
        suite = Suite(name, Path(folder), timeout_s)
        for identity, description, check in CHECKS:
            if identity not in wanted:
                continue
            try:
                check(suite)
                result = Result(identity, description, "pass")
            except CheckSkippedError as reason:
                result = Result(identity, description, "skip", str(reason))
            except (CheckFailedError, EventError) as reason:
                result = Result(identity, description, "fail", str(reason))
            results.append(result)
            on_result(result)
    return results


def _events(finished: Finished) -> list[Event]:
    """Parse every line of stdout; an EventError fails the check and quotes the line."""
    return [parse_event(line) for line in finished.lines()]


def _exactly_one_end(events: list[Event]) -> None:
    ends = [event.event for event in events if event.event in TERMINAL_EVENTS]
    if len(ends) != 1 or events[-1].event not in TERMINAL_EVENTS:
        raise CheckFailedError(f"terminal events: {ends}, last line: {events[-1].event if events else 'none'}")


def _episodes(events: list[Event]) -> list[dict[str, Any]]:
    """Return what must repeat of each episode: everything but times."""
    kept = ("episode", "return", "length", "seed", "agent")
    dumps = [event.model_dump(by_alias=True) for event in events if event.event == "episode"]
    return [{name: dump.get(name) for name in kept} for dump in dumps]


def _play_lanes(client: Client, together: Any = None, one_by_one: list[Any] | None = None) -> list[Any]:
    """Play both lanes for some steps; return the actions, step by step."""
    for lane in range(2):
        begin = {"cmd": "begin_episode", "agent": "a", "seed": _SEED + lane, "episode": lane, "lane": lane}
        client.ask(begin, "episode_ready")
    actions = []
    for _ in range(_LANE_STEPS):
        if one_by_one is None:
            request = {"cmd": "select_actions", "agent": "a", "lanes": [0, 1], "observations": together}
            actions.append(client.ask(request, "actions").get("actions"))
            continue
        single = {"cmd": "select_action", "agent": "a"}
        asked = ({**single, "observation": row, "lane": lane} for lane, row in enumerate(one_by_one))
        actions.append([client.ask(request, "action").get("action") for request in asked])
    return actions


def _has(answer: dict[str, Any], *fields: str) -> None:
    missing = [field for field in fields if field not in answer]
    if missing:
        raise CheckFailedError(f"the answer {str(answer)[:200]} lacks {', '.join(missing)}")
