"""Checkpoints of other runs that a config names: `run:train@best`."""

from __future__ import annotations

import pytest
from scheduler_story import Story, attempt, host

from mosaic_bus.commands import Cancel, NewRun, PauseQueue, Place, Rerun, SavedCheckpoint, SubmitMany
from mosaic_bus.errors import CommandRefusedError
from mosaic_bus.messages import FailureCategory, RunSpec, RunStateName
from mosaic_services.checkpoint_references import parse
from mosaic_services.scheduler import events
from mosaic_services.scheduler import instructions as todo
from mosaic_services.scheduler.references import SETTLE_S

PATH = {"anyOf": [{"type": "string", "format": "absolute-path"}, {"type": "null"}]}
SCHEMA = {
    "type": "object",
    "additionalProperties": False,
    "properties": {
        "model": PATH,
        "note": {"type": "string"},
        "extras": {"properties": {"stages": {"items": {"properties": {"path": PATH}}}}},
    },
}


@pytest.fixture
def story():
    made = Story()
    made.feed(events.HostReported, host(cpus=8))
    made.describe(SCHEMA)
    made.train = made.submit(name="train")
    return made


def saved(step, attempt=1, *, host="local", best=False):
    return SavedCheckpoint(attempt=attempt, host=host, path=f"checkpoints/{step}.pt", step=step, best=best)


def tell(story, *checkpoints, stored=0, problem="", run=None):
    story.feed(events.CheckpointsKnown, run or story.train, checkpoints, stored, problem)


def end(story, run, code=0):
    story.feed(events.HostReported, host(attempt(run, "ended", code=code), cpus=8))


def inputs(story, run):
    """Fields and steps of the checkpoints in the last offer of a run."""
    (offer,) = [each for each in story.sent(Place) if each.run == run]
    return [(each.field, each.step) for each in offer.inputs]


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("run:train", ("train", "last")),
        ("run:train@last", ("train", "last")),
        ("run:01K@best", ("01K", "best")),
        ("run:a b/c@0040", ("a b/c", "40")),
        ("run:me@home@best", ("me@home", "best")),
        ("run:", None),
        ("run:@last", None),
        ("run:  @last", None),
        ("run:train@", None),
        ("run:train@newest", None),
        ("run:train@-1", None),
        ("run:train@1.5", None),
        (f"run:train@{'9' * 40}", None),
    ],
)
def test_a_reference_names_a_run_and_which_of_its_checkpoints(text, parsed):
    assert parse(text) == parsed


@pytest.mark.parametrize(
    ("reference", "step"), [("run:train", 80), ("run:train@last", 80), ("run:train@best", 40), ("run:train@20", 20)]
)
def test_a_run_starts_once_the_checkpoint_that_it_names_is_there(story, reference, step):
    run = story.submit(config={"model": reference})
    assert story.said(todo.FetchCheckpoints) == [todo.FetchCheckpoints(story.train)]
    assert story.state(run).state is RunStateName.QUEUED
    assert f"of train ({story.train[-6:]}, starting)" in story.state(run).reason
    tell(story)
    assert story.state(run).state is RunStateName.QUEUED, "it has saved nothing yet"
    tell(story, saved(20), saved(40, best=True), saved(80))
    assert inputs(story, run) == [(("model",), step)]
    (decided,) = [each.reason for each in story.decisions if each.event == "resolved"]
    assert decided in story.why(run).facts
    assert f"checkpoints/{step}.pt" in decided


def test_the_newest_attempt_counts_and_a_retry_reads_the_same_checkpoint(story):
    run = story.submit(config={"model": "run:train"}, retries={"max": 1, "on": ["application"], "delay_s": 0})
    tell(story, saved(80), saved(40, attempt=2))
    assert inputs(story, run) == [(("model",), 40)]
    story.feed(events.HostReported, host(attempt(run, "ended", code=1, category="application"), cpus=8))
    story.pass_time(1, host(cpus=8))
    assert inputs(story, run) == [(("model",), 40)]
    assert not story.said(todo.FetchCheckpoints)


