"""Which failures are retried, when, where, and from which checkpoint."""

from __future__ import annotations

import pytest
from pydantic import ValidationError
from scheduler_story import Story, attempt, host

from mosaic_bus.commands import Cancel, Forget, Place, Stop
from mosaic_bus.messages import Checkpoint, Retries, RunStateName
from mosaic_services.scheduler import events
from mosaic_services.scheduler import instructions as todo


@pytest.fixture
def story():
    story = Story()
    story.feed(events.HostReported, host())
    return story


def fail(story, run, number=1, **how):
    """Let an attempt end; by default it ran for an hour and its code was at fault."""
    how = {"code": 1, "category": "application", "started_at": 2e9 - 3600, "reason": "loss is NaN", **how}
    story.feed(events.HostReported, host(attempt(run, "ended", number=number, **how)))


def test_without_retries_a_failure_is_the_end(story):
    run = story.submit()
    fail(story, run, category="infrastructure")
    assert story.state(run).state is RunStateName.FAILED


def test_a_failed_run_rests_longer_each_time_and_is_then_placed_again(story):
    run = story.submit(retries={"max": 3, "on": ["application"], "delay_s": 4})
    for number, delay in ((1, 4), (2, 8), (3, 16)):
        fail(story, run, number)
        state = story.state(run)
        assert state.state is RunStateName.QUEUED
        assert f"attempt {number} failed: application: loss is NaN; attempt {number + 1} of 4" in state.reason
        assert f"in {delay} s: {delay} s left" in state.reason
        assert story.sent(Forget), "the host need not report the old attempt any more"
        story.pass_time(delay - 1, host())
        assert not story.sent(Place)
        story.pass_time(1, host())
        assert [each.attempt for each in story.sent(Place)][:1] == [number + 1]
    fail(story, run, 4)
    assert story.state(run).state is RunStateName.FAILED
    assert "not retried: attempt 4 was the last of 4" in story.why(run).facts
    assert len([fact for fact in story.why(run).facts if fact.startswith("attempt ")]) == 3


@pytest.mark.parametrize(
    ("on", "how", "again"),
    [
        (["infrastructure"], {"category": "infrastructure", "code": None, "signal": 9}, True),
        (["infrastructure"], {"category": "application", "code": 1}, False),
        (["application"], {"category": "application", "code": 1}, True),
        ([75], {"category": "application", "code": 75}, True),
        ([75], {"category": "application", "code": 1}, False),
        (["application"], {"category": "configuration", "code": 2}, False),
        ([2], {"category": "configuration", "code": 2}, False),
        (["application"], {"category": "application", "code": 143, "limit": "memory"}, False),
    ],
)
def test_only_failures_that_the_spec_names_and_that_can_succeed_are_tried_again(story, on, how, again):
    run = story.submit(retries={"max": 2, "on": on})
    fail(story, run, **how)
    assert (story.state(run).state is RunStateName.QUEUED) is again
    assert again or any("not retried: " in fact for fact in story.why(run).facts)


@pytest.mark.parametrize("on", [["configuration"], ["lost"], [0], [256], ["exit 3"]])
def test_what_cannot_be_retried_is_not_a_spec(on):
    with pytest.raises(ValidationError, match="on"):
        Retries(max=1, on=on)


def test_a_run_that_fails_at_once_in_the_same_way_is_given_up_early(story):
    run = story.submit(retries={"max": 50, "on": ["application"], "delay_s": 0})
    for number in range(1, 4):
        assert story.state(run).state is not RunStateName.FAILED
        fail(story, run, number, started_at=2e9 - 1)
        story.pass_time(1, host())
    assert story.state(run).state is RunStateName.FAILED
    assert "3 attempts in a row ended within 10 s in the same way (exit 1)" in story.why(run).facts[-3]


