"""Order and placement: priorities, dependencies, tags, GPUs, uses, back-fill, pause and drain."""

from __future__ import annotations

import pytest
from pydantic import ValidationError
from scheduler_story import Story, attempt, host

from mosaic_bus.commands import (
    CancelGroup,
    Drain,
    NewRun,
    PauseQueue,
    Place,
    Prioritise,
    Rerun,
    Submit,
    SubmitMany,
)
from mosaic_bus.errors import CommandRefusedError
from mosaic_bus.messages import Resources, RunSpec, RunStateName, Use
from mosaic_services.scheduler import events
from mosaic_services.scheduler import instructions as todo
from mosaic_services.settings.model import SchedulerSettings

KEEP_FREE_AFTER_S = SchedulerSettings().keep_free_after_s


@pytest.fixture
def story():
    return Story()


def spec(**fields):
    return RunSpec(worker="w", **fields)


def placed(story):
    return [each.run for each in story.sent(Place)]


def refusal(story):
    assert isinstance(story.answer, CommandRefusedError)
    return story.answer


def many(runs):
    return SubmitMany(runs=[NewRun(run=run, spec=spec) for run, spec in runs])


def full_host(story, **more):
    """A host filled by an attempt that is not ours."""
    story.feed(events.HostReported, host(attempt("stranger", cpus=2.0), **more))


# ── priorities ──────────────────────────────────────────────────────────────────────────────────────


def test_higher_priority_goes_first_and_within_one_the_older(story):
    full_host(story)
    plain, other = story.submit(cpus=2.0), story.submit(cpus=2.0)
    urgent = story.submit(cpus=2.0, priority=5)
    assert [story.why(run).position for run in (urgent, plain, other)] == [1, 2, 3]
    story.feed(events.HostReported, host())
    assert placed(story) == [urgent]


def test_priority_changed_while_queued_moves_the_run_and_is_remembered(story):
    full_host(story)
    first = story.submit(cpus=2.0)
    second = story.submit(cpus=2.0)
    story.ask(Prioritise(run=second, priority=7))
    assert story.state(second).priority == 7
    assert [each.run.priority for each in story.said(todo.SaveRun)] == [7]
    assert "from 0 to 7" in [each.reason for each in story.said(todo.RecordDecision)]
    story.feed(events.HostReported, host())
    assert placed(story) == [second]
    story.ask(Prioritise(run=second, priority=1))
    assert refusal(story).code == "already_placed"
    assert refusal(story).details.model_dump(exclude_defaults=True) == {"run": second, "state": "starting"}
    assert story.state(first).state is RunStateName.QUEUED


# ── after ───────────────────────────────────────────────────────────────────────────────────────────


def test_a_run_waits_until_the_runs_before_it_have_succeeded(story):
    story.feed(events.HostReported, host(cpus=8))
    train = story.submit(name="train")
    evaluate = story.submit(name="evaluate", after=("train",))
    assert story.state(evaluate).reason == f"waits for train ({train[-6:]}, starting) to succeed"
    assert "train" in story.why(evaluate).facts[1]
    story.feed(events.HostReported, host(attempt(train, "ended", code=0), cpus=8))
    assert placed(story) == [evaluate]


def test_a_run_ends_with_the_run_before_it_and_so_do_those_behind_it(story):
    story.feed(events.HostReported, host(cpus=8))
    chain = [story.submit(name="0")]
    for number in range(1, 3000):
        chain.append(story.submit(name=str(number), after=(chain[-1],)))
    story.feed(events.HostReported, host(attempt(chain[0], "ended", code=1), cpus=8))
    assert {story.state(run).state for run in chain[1:]} == {RunStateName.CANCELLED}
    assert story.state(chain[1]).reason == f"it depends on 0 ({chain[0][-6:]}), which has failed"
    assert not story.machine.ledger.queue


def test_after_a_run_that_has_failed_or_does_not_exist_is_refused(story):
    story.feed(events.HostReported, host(cpus=8))
    bad = story.submit(name="bad")
    story.feed(events.HostReported, host(attempt(bad, "ended", code=1), cpus=8))
    story.submit(after=(bad,))
    assert (refusal(story).code, "has failed" in refusal(story).message) == ("after_failed", True)
    story.submit(after=("nobody",))
    assert refusal(story).code == "unknown_run"
    assert refusal(story).message.startswith("after: no run has the id or name 'nobody'")


