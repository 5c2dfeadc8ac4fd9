"""`mosaic play`: play an environment by hand, or watch operators side by side, in the terminal."""

from __future__ import annotations

import sys
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mosaic_bus.commands import CloseSession, OpenSession, Show
from mosaic_bus.errors import BusError
from mosaic_services.checkpoint_references import is_reference, parse
from mosaic_services.cli.display.output import number, plain, say
from mosaic_services.cli.errors import InputError
from mosaic_services.cli.options import current
from mosaic_services.cli.play.conversation import Conversation
from mosaic_services.experiments.lineups import expand_lineups
from mosaic_services.experiments.reading import make_experiment, read_experiments
from mosaic_services.experiments.tasks import first_agent_of, players_of

if TYPE_CHECKING:
    from mosaic_bus import Bus
    from mosaic_services.experiments.model import Experiment

__all__ = ["command"]

_START_S = 300.0
_QUIT = {"q", "quit", "exit"}
_MOST_MOVES = 12
_PERSON = "you"
_FILES = frozenset({".yaml", ".yml", ".py"})


def command(
    environment: Annotated[
        str,
        typer.Argument(metavar="ENV|FILE", help="Id of an environment, such as tictactoe_v3, or an experiment file."),
    ],
    with_: Annotated[
        list[str] | None,
        typer.Option("--with", metavar="OPERATOR", help="Who plays: random, noop or run:NAME@best; repeat for boards."),
    ] = None,
    as_: Annotated[
        str | None,
        typer.Option(
            "--as", metavar="AGENT", help="The agent that you play (default: the first; all, if none is known)."
        ),
    ] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Nobody plays by hand: each operator has its board.")] = False,
    seed: Annotated[int | None, typer.Option("--seed", min=0, help="Seed of the environment, for all boards.")] = None,
    steps: Annotated[int, typer.Option("--steps", min=1, help="With --watch: steps to take.")] = 1_000_000,
    rate: Annotated[
        float, typer.Option("--rate", min=0.1, max=1000, help="Steps per second of boards on which nobody plays.")
    ] = 4.0,
    confirm: Annotated[bool, typer.Option("--confirm", help="A move counts when you give it twice.")] = False,
    timeout: Annotated[
        float | None, typer.Option("--timeout", min=0.1, help="Seconds for your move; then a no-op is played.")
    ] = None,
    lines: Annotated[bool, typer.Option("--lines", help="Print lines and read moves as lines, as in a pipe.")] = False,
) -> None:
    """Play by hand, with keys: frames and legal moves are shown. `q` ends it.

    In a pipe, or with --lines, a move is a line: its number or its name. An experiment file brings any operators,
    also language models and policies from files; `worker: human` is you.

    mosaic play tictactoe_v3 --with random

    mosaic play CartPole-v1 --watch --with run:ppo-cartpole@best --with random --rate 10

    mosaic play lesson.yaml
    """
    with current.connect() as bus:
        person = {"worker": "human", "config": {"confirm": confirm, **({"timeout_s": timeout} if timeout else {})}}
        if Path(environment).suffix in _FILES:
            if with_ or as_ or watch or confirm or timeout:
                raise InputError(
                    f"{environment} says who plays", "leave --with, --as, --watch, --confirm and --timeout out"
                )
            experiment = _read(Path(environment))
        else:
            experiment = _make(environment, _operators(bus, with_ or ["random"]), None if watch else person, as_)
        has_keys = sys.stdin.isatty() and sys.stdout.isatty() and not lines
        fields = experiment.model_dump(mode="json")
        opening = OpenSession(experiment=fields, frames="single" if has_keys else "off")
        opened = bus.request("operator", opening, timeout=30)
        talk = Conversation(bus, opened.session)
        watched = None if _has_people(experiment) else steps
        try:
            play = _Play(talk, list(opened.boards), seed, rate)
            ready = play.await_boards()
            if has_keys:
                from mosaic_services.cli.play.screen import Screen  # noqa: PLC0415 - start-up time

                Screen(bus, talk, ready, seed, rate).run(watched)
            else:
                play.run(watched)
        finally:
            talk.close()
            _close(bus, opened.session)