def test_references_deep_in_a_config_are_found_and_other_texts_are_left_alone(story):
    config = {"note": "run:fast", "extras": {"stages": [{"path": "/a"}, {"path": "run:train@20"}]}, "model": None}
    run = story.submit(config=config)
    tell(story, saved(20))
    assert inputs(story, run) == [(("extras", "stages", 1, "path"), 20)]


@pytest.mark.parametrize(
    ("reference", "code", "field"),
    [
        ("run:nobody", "unknown_run", "config.model"),
        ("run:train@newest", "invalid_config", "config"),
        ("run:", "invalid_config", "config"),
    ],
)
def test_an_unknown_run_or_a_malformed_reference_is_refused(story, reference, code, field):
    story.submit(config={"model": reference})
    assert isinstance(story.answer, CommandRefusedError)
    assert story.answer.code == code
    assert story.answer.details.field == field
    assert "config.model" in story.answer.message


def test_before_a_worker_is_described_every_such_text_counts_and_later_only_paths(story):
    other = Story()
    train = other.submit(name="train")
    run = other.submit(config={"note": "run:train"})
    assert "waits for the last checkpoint of train" in other.state(run).reason
    other.submit(config={"note": "run:nobody"})
    assert other.answer.code == "unknown_run"
    other.feed(events.HostReported, host(cpus=8))
    other.describe(SCHEMA)
    assert [each.run for each in other.sent(Place)] == [run], "a note is no path"
    assert other.state(train).host == "local"


def test_a_reference_that_is_dropped_does_not_count_as_found():
    story = Story()
    first, second = story.submit(name="first"), story.submit(name="second")
    run = story.submit(config={"note": "run:first", "model": "run:second"})
    tell(story, saved(20), run=first)
    story.feed(events.HostReported, host(cpus=8))
    story.describe(SCHEMA)
    tell(story, run=second)
    assert story.state(run).state is RunStateName.QUEUED
    tell(story, saved(40), run=second)
    assert inputs(story, run) == [(("model",), 40)]


def test_a_note_with_the_text_of_a_reference_is_no_reference(story):
    run = story.submit(config={"note": "run:train", "model": "run:train"})
    tell(story, saved(20))
    assert inputs(story, run) == [(("model",), 20)]


def test_a_run_that_ended_without_such_a_checkpoint_fails_those_that_want_it(story):
    run = story.submit(config={"model": "run:train@best"})
    end(story, story.train)
    tell(story, saved(20), saved(40), stored=0)
    assert not story.state(run).state.final, "its journal is not stored whole"
    tell(story, saved(20), saved(40), stored=1)
    state = story.state(run)
    assert (state.state, state.category) == (RunStateName.FAILED, FailureCategory.CONFIGURATION)
    assert "step 20, step 40" in state.reason


def test_of_a_run_that_never_began_nothing_is_waited_for(story):
    story.ask(PauseQueue(paused=True))
    source = story.submit(name="queued")
    run = story.submit(config={"model": "run:queued"})
    story.ask(Cancel(run=source))
    tell(story, run=source)
    assert (story.state(run).state, story.state(run).category) == (RunStateName.FAILED, FailureCategory.CONFIGURATION)


def test_a_journal_that_is_never_stored_whole_is_not_waited_for_without_end(story):
    run = story.submit(config={"model": "run:train"})
    end(story, story.train)
    tell(story, saved(20))
    story.pass_time(SETTLE_S + 1, host(cpus=8))
    tell(story, saved(20))
    assert inputs(story, run) == [(("model",), 20)]


def test_after_and_the_last_checkpoint_give_the_one_saved_last(story):
    run = story.submit(config={"model": "run:train"}, after=("train",))
    assert not story.said(todo.FetchCheckpoints), "it waits for the run first"
    end(story, story.train)
    assert story.said(todo.FetchCheckpoints)
    tell(story, saved(20), stored=0)
    assert story.state(run).state is RunStateName.QUEUED
    tell(story, saved(20), saved(40), stored=1)
    assert inputs(story, run) == [(("model",), 40)]


