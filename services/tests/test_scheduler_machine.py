"""The scheduler's decisions as sequences of events and instructions."""

from __future__ import annotations

import pytest
from scheduler_story import Story, attempt, host

from mosaic_bus.commands import Cancel, Describe, Forget, PauseQueue, Place, Stop, Submit
from mosaic_bus.messages import (
    FailureCategory,
    RunSpec,
    RunStateName,
)
from mosaic_services.scheduler import events
from mosaic_services.scheduler import instructions as todo

SCHEMA = {
    "type": "object",
    "additionalProperties": False,
    "required": ["run_id", "episodes"],
    "properties": {"run_id": {"type": "string"}, "episodes": {"type": "integer", "minimum": 1}},
}


@pytest.fixture
def story():
    return Story()


def test_a_run_goes_through_its_life(story):
    story.feed(events.HostReported, host())
    run = story.submit()
    assert story.state(run).state is RunStateName.STARTING
    assert story.offers() == [("local", 1)]
    for phase in ("preparing", "starting", "running"):
        story.feed(events.HostReported, host(attempt(run, phase)))
        assert story.state(run).state.value == phase
    story.feed(events.HostReported, host(attempt(run, "ended", code=0, started_at=2e9 - 131)))
    state = story.state(run)
    assert (state.state, state.reason, state.exit_code) == (RunStateName.SUCCEEDED, "exit 0 after 00:02:11", 0)
    assert story.said(todo.Send) == [todo.Send("local", Forget(run=run, attempt=1))]


def test_every_wait_says_what_is_missing_and_where(story):
    early = story.submit()
    assert story.state(early).reason == "no host has reported yet"
    story.feed(events.HostReported, host(attempt("stranger", cpus=1.5)))
    late = story.submit(cpus=2.0)
    assert story.state(late).reason == "waits for 2 cpus: local has 0.5 of 2 free"
    assert story.state(early).reason == "waits for 1 cpu: local has 0.5 of 2 free"
    big = story.submit(memory_mb=7500)
    assert story.state(big).reason == "waits for 1 cpu and 7500 MB: local has 0.5 of 2 cpus and 6976 of 8000 MB free"


def test_first_come_first_served_and_a_smaller_run_may_pass(story):
    story.feed(events.HostReported, host())
    first, second = story.submit(cpus=2.0), story.submit(cpus=2.0)
    third = story.submit(cpus=2.0)
    assert story.state(second).state is story.state(third).state is RunStateName.QUEUED
    story.feed(events.HostReported, host(attempt(first, "ended", code=0)))
    assert story.state(second).state is RunStateName.STARTING
    assert story.state(third).state is RunStateName.QUEUED


def test_an_attempt_counts_once_whether_reported_or_not(story):
    story.feed(events.HostReported, host())
    one, two, three = story.submit(), story.submit(), story.submit()
    assert story.state(three).state is RunStateName.QUEUED
    story.feed(events.HostReported, host(attempt(one)))
    assert story.state(three).state is RunStateName.QUEUED
    story.feed(events.HostReported, host(attempt(one), attempt(two)))
    assert story.state(three).state is RunStateName.QUEUED


def test_an_installed_environment_is_preferred_to_one_that_must_be_built(story):
    story.feed(events.HostReported, host(name="a", status="available"))
    story.feed(events.HostReported, host(name="b"))
    runs = [story.submit() for _ in range(3)]
    states = [story.state(run) for run in runs]
    assert [state.host for state in states] == ["b", "b", "a"]
    assert states[2].state is RunStateName.PREPARING


def test_place_is_repeated_until_a_report_shows_the_attempt(story):
    story.feed(events.HostReported, host())
    run = story.submit()
    story.pass_time(6, host())
    assert len(story.sent(Place)) == 3
    story.feed(events.HostReported, host(attempt(run, "preparing")))
    story.pass_time(6, host(attempt(run, "preparing")))
    assert not story.sent(Place)