def test_the_next_attempt_goes_on_from_the_newest_checkpoint_of_any_attempt(story):
    run = story.submit(retries={"max": 3, "on": ["application"], "delay_s": 0})
    saved = Checkpoint(path="/somewhere/step-40000", step=40000)
    fail(story, run, 1, checkpoint=saved)
    assert "resumes from its checkpoint of step 40000" in story.state(run).reason
    story.pass_time(1, host())
    assert story.sent(Place)[0].resume == saved
    assert any("it resumes from the checkpoint of step 40000" in fact for fact in story.why(run).facts)
    fail(story, run, 2)  # before it had saved another one
    story.pass_time(1, host())
    assert story.sent(Place)[0].resume == saved


def test_a_retry_goes_to_another_host_unless_its_checkpoint_is_here(story):
    story.feed(events.HostReported, host(name="other", cpus=1))
    plain = story.submit(retries={"max": 1, "on": ["application"], "delay_s": 0})
    assert story.state(plain).host == "local"
    fail(story, plain)
    story.pass_time(1, host(), host(name="other", cpus=1))
    assert story.state(plain).host == "other"
    resuming = story.submit(retries={"max": 1, "on": ["application"], "delay_s": 0})
    fail(story, resuming, checkpoint=Checkpoint(path="/here"))
    ended = attempt(plain, "ended", number=2, code=0)
    story.pass_time(2, host(), host(ended, name="other", cpus=1))
    assert story.state(resuming).host == "local"


def test_a_run_on_a_host_that_fell_silent_is_tried_elsewhere_and_the_old_attempt_is_stopped(story):
    run = story.submit(retries={"max": 1})
    story.feed(events.HostReported, host(attempt(run)))
    story.pass_time(400, host(name="other"))
    state = story.state(run)
    assert (state.host, state.attempt) == ("other", 2)
    story.feed(events.HostReported, host(attempt(run)))
    assert story.said(todo.Send) == [todo.Send("local", Stop(run=run, attempt=1, reason="it was given up"))]


def test_cancelling_a_run_that_rests_ends_it(story):
    run = story.submit(retries={"max": 5, "on": ["application"], "delay_s": 60})
    fail(story, run)
    story.ask(Cancel(run=run, reason="enough"))
    assert story.state(run).state is RunStateName.CANCELLED
    story.pass_time(100, host())
    assert not story.sent(Place)


def test_a_run_that_is_being_stopped_is_not_tried_again(story):
    run = story.submit(retries={"max": 5, "on": ["infrastructure", "application"]})
    story.feed(events.HostReported, host(attempt(run)))
    story.ask(Cancel(run=run, reason="enough"))
    fail(story, run, category="infrastructure", code=None)
    assert story.state(run).state is not RunStateName.QUEUED


@pytest.mark.parametrize("jump", [0, -3600], ids=["", "the clock is set back"])
def test_a_restarted_scheduler_remembers_how_long_a_run_is_to_rest(story, jump):
    run = story.submit(retries={"max": 1, "on": ["application"], "delay_s": 30})
    saved = list(story.out)
    fail(story, run)
    saved += story.out
    story.clock += jump
    story.restart(saved)
    story.pass_time(29, host())
    assert story.state(run).state is RunStateName.QUEUED
    story.pass_time(2, host())
    assert story.state(run).attempt == 2


def test_dependents_wait_through_the_retries_of_what_they_wait_for(story):
    train = story.submit(retries={"max": 1, "on": ["application"], "delay_s": 0})
    evaluate = story.submit(after=(train,))
    fail(story, train)
    assert story.state(evaluate).state is RunStateName.QUEUED
    story.pass_time(1, host())
    story.feed(events.HostReported, host(attempt(train, "ended", number=2, code=0)))
    assert story.state(evaluate).host == "local"


def test_warnings_of_a_host_are_recorded_once_and_told(story):
    run = story.submit()
    for _ in range(3):
        story.feed(events.HostReported, host(attempt(run, warnings=["memory 410 of 512 MB (80 %)"])))
    assert [each.reason for each in story.decisions].count("memory 410 of 512 MB (80 %)") == 1
    assert "memory 410 of 512 MB (80 %)" in story.why(run).facts