def _make(
    environment: str, operators: dict[str, dict[str, Any]], person: dict[str, Any] | None, agent: str | None
) -> Experiment:
    """Make an experiment: each operator on its own board, or one board with you and the first of them."""
    lineups = [{"*": name} for name in operators]
    if person is not None:
        lineups = [_seats(environment, agent, list(operators))]
        operators = {**operators, _PERSON: person}
    used = {name for each in lineups for name in each.values()}
    playing = {name: each for name, each in operators.items() if name in used}
    document = {"name": "play", "environment": {"id": environment}, "operators": playing, "lineups": lineups}
    return make_experiment(document, environment)


def _read(path: Path) -> Experiment:
    experiments, notes = read_experiments(path)
    for note in notes:
        print(f"note: {note}", file=sys.stderr)
    if len(experiments) != 1:
        raise InputError(f"{path} has {len(experiments)} experiments", "play a file with one")
    return experiments[0]


def _has_people(experiment: Experiment) -> bool:
    people = {name for name, each in experiment.operators.items() if each.worker == "human"}
    return any(people.intersection(each.agents.values()) for each in expand_lineups(experiment))


def _close(bus: Bus, session: str) -> None:
    try:
        bus.request("operator", CloseSession(session=session))
    except BusError as error:
        print(f"note: {error}", file=sys.stderr)


def _operators(bus: Bus, words: list[str]) -> dict[str, dict[str, Any]]:
    """Operators from words: `random`, `noop` or a run's checkpoint, whose worker plays it."""
    found: dict[str, dict[str, Any]] = {}
    for word in words:
        if is_reference(word):
            parsed = parse(word)
            if parsed is None:
                raise InputError(f"{word!r} is no checkpoint", "write run:NAME@best, run:NAME@last or run:NAME@STEP")
            trained = bus.request("scheduler", Show(run=parsed[0]))
            name, entry = trained.run.name[:60], {"worker": trained.spec.worker, "checkpoint": word}
            entry["profile"] = trained.spec.profile
        elif word in {"random", "noop"}:
            name, entry = word, {"worker": word}
        else:
            raise InputError(f"nobody is called {word!r}", "known: random, noop, run:NAME@best; others: FILE")
        found[name if name not in found else f"{name}-{len(found) + 1}"] = entry
    return found


def _seats(environment: str, agent: str | None, others: list[str]) -> dict[str, str]:
    """Who sits where: you in one seat, the first operator in every other."""
    players, mine = players_of(environment), agent or first_agent_of(environment)
    if mine is None:
        return {"*": _PERSON}
    if players is None:
        return {mine: _PERSON, "*": others[0]}
    if mine not in players:
        raise InputError(f"no agent is called {mine!r}", f"the agents are: {', '.join(players)}")
    return {player: _PERSON if player == mine else others[0] for player in players}