def test_cancel_before_the_placement_arrived_leaks_nothing(story):
    story.feed(events.HostReported, host())
    run = story.submit()
    story.ask(Cancel(run=run, reason="enough"))
    assert story.state(run).state is RunStateName.STOPPING
    assert story.sent(Stop)
    story.feed(events.Answered, "local", Stop(run=run, attempt=1, reason="enough"))
    story.pass_time(4, host())
    assert not story.sent(Place)
    assert story.state(run).state is RunStateName.STOPPING, "the placement may still be on its way"
    story.pass_time(3, host())
    assert story.state(run).state is RunStateName.CANCELLED
    # The placement was still in transit and arrives now.
    story.feed(events.HostReported, host(attempt(run, "starting")))
    assert story.sent(Stop)
    story.now += 3
    story.feed(events.HostReported, host(attempt(run, "ended", code=143, stopped=True)))
    assert story.sent(Forget)
    assert story.state(run).state is RunStateName.CANCELLED


def test_cancel_of_a_running_run_waits_for_its_host(story):
    story.feed(events.HostReported, host())
    run = story.submit()
    story.feed(events.HostReported, host(attempt(run)))
    story.ask(Cancel(run=run[-4:], reason="enough"))
    story.pass_time(6, host(attempt(run, "stopping")))
    assert len(story.sent(Stop)) >= 2
    assert story.state(run).state is RunStateName.STOPPING
    story.feed(events.HostReported, host(attempt(run, "ended", code=143, stopped=True)))
    assert (story.state(run).state, story.state(run).reason) == (RunStateName.CANCELLED, "enough")
    story.ask(Cancel(run=run, reason="again"))
    assert story.answer.code == "already_final"


def test_a_failure_keeps_its_category_code_and_last_lines(story):
    story.feed(events.HostReported, host())
    run = story.submit()
    ended = attempt(run, "ended", code=1, category="application", reason="loss is NaN", last_lines=["a", "b"])
    story.feed(events.HostReported, host(ended))
    state = story.state(run)
    assert state.state is RunStateName.FAILED
    assert (state.category, state.exit_code, state.reason) == (FailureCategory.APPLICATION, 1, "loss is NaN")
    assert state.detail == "a\nb"


@pytest.mark.parametrize(
    ("code", "category"),
    [
        ("unknown_worker", "configuration"),
        ("unknown_profile", "configuration"),
        ("unusable_environment", "infrastructure"),
        ("internal", "infrastructure"),
    ],
)
def test_a_refused_placement_fails_the_run(story, code, category):
    story.feed(events.HostReported, host())
    run = story.submit()
    story.refuse(run, code, "no such thing")
    state = story.state(run)
    assert (state.state, state.category) == (RunStateName.FAILED, category)
    assert "no such thing" in state.reason


def test_an_attempt_that_vanishes_fails_as_infrastructure(story):
    story.feed(events.HostReported, host())
    run = story.submit()
    story.feed(events.HostReported, host(attempt(run)))
    story.pass_time(9, host())
    assert story.state(run).state is RunStateName.RUNNING
    story.pass_time(3, host())
    state = story.state(run)
    assert (state.state, state.category) == (RunStateName.FAILED, FailureCategory.INFRASTRUCTURE)
    assert state.reason == "host local no longer knows this attempt"


def test_a_silent_host_is_named_then_its_runs_are_lost(story):
    story.feed(events.HostReported, host())
    run = story.submit()
    story.feed(events.HostReported, host(attempt(run)))
    story.pass_time(12)
    assert story.state(run).state is RunStateName.RUNNING
    assert story.state(run).reason.startswith("host local silent for 12 s")
    waiting = story.submit()
    assert "local is silent" in story.state(waiting).reason
    story.pass_time(290)
    assert story.state(run).state is RunStateName.LOST
    story.feed(events.HostReported, host(attempt(run)))
    assert story.sent(Stop), "what was given up must not go on"
    assert story.state(run).state is RunStateName.LOST


def test_silence_is_not_counted_while_the_bus_is_away_or_we_slept(story):
    story.feed(events.HostReported, host())
    run = story.submit()
    story.feed(events.HostReported, host(attempt(run)))
    for _ in range(1000):
        story.now += 0.5
        story.feed(events.Tick, True)
    story.now += 3600
    story.feed(events.Tick)
    assert story.state(run).state is RunStateName.RUNNING
    assert not story.machine.ledger.hosts["local"].silent


def test_attempts_nobody_knows_are_stopped_and_forgotten(story):
    story.feed(events.HostReported, host(attempt("stranger"), attempt("ghost", "ended", code=0)))
    assert [each.run for each in story.sent(Stop)] == ["stranger"]
    assert [each.run for each in story.sent(Forget)] == ["ghost"]


