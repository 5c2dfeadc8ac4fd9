"""The experiment's state machine, in generated orders of events: no episode is lost, doubled or waited for in vain."""

from __future__ import annotations

import itertools
import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from mosaic_bus.messages import ExperimentStateName, FailureCategory, RunState, RunStateName, RunSummary
from mosaic_services.experiments.model import Experiment
from mosaic_services.experiments.plan import make_plan, wanted_at_first
from mosaic_services.experiments.records import Records
from mosaic_services.operator import events
from mosaic_services.operator import instructions as todo
from mosaic_services.operator.looking import Decision
from mosaic_services.operator.machine import MOST_FRUITLESS, SETTLE_S, ExperimentMachine
from mosaic_services.operator.progress import Progress

if TYPE_CHECKING:
    from mosaic_bus.messages import RunSpec

OPERATORS = {name: {"worker": "baseline"} for name in ("a", "b", "bad")}


def line(lineup: str, episode: int, **more: Any) -> str:
    found = {"lineup": lineup, "episode": episode, "returns": {"agent": episode}, "ended": "terminated", **more}
    return json.dumps({"event": "episode", **found})


class World:
    """A scheduler, telemetry and a disk: runs that play, are lost or fail; a service that can be killed."""

    def __init__(
        self, *, shards: int = 3, episodes: int = 12, operators: tuple[str, ...] = ("a", "b"), **fields
    ) -> None:
        document = {
            "name": "trial",
            "environment": {"id": "X-v0"},
            "operators": {name: OPERATORS[name] for name in operators},
            "episodes": episodes,
            **fields,
        }
        self.plan = make_plan(Experiment.model_validate(document), {})
        self.ids = itertools.count(1)
        self.now = 1000.0
        self.specs: dict[str, RunSpec] = {}
        self.states: dict[str, RunState] = {}
        self.lines: dict[str, list[str]] = {}
        self.asked: list[todo.Collect] = []
        self.submitting: list[todo.Submit] = []
        # What is on disk.
        self.written: list[bytes] = []
        self.saved: dict[str, Any] = {}
        self.finished = 0
        # Why shards fail that play the lineup `bad`.
        self.fault = FailureCategory.CONFIGURATION
        wanted = wanted_at_first(self.plan, [each["name"] for each in self.plan["lineups"]])
        self.machine = self.make(Records(kept=[]), Progress(wanted=wanted, at_once=shards))
        self.carry_out(self.machine.begin(self.now))

    def make(self, records: Records, progress: Progress) -> ExperimentMachine:
        return ExperimentMachine(self.plan, records, progress, lambda: f"{next(self.ids):026}", self.decide)

    def decide(self, plan, wanted, records) -> Decision:
        cap = plan["until"]["cap"]
        further = {lineup: min(2 * count, cap) for lineup, count in wanted.items() if count < cap}
        return Decision("looked", further)

    def carry_out(self, decided: list[todo.Instruction]) -> None:
        for each in decided:
            match each:
                case todo.Append(lines=lines):
                    self.written += lines
                case todo.Save():
                    self.saved = self.machine.progress.model_dump(mode="json")
                case todo.Submit():
                    self.submitting.append(each)
                case todo.Collect():
                    self.asked.append(each)
                case todo.Cancel(run=run):
                    if run in self.states and not self.states[run].state.final:
                        self.end(run, RunStateName.CANCELLED)
                case todo.Finish():
                    self.finished += 1

    def feed(self, event: events.Event) -> None:
        self.carry_out(self.machine.handle(event))

    # ── what the others do ──────────────────────────────────────────────────────────────────────

    def accept(self, submit: todo.Submit) -> None:
        self.submitting.remove(submit)
        if submit.run not in self.specs:
            self.specs[submit.run] = submit.spec
            self.lines[submit.run] = []
            self.states[submit.run] = RunState(
                run=submit.run,
                name="shard",
                worker="arena",
                profile="default",
                state=RunStateName.RUNNING,
                reason="runs",
                attempt=1,
                submitted_at=0,
                changed_at=0,
            )
        self.feed(events.Acknowledged(self.now, submit.run))

    def left_of(self, run: str) -> list[str]:
        every = [
            line(piece["lineup"], episode)
            for piece in self.specs[run].config["play"]
            for episode in range(*piece["episodes"])
        ]
        return every[len(self.lines[run]) :]

    def play(self, run: str, count: int) -> None:
        for each in self.left_of(run)[:count]:
            if json.loads(each)["lineup"] == "bad":
                self.end(run, RunStateName.FAILED, self.fault)
                return
            self.lines[run].append(each)
        if not self.left_of(run):
            self.end(run, RunStateName.SUCCEEDED)

    def end(self, run: str, state: RunStateName, category: FailureCategory | None = None) -> None:
        self.states[run] = self.states[run].model_copy(update={"state": state, "category": category, "reason": "why"})

    def show(self, run: str) -> None:
        state = self.states[run]
        summary = RunSummary(run=run, attempt=1, events=len(self.lines[run]), complete=state.state.final)
        self.feed(events.RunSeen(self.now, state, summary))

    def answer(self, asked: todo.Collect) -> None:
        self.asked.remove(asked)
        lines = self.lines[asked.run][asked.start :]
        end = asked.start + len(lines)
        self.feed(events.Collected(self.now, asked.run, asked.attempt, tuple(lines), end, whole=asked.whole))

    def kill(self) -> None:
        """Kill the service and start it again with what is on disk. Its questions die with it."""
        self.asked.clear()
        self.submitting.clear()
        records = Records(kept=[])
        for each in self.written:
            records.add(json.loads(each), each)
        self.machine = self.make(records, Progress.model_validate(self.saved))
        self.carry_out(self.machine.resume())

    def settle(self) -> None:
        """Let everything happen, until nothing more does."""
        for _ in range(500):
            if self.machine.progress.state.final:
                return
            for submit in list(self.submitting):
                self.accept(submit)
            for run, state in list(self.states.items()):
                if not state.state.final:
                    self.play(run, 1000)
                self.show(run)
            for asked in list(self.asked):
                self.answer(asked)
        raise AssertionError(f"it does not end: {self.machine.render('', 0)}")

    def episodes(self) -> list[tuple[str, int]]:
        return sorted((json.loads(each)["lineup"], json.loads(each)["episode"]) for each in self.written)