class _Play:
    """Shows boards as they change, and reads moves."""

    def __init__(self, talk: Conversation, boards: list[str], seed: int | None, rate: float) -> None:
        self._talk = talk
        self._boards = boards
        self._seed = seed
        self._rate = rate
        # Moves that are waited for, in order, each with what its board said.
        self._wanted: deque[tuple[str, dict[str, Any]]] = deque()
        self._people: list[str] = []

    def run(self, steps: int | None) -> None:
        """Play one episode, line by line; with `steps`, nobody plays by hand."""
        self._talk.ask(cmd="reset", **({} if self._seed is None else {"seed": self._seed}))
        if steps is not None:
            self._watch(steps)
        else:
            self._play()

    def await_boards(self) -> dict[str, dict[str, Any]]:
        """Wait until every board is ready or cannot be; return what each says about itself."""
        say(("starting the session…", "bright_black"))
        waiting = set(self._boards)
        ready = {}
        while waiting:
            told = self._listen()
            if told.get("type") != "board":
                continue
            if told["status"] == "ready":
                waiting.discard(told["board"])
                ready[told["board"]] = told
                if told["people"]:
                    self._people.append(told["board"])
            elif told["status"] in {"refused", "failed"}:
                waiting.discard(told["board"])
                self._boards.remove(told["board"])
                say((f"{told['board']}: ", "bold"), (str(told.get("message")), "red"))
        if not self._boards:
            raise InputError("no board can be played")
        return ready

    def _listen(self) -> dict[str, Any]:
        told = self._talk.listen(_START_S)
        if told is None:
            raise InputError(f"the session said nothing for {_START_S:g} s", f"see: mosaic logs {self._talk.session}")
        return told

    def _watch(self, steps: int) -> None:
        playing = set(self._boards)
        self._talk.ask(cmd="play", rate=self._rate)
        while playing:
            told = self._listen()
            if told.get("type") == "board" and told["board"] in playing:
                say(_line(told))
                if told["status"] in {"over", "failed", "refused"} or told.get("step", 0) >= steps:
                    playing.discard(told["board"])

    def _play(self) -> None:
        """Play until every board of a person is over; other boards play beside them."""
        if not self._people:
            raise InputError("no board on which you play is left")
        if others := [board for board in self._boards if board not in self._people]:
            self._talk.ask(cmd="play", rate=self._rate, boards=others)
        self._talk.ask(cmd="step", boards=self._people)
        playing, is_sent = set(self._people), False
        while playing:
            told = self._listen()
            if told.get("type") == "board":
                say(_line(told))
                self._follow(told)
                if told["status"] in {"over", "failed"}:
                    playing.discard(told["board"])
            elif told.get("type") == "error":
                say((str(told.get("message")), "red"))
                is_sent = False
            elif told.get("type") == "confirm":
                say(f"{told['label']}? give it once more")
                is_sent = False
            elif "agent" in told:  # a move was accepted
                if self._wanted and self._wanted[0][0] == told["agent"]:
                    self._wanted.popleft()
                is_sent = False
            if self._wanted and not is_sent:
                if told.get("type") in {"board", "accepted"}:
                    self._offer(*self._wanted[0])
                if not self._move():
                    return
                is_sent = True

    def _follow(self, told: dict[str, Any]) -> None:
        """Note the moves that a board waits for, and have it go on."""
        board = told["board"]
        if board not in self._people or told["status"] == "failure":
            return
        self._wanted = deque(each for each in self._wanted if each[1]["board"] != board)
        if told["status"] == "waiting_for_human":
            self._wanted += [(agent, told) for agent in told["waiting"]]
        elif told["status"] == "step":
            self._talk.ask(cmd="step", boards=[board])

    @staticmethod
    def _offer(agent: str, told: dict[str, Any]) -> None:
        turn = told["turns"][agent]
        legal = turn.get("legal_moves")
        say((f"{agent} sees ", "bright_black"), plain(str(turn.get("observation")))[:300])
        if legal is None:
            say("a move is a list of numbers, such as [0.5]")
            return
        shown = [f"{each['action']} {each['label']}" for each in legal[:_MOST_MOVES]]
        more = f" … and {len(legal) - _MOST_MOVES} more" if len(legal) > _MOST_MOVES else ""
        say("legal: ", (" · ".join(shown) + more, "bold"))

    def _move(self) -> bool:
        """Read a move and send it; False if the player leaves."""
        try:
            text = input("move> ").strip()
        except EOFError:
            return False
        if text in _QUIT:
            return False
        from mosaic_services.specs import load_yaml  # noqa: PLC0415 - start-up time

        agent, told = self._wanted[0]
        action = load_yaml(text) if text.startswith("[") else text
        self._talk.ask(cmd="human_input", action=action, agent=agent, board=told["board"])
        return True


def _line(told: dict[str, Any]) -> str:
    """One line about a board."""
    parts = [f"{told['board']}: {told['status']}"]
    if "step" in told or "length" in told:
        parts.append(f"step {told.get('step', told.get('length'))}")
    parts += [f"{agent} plays {plain(str(moved.get('label')))}" for agent, moved in (told.get("moved") or {}).items()]
    if told.get("returns"):
        parts.append("return " + ", ".join(f"{agent} {number(value)}" for agent, value in told["returns"].items()))
    if told.get("ended"):
        parts.append(f"ended: {told['ended']}")
    if told.get("winners"):
        parts.append(f"won by {', '.join(told['winners'])}")
    if told.get("message"):
        parts.append(plain(str(told["message"])))
    return "   ".join(parts)