def test_state_is_published_on_change_and_every_ten_seconds(story):
    run = story.submit()
    assert [each.state.run for each in story.said(todo.Publish)] == [run]
    story.pass_time(31)
    assert len(story.said(todo.Publish)) == 3
    story.ask(Cancel(run=run, reason="enough"))
    story.pass_time(31)
    assert not story.said(todo.Publish)


def test_a_description_that_comes_late_fails_queued_and_unstarted_runs_with_a_bad_config(story):
    story.feed(events.HostReported, host(status="available"))
    placed = story.submit(config={"episods": 3})
    queued = story.submit(cpus=2.0, config={"episodes": 0})
    good = story.submit(cpus=2.0, config={"episodes": 1})
    story.feed(events.HostReported, host(attempt(placed, "preparing")))
    assert story.said(todo.FetchDescription) == [todo.FetchDescription("local", Describe(worker="w"), "f")]
    story.describe(SCHEMA)
    assert story.state(placed).state is RunStateName.STOPPING
    state = story.state(queued)
    assert (state.state, state.category) == (RunStateName.FAILED, FailureCategory.CONFIGURATION)
    assert story.state(good).state is RunStateName.QUEUED
    story.feed(events.HostReported, host(attempt(placed, "ended", code=None, stopped=True)))
    state = story.state(placed)
    assert (state.state, state.category) == (RunStateName.FAILED, FailureCategory.CONFIGURATION)
    assert "config.episods: unknown field; did you mean episodes?" in state.reason


def test_a_run_that_a_late_description_has_ended_stays_as_it_ended(story):
    story.ask(PauseQueue(paused=True, reason=""))
    first = story.submit(config={"unknown": 1})
    second = story.submit(config={"unknown": 1}, after=(first,))
    third = story.submit(config={"unknown": 1}, after=(second,))
    story.feed(events.HostReported, host())
    story.describe(SCHEMA)
    told = [(each.state.run, each.state.state.value) for each in story.said(todo.Publish) if each.state.state.final]
    assert len(told) == 3, "each has ended once"
    assert dict(told) == {first: "failed", second: "failed", third: "cancelled"}


def test_a_description_is_asked_for_again_until_it_is_known(story):
    story.feed(events.HostReported, host())
    story.pass_time(11, host())
    assert len(story.said(todo.FetchDescription)) == 1
    story.describe(SCHEMA)
    story.pass_time(21, host())
    assert not story.said(todo.FetchDescription)
    story.feed(events.HostReported, host(fingerprint="g"))
    assert story.said(todo.FetchDescription) == [todo.FetchDescription("local", Describe(worker="w"), "g")]


def test_a_misplaced_field_is_moved_at_submit_or_once_the_worker_is_described(story):
    params = {"type": "object", "properties": {"lr": {"type": "number"}}}
    schema = {"additionalProperties": False, "properties": {"params": params}}
    story.ask(PauseQueue(paused=True, reason=""))
    story.feed(events.HostReported, host())
    early = story.submit(config={"lr": 0.1})
    story.describe(schema)
    late = story.submit(config={"lr": 0.1})
    assert story.answer.warnings == ["config.lr belongs in config.params.lr: it was moved there"]
    for run in (early, late):
        assert story.machine.ledger.runs[run].spec.config == {"params": {"lr": 0.1}}
        assert any("it was moved there" in each.reason for each in story.decisions if each.run == run)
        again = story.ask(Submit(run=run, spec=RunSpec(worker="w", config={"lr": 0.1})))
        assert again.run == run, "the same submission"
        other = story.ask(Submit(run=run, spec=RunSpec(worker="w", config={"lr": 0.2})))
        assert other.code == "id_reused"


def test_the_same_submission_twice_is_one_run_and_another_spec_is_refused(story):
    run = story.submit(config={"seed": 1})
    first = story.answer
    assert story.ask(Submit(run=run, spec=RunSpec(worker="w", config={"seed": 1}))) == first
    assert not story.said(todo.SaveRun)
    story.ask(Submit(run=run, spec=RunSpec(worker="w", config={"seed": 2})))
    assert story.answer.code == "id_reused"
    assert len(story.machine.ledger.runs) == 1