def every(lineups: str | tuple[str, ...], count: int) -> list[tuple[str, int]]:
    return sorted((lineup, episode) for lineup in lineups for episode in range(count))


class Story(RuleBasedStateMachine):
    """Anything in any order."""

    @initialize(shards=st.integers(1, 5), bad=st.booleans())
    def begin(self, shards: int, bad: bool) -> None:
        self.bad = bad
        self.world = World(shards=shards, operators=("a", "b", "bad") if bad else ("a", "b"))
        self.lost = 0

    def choose(self, data: st.DataObject, among: list[Any]) -> Any:
        return data.draw(st.sampled_from(among)) if among else None

    @rule(data=st.data())
    def accept(self, data):
        if submit := self.choose(data, self.world.submitting):
            self.world.accept(submit)

    @rule(data=st.data(), count=st.integers(0, 10))
    def play(self, data, count):
        if run := self.choose(data, [run for run, state in self.world.states.items() if not state.state.final]):
            self.world.play(run, count)

    @rule(data=st.data(), kind=st.sampled_from([RunStateName.LOST, RunStateName.FAILED]))
    def lose(self, data, kind):
        alive = [run for run, state in self.world.states.items() if not state.state.final]
        if self.lost < MOST_FRUITLESS - 1 and (run := self.choose(data, alive)):
            self.lost += 1
            category = FailureCategory.INFRASTRUCTURE if kind is RunStateName.FAILED else None
            self.world.end(run, kind, category)

    @rule(data=st.data())
    def show(self, data):
        if run := self.choose(data, list(self.world.states)):
            self.world.show(run)

    @rule(data=st.data())
    def answer(self, data):
        if asked := self.choose(data, self.world.asked):
            self.world.answer(asked)

    @rule(seconds=st.sampled_from([1.0, SETTLE_S + 1]))
    def tick(self, seconds):
        self.world.now += seconds
        self.world.feed(events.Tick(self.world.now))

    @rule()
    def kill(self):
        self.world.kill()

    @invariant()
    def nothing_is_written_twice(self):
        found = self.world.episodes()
        assert len(found) == len(set(found))
        assert set(found) <= set(every(("a", "b", "bad"), 12))

    def teardown(self):
        if not hasattr(self, "world"):
            return
        self.world.settle()
        assert self.world.episodes() == every("ab", 12)
        expected = ExperimentStateName.FAILED if self.bad else ExperimentStateName.FINISHED
        assert self.world.machine.progress.state is expected
        assert set(self.world.machine.progress.given_up) == ({"bad"} if self.bad else set())


