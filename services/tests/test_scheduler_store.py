"""The scheduler's store: what it writes and reads, and what happens when it cannot write."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing

import pytest
from scheduler_story import Story, host

from mosaic_bus.commands import NewRun, SubmitMany
from mosaic_bus.messages import AttemptPhase, ExitReport, FailureCategory, Input, Resources, RunSpec, RunStateName
from mosaic_services.scheduler import events
from mosaic_services.scheduler.errors import StoreError
from mosaic_services.scheduler.instructions import Publish, RecordDecision
from mosaic_services.scheduler.model import Attempt, Ending, Reference, Run
from mosaic_services.scheduler.store import DECISIONS_KEPT, Store, Unsaved
from mosaic_services.scheduler.writer import Writer


def a_run(number=1, **fields):
    spec = RunSpec(worker="w", config={"lr": 2.5e-4, "nested": {"list": [1, "é", None]}}, resources=Resources(cpus=0.5))
    return Run(f"01K{number:023d}", number, spec, "é-name", 1.0, 2.0, warnings=("careful",), **fields)


def unsaved(*runs):
    made = Unsaved()
    for run in runs:
        made.runs[run.id] = run
        made.attempts.update({attempt.key: attempt for attempt in run.attempts})
    return made


@pytest.fixture
def store(tmp_path):
    with closing(Store(tmp_path / "deep" / "s.db")) as opened:
        yield opened


def test_runs_and_attempts_come_back_as_they_were(store):
    ended = ExitReport(code=1, category="application", reason="r", ended_at=9.0, last_lines=["x"])
    attempt = Attempt(
        "01K00000000000000000000001", 1, "local", Resources(cpus=0.5), 3.0, acknowledged=True, phase=AttemptPhase.ENDED
    )
    attempt.exit, attempt.started_at, attempt.ended_at, attempt.outcome = ended, 4.0, 9.0, "failed"
    run = a_run(
        state=RunStateName.FAILED,
        reason="why",
        category=FailureCategory.APPLICATION,
        ending=Ending(RunStateName.CANCELLED, "enough"),
        exit_code=1,
        host="local",
        detail="lines",
        checked="f",
        references=(Reference(("extras", 0, "path"), "01KSOURCE", "40"),),
        inputs=(Input(field=("extras", 0, "path"), run="01KSOURCE", attempt=2, host="local", path="a.pt", step=40),),
    )
    run.id = attempt.run
    run.attempts.append(attempt)
    store.commit(unsaved(run, a_run(2)))
    with closing(Store(store.path)) as again:
        assert again.load() == [run, a_run(2)]


def test_the_newest_decision_is_known_after_a_restart(store):
    made = unsaved(a_run())
    run = next(iter(made.runs))
    made.decisions += [RecordDecision(run, number, 1.0, "queued", f"reason {number}") for number in (1, 2, 3)]
    store.commit(made)
    (loaded,) = store.load()
    assert (loaded.decisions, loaded.last_decision) == (3, ("queued", "reason 3"))


def test_decisions_are_capped_and_the_first_and_the_newest_stay(store):
    run = a_run().id
    for start in range(1, 1001, 100):
        made = Unsaved()
        made.decisions += [RecordDecision(run, n, float(n), "queued", str(n)) for n in range(start, start + 100)]
        store.commit(made)
    kept = [int(each.reason) for each in store.decisions(run)]
    assert len(kept) == DECISIONS_KEPT
    assert kept[:3] == [1, 2, 3]
    assert kept[-1] == 1000


def test_a_full_disk_writes_nothing_and_works_again_when_there_is_room(store):
    store.commit(unsaved(a_run()))
    # SQLite answers as on a full disk: "database or disk is full".
    (pages,) = store._writer.execute("PRAGMA page_count").fetchone()
    store._writer.execute(f"PRAGMA max_page_count={pages}")
    many = unsaved(*(a_run(number) for number in range(2, 200)))
    with pytest.raises(StoreError, match="full"):
        store.commit(many)
    assert len(store.load()) == 1
    store._writer.execute("PRAGMA max_page_count=1000000")
    store.commit(many)
    assert len(store.load()) == 199


def test_a_store_of_another_layout_is_refused(store):
    with closing(sqlite3.connect(store.path)) as other:
        other.execute("PRAGMA user_version=99")
    with pytest.raises(StoreError, match="layout 99"):
        Store(store.path)


def test_a_file_that_is_no_store_is_refused_with_its_path(tmp_path):
    path = tmp_path / "s.db"
    path.write_bytes(b"this is not a database" * 100)
    with pytest.raises(StoreError, match=r"s\.db"):
        Store(path)


def test_nothing_is_published_of_runs_that_could_not_be_saved(store, monkeypatch):
    story, released = Story(), []
    story.feed(events.HostReported, host())

    def withdraw(_failure, submitted):
        for run in submitted:
            for each in story.feed(events.Withdrawn, run):
                writer.add(each)

    def disk_full(_unsaved):
        raise StoreError("s.db", "disk full")

    async def scenario():
        first, second = story.new_id(), story.new_id()
        specs = {first: RunSpec(worker="w"), second: RunSpec(worker="w", after=(first,))}
        story.ask(SubmitMany(runs=[NewRun(run=run, spec=spec) for run, spec in specs.items()]))
        for each in story.out:
            writer.add(each)
        with monkeypatch.context() as patch:
            patch.setattr(store, "commit", disk_full)
            await writer.flush()
        await writer.flush()

    writer = Writer(store, released.append, withdraw)
    asyncio.run(scenario())
    assert not writer.failure
    assert not [each for each in released if isinstance(each, Publish)]
    assert not store.load()