def test_runs_of_one_command_may_wait_for_each_other_but_not_in_a_circle(story):
    story.feed(events.HostReported, host(cpus=8))
    a, b, c = (story.new_id() for _ in range(3))
    story.ask(many(((a, spec(name="a", after=("b",))), (b, spec(name="b")), (c, spec(after=(a, b))))))
    assert placed(story) == [b]
    assert sorted(story.machine.ledger.queue.blocked) == [a, c]
    d, e = story.new_id(), story.new_id()
    story.ask(many(((d, spec(name="d", after=("e",))), (e, spec(name="e", after=("d",))))))
    assert refusal(story).code == "circular_after"
    assert refusal(story).details.model_dump(exclude_defaults=True) == {"candidates": [d, e, d]}
    assert "d (" in refusal(story).message
    assert d not in story.machine.ledger.runs
    f = story.new_id()
    story.ask(Submit(run=f, spec=spec(name="f", after=(f,))))
    assert refusal(story).code == "circular_after"


def test_many_runs_are_taken_all_or_none_and_the_wrong_one_is_named(story):
    story.feed(events.HostReported, host())
    runs = tuple((story.new_id(), spec(name=f"r{number}")) for number in range(3))
    wrong = (story.new_id(), spec(name="large", resources=Resources(cpus=64)))
    story.ask(many((*runs, wrong)))
    assert refusal(story).code == "impossible_resources"
    assert refusal(story).message.startswith("run 4 of 4 (large): needs 64 cpus")
    assert not story.machine.ledger.runs
    story.ask(many(runs))
    story.ask(many(runs))
    assert len(story.machine.ledger.runs) == 3


# ── GPUs and tags ───────────────────────────────────────────────────────────────────────────────────


def test_gpus_are_given_whole_or_in_shares_and_never_twice(story):
    story.feed(events.HostReported, host(cpus=64, gpus=4))
    shares = [story.submit(gpus=0.5) for _ in range(2)]
    pair = story.submit(gpus=2)
    one = story.submit(gpus=1)
    waiting = story.submit(gpus=0.5)
    given = {run: story.machine.ledger.runs[run].attempts[-1].gpus for run in (*shares, pair, one)}
    assert given[shares[0]] == given[shares[1]] == {"0": 0.5}
    assert given[pair] == {"1": 1.0, "2": 1.0}
    assert given[one] == {"3": 1.0}
    assert story.state(waiting).reason == "waits for 0.5 GPU: local has 0 of 4 free"
    assert any("holds 1 cpu, 1024 MB and 2 GPUs (GPU 1, 2)" in fact for fact in story.why(waiting).facts)


def test_gpus_of_a_restarted_scheduler_are_still_given(story):
    story.feed(events.HostReported, host(cpus=64, gpus=1))
    story.submit(gpus=1)
    story.restart(story.out)
    # The host reports before it has heard of the attempt; the GPU still counts as taken.
    story.feed(events.HostReported, host(cpus=64, gpus=1))
    second = story.submit(gpus=0.5)
    assert story.state(second).reason == "waits for 0.5 GPU: local has 0 of 1 free"


def test_a_run_without_gpus_leaves_hosts_with_gpus_alone_if_it_can(story):
    story.feed(events.HostReported, host(name="a", cpus=8, gpus=2))
    story.feed(events.HostReported, host(name="b", cpus=8))
    run = story.submit()
    assert story.state(run).host == "b"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("gpus", -1),
        ("gpus", 1.5),
        ("gpus", 0.333),
        ("gpus", 5000),
        ("cpus", 0),
        ("cpus", -2),
        ("cpus", 1e9),
        ("memory_mb", -1),
        ("memory_mb", 10**12),
        ("cpus", float("nan")),
    ],
)
def test_absurd_resources_are_not_a_spec(field, value):
    with pytest.raises(ValidationError, match=field):
        Resources(**{field: value})


def test_tags_decide_where_a_run_may_go(story):
    story.feed(events.HostReported, host(name="a", tags=["host:a", "slow"]))
    story.feed(events.HostReported, host(name="b", tags=["host:b", "big"]))
    assert story.state(story.submit(requires=("big",))).host == "b"
    assert story.state(story.submit(requires=("host:a",))).host == "a"
    assert story.state(story.submit(requires=("!slow",))).host == "b"
    story.submit(requires=("bigg",))
    assert refusal(story).code == "unknown_tag"
    details = refusal(story).details
    assert (details.near, details.allowed) == (["big"], ["big", "host:a", "host:b", "slow"])
    story.submit(requires=("big", "host:a"))
    assert refusal(story).message.startswith("no host has worker w and the tags big, host:a: a has host:a, slow")


def test_what_no_host_could_take_is_refused_or_waits_for_one_to_join_as_the_spec_says(story):
    story.feed(events.HostReported, host(gpus=1))
    story.submit(gpus=2)
    assert refusal(story).code == "impossible_resources"
    assert refusal(story).message == (
        "needs 1 cpu, 1024 MB and 2 GPUs; the largest host with worker w, local, has 2 cpus, 8000 MB and 1 GPU in all"
    )
    run = story.submit(gpus=2, requires=("a100",), wait_for_host=True)
    assert "it waits for such a host to join" in story.machine.ledger.runs[run].warnings[-1]
    assert story.state(run).reason == "no host has worker w and the tags a100"
    assert story.why(run).facts[2] == "no known host could take it"
    story.feed(events.HostReported, host(name="new", gpus=2, tags=["a100"]))
    assert story.state(run).host == "new"