TestStories = Story.TestCase
TestStories.settings = settings(
    max_examples=60, stateful_step_count=30, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)


def test_experiment_that_is_done_starts_no_shard():
    world = World()
    world.settle()
    assert world.finished == 1
    again = ExperimentMachine(
        world.plan, world.machine.records, Progress(wanted={"a": 12, "b": 12}), lambda: "x", world.decide
    )
    assert [type(each) for each in again.begin(0.0)] == [todo.Save, todo.Finish]


def test_more_episodes_play_only_the_new_ones():
    world = World()
    world.settle()
    more = world.make(world.machine.records, Progress(wanted={"a": 15, "b": 12}))
    submits = [each for each in more.begin(0.0) if isinstance(each, todo.Submit)]
    assert [each.spec.config["play"] for each in submits] == [[{"lineup": "a", "episodes": [12, 15]}]]


def test_shard_that_is_lost_again_and_again_is_given_up_and_the_others_go_on():
    world = World(shards=2)
    first = world.submitting[0].run
    for _ in range(20):
        for submit in list(world.submitting):
            world.accept(submit)
            if submit.run == first or world.machine._shards[submit.run].fruitless:
                world.end(submit.run, RunStateName.LOST)
        for run in list(world.states):
            if not world.states[run].state.final:
                world.play(run, 100)
            world.show(run)
        for asked in list(world.asked):
            world.answer(asked)
    assert world.machine.progress.state is ExperimentStateName.FAILED
    assert "lost 5 times in a row" in world.machine.progress.reason
    assert len(world.episodes()) == 12


def test_shard_that_succeeded_without_a_stored_journal_is_played_again():
    world = World(shards=1, operators=("a",))
    world.accept(world.submitting[0])
    (run,) = world.states
    world.end(run, RunStateName.SUCCEEDED)
    unstored = RunSummary(run=run, attempt=1, events=0, complete=False)
    world.feed(events.RunSeen(world.now, world.states[run], unstored))
    world.now += SETTLE_S + 1
    world.feed(events.Tick(world.now))
    world.answer(world.asked[0])
    assert world.machine.progress.given_up == {}
    world.settle()
    assert world.machine.progress.state is ExperimentStateName.FINISHED
    assert world.machine.progress.lost == 1


def test_operator_that_dies_at_start_takes_no_lineup_of_its_shard_with_it():
    world = World(shards=1, operators=("bad", "a", "b"))
    world.fault = FailureCategory.INFRASTRUCTURE
    world.settle()
    assert world.episodes() == every("ab", 12)
    assert world.machine.progress.given_up == {"bad": "lost 5 times in a row, last: why"}


def test_stop_cancels_what_is_open_and_keeps_what_is_there():
    world = World()
    world.accept(world.submitting[0])
    run = next(iter(world.states))
    world.play(run, 2)
    world.feed(events.StopAsked(world.now, "enough"))
    for submit in list(world.submitting):
        world.submitting.remove(submit)
        world.feed(events.Refused(world.now, submit.run, "the experiment stops"))
    world.show(run)
    for asked in list(world.asked):
        world.answer(asked)
    assert world.machine.progress.state is ExperimentStateName.STOPPED
    assert len(world.episodes()) == 2


