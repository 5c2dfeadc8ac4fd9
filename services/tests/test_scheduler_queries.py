"""Lists and snapshots of runs: names, counts by state, versions."""

import pytest
from scheduler_story import Story, host

from mosaic_bus.commands import Cancel, Runs, Snapshot
from mosaic_bus.errors import CommandRefusedError
from mosaic_services.scheduler import events, queries


@pytest.fixture
def story():
    made = Story()
    made.feed(events.HostReported, host(cpus=2))
    return made


def test_runs_are_found_by_id_part_or_name_in_the_order_asked_for(story):
    first, second = story.submit(name="one"), story.submit(name="two")
    ledger = story.machine.ledger
    found = queries.run_list(ledger, Runs(runs=["two", first[-6:], second]), story.now)
    assert [each.run for each in found.runs] == [second, first]
    for name, code in (("three", "unknown_run"), ("01K", "ambiguous_run")):
        with pytest.raises(CommandRefusedError) as refused:
            queries.run_list(ledger, Runs(runs=["one", name]), story.now)
        assert refused.value.code == code


def test_counts_ignore_the_limit_and_the_states_asked_for(story):
    for _ in range(3):
        story.submit()
    found = queries.run_list(story.machine.ledger, Runs(states=["queued"], limit=1), story.now)
    assert (len(found.runs), found.total, found.counts) == (1, 1, {"starting": 2, "queued": 1})


def test_a_snapshot_since_a_version_has_only_what_changed_after_it(story):
    first, second = story.submit(group="a"), story.submit()
    ledger = story.machine.ledger

    def snapshot(**arguments):
        return queries.snapshot(ledger, Snapshot(**arguments), story.now)

    before = snapshot()
    assert [each.run for each in before.runs] == [second, first]
    assert max(each.version for each in before.runs) <= before.version
    assert snapshot(since=before.version).runs == []
    story.ask(Cancel(run=first))
    after = snapshot(since=before.version)
    assert [(each.run, each.state) for each in after.runs] == [(first, "stopping")]
    assert after.version > before.version
    assert after.counts == {"stopping": 1, "starting": 1}
    assert [each.run for each in snapshot(group="a").runs] == [first]
    assert [each.run for each in snapshot(runs=[second, "unknown"]).runs] == [second]
    assert snapshot(group="nobody").runs == []


def test_what_is_only_published_again_is_no_change(story):
    run = story.submit()
    version = story.machine.ledger.runs[run].version
    published = [each.state.version for each in story.pass_time(25, host(cpus=2)) if hasattr(each, "state")]
    assert published
    assert set(published) == {version}