# ── more than one worker ────────────────────────────────────────────────────────────────────────────


def test_a_run_goes_only_where_every_environment_that_it_uses_is_or_can_be_built(story):
    story.feed(events.HostReported, host(name="a", cpus=8))
    story.feed(events.HostReported, host(name="b", cpus=8, others={"x": "available", "y": "installed"}))
    uses = ({"worker": "x"}, {"worker": "y"})
    run = story.submit(uses=uses)
    state = story.state(run)
    assert (state.host, state.state) == ("b", RunStateName.PREPARING)
    assert "it has w/default and y/default, can build x/default" in state.reason
    assert story.sent(Place)[0].spec.uses == (Use(worker="x"), Use(worker="y"))
    story.feed(events.HostReported, host(attempt(run, "preparing"), name="b", cpus=8))
    waiting = story.submit(uses=uses[:1], wait_for_host=True)
    assert story.answer.code == "unknown_worker", "no host that is known has it any more"
    assert (story.answer.details.field, waiting in story.machine.ledger.runs) == ("uses.0.worker", False)


def test_why_names_the_environment_that_is_missing_or_broken(story):
    story.feed(events.HostReported, host(name="a", others={"x": "installed"}))
    story.feed(events.HostReported, host(name="b", others={"y": "broken"}))
    uses = ({"worker": "x"}, {"worker": "y"})
    story.submit(uses=uses)
    assert refusal(story).code == "impossible_resources"
    lacking = [each.message for each in refusal(story).details.problems]
    assert (refusal(story).details.field, lacking) == ("uses", ["a lacks worker y", "b lacks worker x"])
    run = story.submit(uses=uses, wait_for_host=True)
    assert story.state(run).reason == (
        "no host has worker w and worker x and worker y: a lacks worker y, b lacks worker x"
    )
    assert "with worker w/default and x/default and y/default" in story.why(run).facts[0]
    story.feed(events.HostReported, host(name="b", others={"x": "installed", "y": "broken"}))
    assert story.state(run).reason == "worker y is broken on b: no detail"
    story.feed(events.HostReported, host(name="b", others={"x": "installed", "y": "installed"}))
    assert story.state(run).host == "b"


@pytest.mark.parametrize(
    "uses",
    [
        ({"worker": "w"},),
        ({"worker": "x"}, {"worker": "x"}),
        ({"worker": "X!"},),
        ({},),
        tuple({"worker": f"x{number}"} for number in range(17)),
    ],
)
def test_environments_named_twice_or_not_at_all_are_not_a_spec(uses):
    with pytest.raises(ValidationError, match="uses"):
        spec(uses=uses)


# ── back-fill ───────────────────────────────────────────────────────────────────────────────────────


def test_small_runs_pass_a_large_one_but_do_not_starve_it(story):
    story.feed(events.HostReported, host())
    running = [story.submit(cpus=1.0), story.submit(cpus=1.0)]
    large = story.submit(cpus=2.0)
    passed = 0
    for _ in range(200):
        ended = attempt(running[0], "ended", code=0)
        running = [*running[1:], story.submit(cpus=1.0)]
        story.pass_time(1, host(ended, *(attempt(run) for run in running if story.state(run).host)))
        running = [run for run in running if story.state(run).host]
        passed += len(placed(story))
        if story.state(large).host or not running:
            break
    assert passed > KEEP_FREE_AFTER_S / 2, "small runs are let pass at first"
    story.pass_time(3, host())
    assert story.state(large).host == "local", story.state(large).reason


def test_who_is_kept_waiting_for_a_large_run_is_told_so(story):
    story.feed(events.HostReported, host(cpus=3))
    running = story.submit(cpus=1.0)
    large = story.submit(cpus=3.0, name="large")
    story.submit(cpus=1.0)
    story.pass_time(KEEP_FREE_AFTER_S + 5, host(attempt(running), cpus=3))
    late = story.submit(cpus=0.5)
    assert story.state(late).state is RunStateName.QUEUED
    assert story.state(late).reason == f"local is kept free for large ({large[-6:]}), which has waited longer"
    assert "local is kept free for it, since others have overtaken it for too long" in story.why(large).facts
    urgent = story.submit(cpus=0.5, priority=1)
    assert story.state(urgent).host == "local"


# ── pause and drain ─────────────────────────────────────────────────────────────────────────────────