def test_a_withdrawn_submission_leaves_no_trace(story):
    story.feed(events.HostReported, host(cpus=1.0))
    run = story.submit()
    story.feed(events.Withdrawn, run)
    other = story.submit()
    assert run not in story.machine.ledger.runs
    assert story.state(other).state is RunStateName.STARTING


def test_equal_reasons_are_recorded_once(story):
    story.submit()
    story.pass_time(60)
    assert not story.said(todo.RecordDecision)


def test_the_host_says_whose_fault_a_failure_is(story):
    story.feed(events.HostReported, host())
    runs = [story.submit(), story.submit()]
    untold = attempt(runs[0], "ended", code=2)
    told = attempt(runs[1], "ended", code=0, category="infrastructure", reason="its output is lost")
    story.feed(events.HostReported, host(untold, told))
    states = [story.state(run) for run in runs]
    assert [state.state for state in states] == [RunStateName.FAILED] * 2
    assert [state.category for state in states] == [FailureCategory.INFRASTRUCTURE] * 2


# ── hosts that cannot take a run now ────────────────────────────────────────────────────────────────


def test_nothing_is_placed_on_a_host_that_is_about_to_end(story):
    story.feed(events.HostReported, host(draining=True, instance="1"))
    run = story.submit()
    assert story.state(run).state is RunStateName.QUEUED
    assert story.state(run).reason == "local is about to end"
    story.feed(events.HostReported, host(instance="2"))
    assert story.state(run).state is RunStateName.STARTING


@pytest.mark.parametrize("code", ["stopping", "host_unavailable"])
def test_what_a_host_cannot_take_now_goes_back_to_the_queue(story, code):
    story.feed(events.HostReported, host())
    run = story.submit()
    story.refuse(run, code)
    state = story.state(run)
    assert (state.state, state.attempt, state.host) == (RunStateName.QUEUED, 0, None)
    assert state.reason == "local could not take it: disk full; tries again in 5 s"
    assert [each.attempt.outcome for each in story.said(todo.SaveAttempt)] == ["refused"]
    story.pass_time(4.5, host())
    assert not story.sent(Place)
    story.pass_time(2, host())
    assert [each.attempt for each in story.sent(Place)] == [1]
    (record,) = story.machine.ledger.runs[run].attempts
    assert (record.number, record.outcome) == (1, "")


def refused_after(story, run):
    """Refuse each of six offers; return the seconds until the next one."""
    waits = []
    for _ in range(6):
        story.refuse(run, "host_unavailable")
        since = story.now
        while not story.pass_time(1, host()) or not story.sent(Place):
            assert story.now - since < 100, "stuck"
        waits.append(round(story.now - since))
    return waits


def test_a_host_that_cannot_take_runs_is_asked_ever_less_often_until_it_takes_one(story):
    story.feed(events.HostReported, host())
    run = story.submit()
    waits = refused_after(story, run)
    assert all(low <= wait <= low + 2 for wait, low in zip(waits, [5, 10, 20, 40, 60, 60], strict=True)), waits
    story.feed(events.Answered, "local", Place.model_construct(run=run, attempt=1))
    story.feed(events.HostReported, host(attempt(run)))
    other = story.submit()
    story.refuse(other, "host_unavailable")
    assert story.state(other).reason.endswith("tries again in 5 s")


def test_refusals_of_offers_made_together_count_once(story):
    story.feed(events.HostReported, host(cpus=4.0))
    runs = [story.submit() for _ in range(4)]
    for run in runs:
        story.refuse(run, "host_unavailable")
    assert {story.state(run).reason for run in runs} == {"local could not take it: disk full; tries again in 5 s"}


def test_a_full_disk_fails_no_run_and_keeps_the_order(story):
    story.feed(events.HostReported, host())
    runs = [story.submit() for _ in range(6)]
    for run in reversed(runs[:2]):
        story.refuse(run, "host_unavailable")
    assert {story.state(run).state for run in runs} == {RunStateName.QUEUED}
    story.pass_time(8, host())
    assert list(dict.fromkeys(each.run for each in story.sent(Place))) == runs[:2]
    assert {story.state(run).state for run in runs[2:]} == {RunStateName.QUEUED}


def test_another_host_takes_what_one_refused_once_it_is_sure_that_the_first_has_not_got_it(story):
    story.feed(events.HostReported, host(name="a"))
    run = story.submit()
    story.feed(events.HostReported, host(name="b"))
    story.refuse(run, "host_unavailable", "disk full", host="a")
    assert not story.sent(Place)
    story.pass_time(7, host(name="a", cpus=0.5), host(name="b"))
    assert set(story.offers()) == {("b", 1)}