def test_telemetry_that_does_not_answer_is_asked_again_and_named(story):
    run = story.submit(config={"model": "run:train"})
    tell(story, problem="telemetry did not answer")
    assert "telemetry does not answer" in story.state(run).reason
    story.pass_time(11, host(attempt(story.train), cpus=8))
    assert 8 <= len(story.said(todo.FetchCheckpoints)) <= 11
    tell(story, saved(20))
    assert story.state(run).host == "local"
    story.pass_time(11, host(attempt(story.train), cpus=8))
    assert not story.said(todo.FetchCheckpoints), "nobody wants to know any more"


def test_a_run_goes_to_the_host_where_its_checkpoint_is_and_waits_for_it(story):
    story.feed(events.HostReported, host(name="far", cpus=1))
    run = story.submit(cpus=8, config={"model": "run:train"})
    tell(story, saved(20, host="far"))
    assert story.state(run).reason == "waits for 8 cpus: far has 1 of 1 free"
    small = story.submit(config={"model": "run:train"})
    tell(story, saved(20, host="far"))
    assert story.state(small).host == "far"
    gone = story.submit(config={"model": "run:train"})
    tell(story, saved(20, host="gone"))
    assert "no host has worker w, and is gone, where its checkpoint is" in story.state(gone).reason


def test_checkpoints_on_different_hosts_cannot_be_read_by_one_run(story):
    config = {"model": "run:train@20", "extras": {"stages": [{"path": "run:train@40"}]}}
    run = story.submit(config=config)
    tell(story, saved(20), saved(40, host="other"))
    assert (story.state(run).state, story.state(run).category) == (RunStateName.FAILED, FailureCategory.CONFIGURATION)


def test_a_restarted_scheduler_goes_on_waiting_and_keeps_what_it_found(story):
    saves = list(story.out)
    waiting = story.submit(config={"model": "run:train@40"})
    saves += story.out
    found = story.submit(config={"model": "run:train@20"})
    saves += story.out
    tell(story, saved(20))
    saves += story.out
    story.restart(saves)
    assert story.machine.ledger.runs[found].inputs[0].step == 20
    story.pass_time(1, host(cpus=8))
    assert todo.FetchCheckpoints(story.train) in story.said(todo.FetchCheckpoints)
    tell(story, saved(20), saved(40))
    assert inputs(story, waiting) == [(("model",), 40)]


def test_runs_of_one_command_may_name_each_others_checkpoints_but_not_in_a_circle(story):
    a, b = story.new_id(), story.new_id()

    def many(first, second):
        return SubmitMany(runs=[NewRun(run=a, spec=first), NewRun(run=b, spec=second)])

    circle = [RunSpec(worker="w", name=me, config={"model": f"run:{other}"}) for me, other in ("xy", "yx")]
    assert story.ask(many(*circle)).code == "circular_after"
    story.ask(many(RunSpec(worker="w", name="x"), circle[1]))
    tell(story, saved(20), run=a)
    assert inputs(story, b) == [(("model",), 20)]


def test_a_repetition_reads_the_checkpoint_of_the_repetition(story):
    runs = [
        NewRun(run=story.new_id(), spec=RunSpec(worker="w", name="first", group="g")),
        NewRun(run=story.new_id(), spec=RunSpec(worker="w", group="g", config={"model": "run:first@20"})),
    ]
    story.ask(SubmitMany(runs=runs))
    end(story, runs[0].run, code=1)
    tell(story, stored=1, run=runs[0].run)
    assert story.state(runs[1].run).state is RunStateName.FAILED
    again = [each.run for each in story.ask(Rerun(group="g")).runs]
    assert story.machine.ledger.runs[again[1]].references[0].run == again[0]


def test_what_waited_for_a_run_that_could_not_be_saved_is_cancelled(story):
    run = story.submit(config={"model": "run:train"})
    story.feed(events.Withdrawn, story.train)
    assert story.state(run).state is RunStateName.CANCELLED
    story.pass_time(5, host(cpus=8))


def test_a_file_that_is_gone_fails_the_run_by_its_configuration(story):
    run = story.submit(config={"model": "run:train"})
    tell(story, saved(20))
    story.refuse(run, "missing_file", "config.model: the checkpoint is gone")
    assert (story.state(run).state, story.state(run).category) == (RunStateName.FAILED, FailureCategory.CONFIGURATION)