def test_a_paused_queue_places_nothing_and_survives_a_restart(story):
    story.feed(events.HostReported, host())
    before = story.submit()
    saved = list(story.out)
    story.ask(PauseQueue(paused=True, reason="maintenance"))
    saved += story.out
    waiting = story.submit()
    saved += story.out
    assert not story.sent(Place)
    assert story.state(waiting).reason == "the queue is paused (maintenance)"
    assert story.state(before).state is RunStateName.STARTING
    story.restart(saved)
    story.feed(events.HostReported, host(attempt(before)))
    assert story.state(waiting).state is RunStateName.QUEUED
    story.ask(PauseQueue(paused=False, reason=""))
    assert placed(story) == [waiting]


def test_a_drained_host_keeps_what_it_has_and_gets_nothing_new(story):
    story.feed(events.HostReported, host(cpus=8))
    kept = story.submit()
    story.ask(Drain(host="local", drained=True, reason="new disk"))
    saved = list(story.out)
    waiting = story.submit()
    assert story.state(waiting).reason == "local is drained (new disk)"
    assert story.state(kept).state is RunStateName.STARTING
    story.restart(saved)
    story.feed(events.HostReported, host(cpus=8))
    again = story.submit()
    assert story.state(again).reason == "local is drained (new disk)"
    story.ask(Drain(host="local", drained=False, reason=""))
    assert placed(story) == [again]
    story.ask(Drain(host="nowhere", drained=True, reason=""))
    assert refusal(story).code == "unknown_host"


# ── groups ──────────────────────────────────────────────────────────────────────────────────────────


def group_of(story, count, **more):
    runs = [story.new_id() for _ in range(count)]
    story.ask(many(tuple((run, spec(group="lr-sweep", **more)) for run in runs)))
    return runs


def test_a_group_is_cancelled_as_one(story):
    story.feed(events.HostReported, host())
    runs = group_of(story, 5)
    story.ask(CancelGroup(group="sweep", reason="enough"))
    states = [story.state(run).state.value for run in runs]
    assert states == ["stopping", "stopping", "cancelled", "cancelled", "cancelled"]
    story.ask(CancelGroup(group="no-such", reason="enough"))
    assert refusal(story).code == "unknown_group"


def test_what_failed_of_a_group_is_run_again_once_per_request(story):
    story.feed(events.HostReported, host(cpus=8))
    good, bad, ugly = group_of(story, 3)
    story.ask(Rerun(request="01K" + "0" * 23, group="lr-sweep"))
    assert refusal(story).code == "nothing_to_rerun"
    ended = [attempt(good, "ended", code=0), attempt(bad, "ended", code=1), attempt(ugly, "ended", code=1)]
    story.feed(events.HostReported, host(*ended, cpus=8))
    for _ in range(2):
        story.ask(Rerun(request="01K" + "1" * 23, group="lr-sweep"))
    again = [each.run for each in story.answer.runs]
    assert len(again) == 2
    assert not story.out, "the second time nothing happens"
    assert len(story.machine.ledger.runs) == 5
    assert {story.machine.ledger.runs[run].spec.replaces for run in again} == {bad, ugly}
    story.ask(Rerun(request="01K" + "2" * 23, group="lr-sweep"))
    assert refusal(story).code == "nothing_to_rerun"


def test_a_repetition_comes_after_the_repetitions_of_what_it_came_after(story):
    story.feed(events.HostReported, host(cpus=8))
    train, evaluate = story.new_id(), story.new_id()
    chain = (train, spec(name="train", group="g")), (evaluate, spec(name="evaluate", group="g", after=("train",)))
    story.ask(many(chain))
    story.feed(events.HostReported, host(attempt(train, "ended", code=1), cpus=8))
    assert story.state(evaluate).state is RunStateName.CANCELLED
    story.ask(Rerun(request="01K" + "1" * 23, group="g"))
    first, second = (story.machine.ledger.runs[each.run] for each in story.answer.runs)
    assert (first.name, second.name, second.after) == ("train", "evaluate", (first.id,))


def test_a_run_replaces_only_one_that_was_there_before_it(story):
    a, b = story.new_id(), story.new_id()
    story.ask(Submit(run=a, spec=spec(replaces=a)))
    assert refusal(story).code == "unknown_run"
    assert refusal(story).message == f"replaces: no earlier run has the id {a!r}"
    story.ask(many(((a, spec(replaces=b)), (b, spec(replaces=a)))))
    assert refusal(story).code == "unknown_run"
    assert not story.machine.ledger.runs
    story.ask(Submit(run=a, spec=spec()))
    story.ask(Submit(run=b, spec=spec(replaces=a)))
    assert list(story.machine.ledger.runs) == [a, b]


def test_a_run_that_has_not_ended_is_not_run_again(story):
    story.feed(events.HostReported, host())
    run = story.submit(name="one")
    story.ask(Rerun(request="01K" + "1" * 23, run=run))
    assert refusal(story).code == "not_final"
