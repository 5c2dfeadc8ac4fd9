"""The live view: it ends in the same state whatever the order of snapshots and messages."""

import itertools
import random

from mosaic_bus.client.live import LiveView, Selection, is_settled
from mosaic_bus.commands import SnapshotResult
from mosaic_bus.messages import RunState, RunSummary


def state(run, version, name="running", **fields):
    times = {"submitted_at": 1.0, "changed_at": 1.0, "ended_at": float(version)}
    return RunState(
        run=run, name=run, worker="w", profile="p", state=name, reason="", attempt=1, version=version, **times, **fields
    )


def summary(run, events, attempt=1, **fields):
    return RunSummary(run=run, attempt=attempt, events=events, **fields)


def snapshot(version, *states, **counts):
    counts = counts or {name: sum(each.state == name for each in states) for name in {each.state for each in states}}
    return SnapshotResult(version=version, runs=list(states), counts=counts, hosts=[], silent_s={})


def test_the_order_in_which_messages_and_a_snapshot_arrive_does_not_matter():
    told = [state("a", 2, "queued"), state("a", 4), state("a", 6, "failed"), state("b", 5, "queued")]
    answer = snapshot(4, state("a", 4))
    for order in itertools.permutations([*told, answer]):
        view = LiveView(Selection())
        for each in order:
            if isinstance(each, SnapshotResult):
                view.take_snapshot(each, whole=True)
            else:
                view.take_state(each)
        assert view.runs == {"a": told[2], "b": told[3]}
        assert view.counts == {"failed": 1, "queued": 1}


def test_a_whole_snapshot_reports_runs_whose_end_was_missed():
    view = LiveView(Selection(final_limit=1))
    view.take_snapshot(snapshot(3, state("a", 1), state("b", 2), state("c", 3)), whole=True)
    newest = state("c", 9, "succeeded")
    assert set(view.take_snapshot(snapshot(9, newest, state("d", 5)), whole=True)) == {"a", "b"}
    assert view.take_snapshot(snapshot(9), whole=False) == []
    assert set(view.runs) == {"a", "b", "c", "d"}


def test_a_scheduler_whose_versions_restart_replaces_everything():
    view = LiveView(Selection())
    view.take_snapshot(snapshot(7, state("a", 7)), whole=True)
    view.take_snapshot(snapshot(2, state("b", 1)), whole=True)
    assert set(view.runs) == {"b"}
    assert view.take_state(state("b", 3, "failed"))


def test_only_the_newest_ended_runs_are_kept_and_all_are_counted():
    view = LiveView(Selection(final_limit=2))
    for number in range(5):
        view.take_state(state(f"r{number}", 2 * number + 1))
        view.take_summary(summary(f"r{number}", 1))
        view.take_state(state(f"r{number}", 2 * number + 2, "succeeded"))
    assert set(view.runs) == set(view.summaries) == {"r3", "r4"}
    assert view.counts == {"succeeded": 5}


def test_deleted_runs_are_not_counted_even_if_they_ended_too_long_ago_to_be_kept():
    view = LiveView(Selection(final_limit=1))
    view.take_snapshot(snapshot(5, state("new", 5, "succeeded"), succeeded=3), whole=True)
    old = state("old", 6, "succeeded", deleted=True)
    revision = view.revision
    view.take_state(old)
    view.take_state(old)  # some messages are repeated
    assert view.counts == {"succeeded": 2}
    assert view.changes_since(revision).runs == {"old"}, "a page is told at once"
    view.take_snapshot(snapshot(6, succeeded=2), whole=False)
    view.take_state(old)
    view.take_state(state("new", 7, "succeeded", deleted=True))
    assert (view.counts, view.runs) == ({"succeeded": 1}, {})


def test_all_runs_of_a_group_are_kept_and_a_replaced_run_is_not_counted():
    view = LiveView(Selection(group="g", final_limit=0))
    view.take_state(state("a", 1, "failed", group="g"))
    view.take_state(state("b", 2, "succeeded", group="g", replaces="a"))
    view.take_state(state("c", 3, "succeeded", group="other"))
    assert set(view.runs) == {"a", "b"}
    assert view.counts == {"succeeded": 1}


def test_summaries_never_go_back():
    view = LiveView(Selection(runs=frozenset({"a"})))
    newest = summary("a", 3, attempt=2, complete=True)
    told = [summary("a", 9), summary("a", 2, attempt=2), summary("a", 3, attempt=2), newest, summary("b", 1)]
    for order in itertools.permutations(told):
        view = LiveView(Selection(runs=frozenset({"a"})))
        for each in order:
            view.take_summary(each)
        assert view.summaries == {"a": newest}


def test_each_reader_is_told_what_changed_since_it_last_looked():
    view = LiveView(Selection(final_limit=10))
    rng = random.Random(1)
    readers = {"often": (1, 0, {}), "seldom": (50, 0, {}), "never": (10**9, 0, {})}
    for step in range(1, 3001):
        run = f"r{rng.randrange(step // 10, step // 10 + 20)}"
        view.take_state(state(run, step, rng.choice(["running", "succeeded"])))
        for name, (every, revision, copy) in readers.items():
            if step % every == 0:
                changes = view.changes_since(revision)
                for each in changes.runs:
                    copy.pop(each, None)
                    if each in view.runs:
                        copy[each] = view.runs[each]
                readers[name] = (every, changes.revision, copy)
                assert copy == view.runs, name
    assert view.changes_since(0).runs >= set(view.runs)
    assert not view.changes_since(view.revision)


def test_a_reader_that_is_too_far_behind_learns_that_it_cannot_be_told_what_is_gone():
    view = LiveView(Selection(final_limit=10))
    view.take_state(state("first", 1, "succeeded"))
    seen = view.revision
    assert seen >= view.forgotten
    for number in range(1200):
        view.take_state(state(f"r{number}", number + 2, "succeeded"))
    assert "first" not in view.runs
    assert "first" not in view.changes_since(seen).runs
    assert seen < view.forgotten


def test_settled_is_ended_with_all_telemetry_stored():
    assert not is_settled(state("a", 1), None)
    ended = state("a", 1, "failed")
    assert not is_settled(ended, None)
    assert not is_settled(ended, summary("a", 1))
    assert is_settled(ended, summary("a", 1, complete=True))
    assert not is_settled(ended.model_copy(update={"attempt": 2}), summary("a", 1, complete=True))
    assert is_settled(ended.model_copy(update={"attempt": 0}), None)