def test_budget_stops_the_experiment():
    world = World(budget={"wall_s": 60})
    world.now += 61
    world.feed(events.Tick(world.now))
    assert world.machine.progress.state is ExperimentStateName.STOPPING
    assert "budget of 60 s" in world.machine.progress.reason


@pytest.mark.parametrize(("budget", "said"), [({"episodes": 3}, "3 episodes"), ({"steps": 30}, "30 steps")])
def test_budget_of_episodes_and_steps_counts_what_is_recorded(budget, said):
    world = World(budget=budget, shards=1)
    world.accept(world.submitting[0])
    (run,) = world.states
    world.lines[run] = [line("a", episode, length=10) for episode in range(2)]
    world.show(run)
    world.answer(world.asked[0])
    assert world.machine.progress.state is ExperimentStateName.RUNNING
    world.lines[run].append(line("a", 2, length=10))
    world.show(run)
    world.answer(world.asked[0])
    assert world.machine.progress.state is ExperimentStateName.STOPPING
    assert f"budget of {said} is used up" in world.machine.progress.reason
    world.show(run)
    world.answer(world.asked[0])
    assert world.machine.progress.state is ExperimentStateName.STOPPED
    assert world.episodes() == every("a", 3)


def test_complete_experiment_is_not_stopped_by_its_budget_while_a_shard_ends():
    world = World(budget={"wall_s": 60, "episodes": 12}, shards=1, operators=("a",))
    world.accept(world.submitting[0])
    (run,) = world.states
    world.lines[run] = world.left_of(run)
    world.show(run)
    world.answer(world.asked[0])
    world.now += 61
    world.feed(events.Tick(world.now))
    assert world.machine.progress.state is ExperimentStateName.RUNNING
    world.end(run, RunStateName.SUCCEEDED)
    world.settle()
    assert world.machine.progress.state is ExperimentStateName.FINISHED


def test_stopping_rule_looks_only_when_every_episode_of_a_look_is_there():
    world = World(until={"decided": True, "cap": 200}, operators=("a",))
    looks: list[int] = []

    def decide(plan, wanted, records) -> Decision:
        looks.append(len(records))
        return Decision("", {"a": 2 * wanted["a"]} if wanted["a"] < 200 else {})

    world.machine._decide = decide
    world.settle()
    assert looks == [50, 100, 200]
    assert world.episodes() == every("a", 200)


def test_stopping_rule_goes_on_without_a_lineup_that_is_given_up():
    world = World(until={"decided": True, "cap": 200}, operators=("a", "b", "bad"))
    looks: list[dict[str, int]] = []

    def decide(plan, wanted, records) -> Decision:
        looks.append(dict(wanted))
        return Decision("looked", {name: 200 for name, count in wanted.items() if count < 200})

    world.machine._decide = decide
    world.settle()
    assert looks == [{"a": 50, "b": 50}, {"a": 200, "b": 200}]
    assert world.episodes() == every("ab", 200)
    assert world.machine.progress.state is ExperimentStateName.FAILED
    assert world.machine.progress.reason == "some episodes cannot be played: bad: why"


def test_stopping_rule_does_not_look_if_every_lineup_is_given_up():
    world = World(until={"decided": True, "cap": 200}, operators=("bad",))
    world.settle()
    assert world.machine.progress.state is ExperimentStateName.FAILED
    assert world.machine.progress.looks == []


def test_numerics_that_differ_fail_an_exact_experiment():
    world = World(exact=True, operators=("a",))
    world.machine.records.prints["a", "a"] = {"1", "2"}
    world.settle()
    assert world.machine.progress.state is ExperimentStateName.FAILED
    assert "different numbers: a" in world.machine.progress.reason


GAME = {"environment": {"id": "tictactoe_v3"}, "exact": True, "episodes": 4}