def test_a_host_that_ends_and_has_not_got_it_releases_a_run_at_once(story):
    story.feed(events.HostReported, host(name="a"))
    run = story.submit()
    story.feed(events.HostReported, host(name="b"))
    story.refuse(run, "stopping", "it is about to end", host="a")
    story.feed(events.HostReported, host(name="a", draining=True))
    assert story.offers() == [("b", 1)]


def test_a_host_that_refused_a_run_and_has_it_after_all_keeps_it(story):
    story.feed(events.HostReported, host(name="a"))
    run = story.submit()
    story.feed(events.HostReported, host(name="b"))
    story.refuse(run, "stopping", "it is about to end", host="a")
    story.feed(events.HostReported, host(attempt(run), name="a", draining=True))
    assert not story.sent(Place)
    assert not story.sent(Stop)
    state = story.state(run)
    assert (state.state, state.host, state.attempt) == (RunStateName.RUNNING, "a", 1)


def test_a_refused_run_goes_elsewhere_under_a_new_number_if_the_host_stays_silent(story):
    story.feed(events.HostReported, host(name="a"))
    run = story.submit(retries={"max": 1, "on": ["application"], "delay_s": 0})
    story.refuse(run, "host_unavailable", "disk full", host="a")
    story.pass_time(303, host(name="b"))
    assert set(story.offers()) == {("b", 2)}
    # An attempt that was not taken does not count.
    failed = {"code": 1, "category": "application", "started_at": 2e9 - 3600}
    story.feed(events.HostReported, host(attempt(run, "ended", number=2, **failed), name="b"))
    assert "attempt 3 of 3 starts from the beginning" in story.state(run).reason
    assert "attempt 1 on a not taken" in story.why(run).facts


def test_a_refused_run_can_be_cancelled_and_does_not_come_back(story):
    story.feed(events.HostReported, host())
    run = story.submit()
    story.refuse(run, "host_unavailable")
    story.ask(Cancel(run=run, reason="enough"))
    assert story.state(run).state is RunStateName.CANCELLED
    story.pass_time(20, host())
    assert not story.sent(Place)
    assert not story.machine.ledger.hosts["local"].unsettled


# ── two supervisors of one name ─────────────────────────────────────────────────────────────────────


def test_of_two_supervisors_of_one_name_the_first_is_listened_to_and_nothing_is_placed(story):
    story.feed(events.HostReported, host(instance="1"))
    run = story.submit()
    first, second = host(attempt(run), instance="1"), host(attempt(run, "ended", code=1), instance="2")
    story.pass_time(30, first, second)
    assert story.state(run).state is RunStateName.RUNNING
    known = story.machine.ledger.hosts["local"]
    assert known.conflict(story.now).startswith("two supervisors call themselves local: 1 is listened to, 2 is not")
    waiting = story.submit()
    assert "two supervisors call themselves local" in story.state(waiting).reason
    story.pass_time(7, first)
    assert not known.conflict(story.now)
    assert story.state(waiting).state is RunStateName.STARTING


def test_a_supervisor_that_started_again_takes_over_within_seconds(story):
    story.feed(events.HostReported, host(instance="1"))
    run = story.submit()
    story.feed(events.HostReported, host(attempt(run), instance="1"))
    story.pass_time(1)
    story.pass_time(4, host(attempt(run, "stopping"), instance="2"))
    assert story.state(run).state is RunStateName.STOPPING
    assert not story.machine.ledger.hosts["local"].conflict(story.now)


# ── schemas that are not what they should be ────────────────────────────────────────────────────────


@pytest.mark.parametrize("schema", [{"$ref": "#/$defs/missing"}, {"$ref": "#"}, {"required": None}])
def test_a_broken_schema_neither_ends_the_scheduler_nor_fails_a_run(story, schema):
    waiting = story.submit(config={"a": 1})
    story.feed(events.HostReported, host(cpus=1.0))
    story.describe(schema)
    assert not story.state(waiting).state.final
    story.submit(config={"b": 1})
    assert story.answer.warnings[0].startswith("configuration is not checked: the schema of w/default is unusable")