def play_games(world: World, prints: dict[str, dict[str, str]]) -> None:
    """Have each shard played on a host of its own, the second one in the reverse order."""
    for number, submit in enumerate(list(world.submitting)):
        world.accept(submit)
        world.states[submit.run] = world.states[submit.run].model_copy(update={"host": f"h{number}"})
        world.lines[submit.run] = [
            line(piece["lineup"], episode, numerics={"environment": "e", **prints[piece["lineup"]]})
            for piece in submit.spec.config["play"]
            for episode in range(*piece["episodes"])
        ][:: -1 if number else 1]
        world.end(submit.run, RunStateName.SUCCEEDED)
    world.settle()


def test_exact_game_whose_policies_swap_sides_finishes():
    """A policy's fingerprint is that of its answers to what its agent sees: each side has its own."""
    world = World(shards=2, **GAME)
    play_games(world, {"a-vs-b": {"a": "a1", "b": "b2"}, "b-vs-a": {"b": "b1", "a": "a2"}})
    assert world.machine.progress.excluded == {}
    assert world.machine.progress.state is ExperimentStateName.FINISHED
    assert world.machine.records.numerics["a"] == {"a1", "a2"}


def test_exact_game_with_two_fingerprints_of_one_side_fails():
    world = World(shards=1, operators=("a", "b", "bad"), swap_sides=False, **GAME)
    prints = {"a-vs-b": {"a": "a1", "b": "b2"}, "a-vs-bad": {"a": "odd", "bad": "x"}, "b-vs-bad": {"b": "b1"}}
    play_games(world, prints)
    assert world.machine.progress.state is ExperimentStateName.FAILED
    assert world.machine.progress.reason == "hosts compute different numbers: a"


def place(world: World, hosts: dict[str, str]) -> None:
    """Give each new shard the next host that its spec allows, and let it compute as that host does."""
    for submit in list(world.submitting):
        world.accept(submit)
        refused = {tag.removeprefix("!host:") for tag in submit.spec.requires}
        allowed = [name for name in hosts if name not in refused]
        host = allowed[(len(world.states) - 1) % len(allowed)]
        world.states[submit.run] = world.states[submit.run].model_copy(update={"host": host})
        plays = submit.spec.config["play"]
        world.lines[submit.run] = [
            line(piece["lineup"], episode, numerics={piece["lineup"]: hosts[host]})
            for piece in plays
            for episode in range(*piece["episodes"])
        ]


@pytest.mark.parametrize("killed", [False, True])
def test_exact_experiment_leaves_a_host_that_computes_other_numbers(killed):
    hosts = {"good": "1", "odd": "2", "fine": "1"}
    world = World(exact=True, shards=2, episodes=6)
    for _ in range(20):
        place(world, hosts)
        if killed and world.machine.progress.excluded:
            world.kill()
            killed = False
            place(world, hosts)
        for run, state in list(world.states.items()):
            if not state.state.final and world.lines[run]:
                world.end(run, RunStateName.SUCCEEDED)
            world.show(run)
        for asked in list(world.asked):
            world.answer(asked)
    assert world.machine.progress.state is ExperimentStateName.FINISHED
    assert world.episodes() == every(("a", "b"), 6)
    assert {json.loads(each)["numerics"][json.loads(each)["lineup"]] for each in world.written} == {"1"}
    assert set(world.machine.progress.excluded) == {"odd"}
    assert "computes other numbers" in world.machine.render("", 0).notes[0]


@pytest.mark.parametrize("progress", [True, False])
def test_cancelled_shard_ends_the_experiment_without_its_episodes(progress):
    world = World(shards=1)
    world.accept(world.submitting[0])
    (run,) = world.states
    world.play(run, 3 if progress else 0)
    world.end(run, RunStateName.CANCELLED)
    world.settle()
    assert world.machine.progress.state is ExperimentStateName.FAILED
    assert set(world.machine.progress.given_up) == {"a", "b"}
