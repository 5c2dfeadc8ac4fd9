"""The supervisor's machine, over generated orders of stimuli."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from mosaic_bus.commands import Forget, Place, Stop
from mosaic_bus.messages import AttemptPhase, Checkpoint, ExitReport, FailureCategory, RunSpec
from mosaic_services.attempt_folder import AttemptKey
from mosaic_services.supervisor import machine

KEY = AttemptKey("01RUN", 1)
OTHER = AttemptKey("01RUN", 2)
PLACE = Place(run="01RUN", attempt=1, run_name="x", spec=RunSpec(worker="w"))
STOP = Stop(run="01RUN", attempt=1, reason="cancelled")
FORGET = Forget(run="01RUN", attempt=1)
NOW = 9.0
keys = st.sampled_from([KEY, OTHER])
SAVED = Checkpoint(path="/data/40.pt", step=40)
reports = st.one_of(
    st.builds(ExitReport, code=st.just(0), ended_at=st.just(5.0)),
    st.builds(ExitReport, code=st.just(143), stopped=st.just(True), ended_at=st.just(5.0)),
    st.builds(
        ExitReport,
        code=st.sampled_from([0, 1, 143]),
        category=st.just(FailureCategory.APPLICATION),
        limit=st.sampled_from([None, "memory", "wall"]),
        ended_at=st.just(5.0),
    ),
)
stimuli = st.one_of(
    st.sampled_from([PLACE, STOP, FORGET, *(each.model_copy(update={"attempt": 2}) for each in (PLACE, STOP, FORGET))]),
    st.builds(machine.Prepared, keys),
    st.builds(machine.PrepareFailed, keys, st.just("no network"), st.just(FailureCategory.INFRASTRUCTURE)),
    st.builds(machine.JournalGrew, keys),
    st.builds(machine.Exited, keys, reports),
    st.builds(machine.RunHostGone, keys, st.just("it died")),
    st.builds(machine.Swept, keys),
    st.builds(machine.CheckpointSought, keys, st.sampled_from([None, SAVED])),
    st.builds(machine.StreamsStored, keys),
)


@settings(max_examples=200, deadline=None)
@given(st.lists(stimuli, max_size=40))
def test_whatever_happens_in_whatever_order(history):
    core = machine.Machine()
    ends: dict[AttemptKey, ExitReport] = {}
    started: set[AttemptKey] = set()
    forgotten: set[AttemptKey] = set()
    stored: set[AttemptKey] = set()
    for stimulus in history:
        key = machine.key_of(stimulus)
        before = core.attempts.get(key)
        was_ended = before is not None and before.phase is AttemptPhase.ENDED
        ending = before.ending if before is not None else None
        phase = before.phase if before is not None else None
        if (was_ended or ending) and isinstance(stimulus, Forget):
            forgotten.add(key)
        if (was_ended or ending) and isinstance(stimulus, machine.StreamsStored):
            stored.add(key)
        instructions = core.handle(stimulus, NOW)
        assert all(each.key == key for each in instructions)
        if ending is not None and not isinstance(stimulus, machine.CheckpointSought):
            assert instructions == [], "something was done about what has ended"
        if before is not None and before.exit is not None and not was_ended:
            assert before.exit.phase is phase, "it ended in another phase"
            success = before.exit.code == 0 and before.exit.category is None and not before.exit.stopped
            unstarted = isinstance(stimulus, machine.PrepareFailed | Stop)
            assert success or unstarted or isinstance(stimulus, machine.CheckpointSought), "no checkpoint was sought"
            ends[key] = before.exit
        for each in instructions:
            if isinstance(each, machine.Start):
                assert key not in started, "started twice"
                started.add(key)
            if isinstance(each, machine.RecordEnd):
                assert not was_ended
            if isinstance(each, machine.Release):
                assert key in ends
                assert key in forgotten
                assert key in stored
                # The machine has forgotten it. Its exit record on disk keeps it from being placed again.
                for memory in (started, forgotten, stored):
                    memory.discard(key)
                del ends[key]
        after = core.attempts.get(key)
        if after is not None and after.phase is AttemptPhase.ENDED:
            assert after.exit is not None
            assert ends.setdefault(key, after.exit) == after.exit, "an ended attempt changed"
        else:
            assert key not in ends, "an ended attempt came back to life"


@settings(max_examples=100, deadline=None)
@given(st.lists(stimuli, max_size=30), reports)
def test_stop_always_leads_to_an_end_once_the_process_ends(history, report):
    core = machine.Machine()
    core.handle(PLACE, NOW)
    for stimulus in history:
        core.handle(stimulus, NOW)
    if KEY not in core.attempts:
        return
    attempt = core.attempts[KEY]
    instructions = core.handle(STOP, NOW)
    if attempt.phase is not AttemptPhase.ENDED and attempt.ending is None:
        assert instructions == [machine.SignalStop(KEY, "cancelled")]
        assert attempt.phase is AttemptPhase.STOPPING
        core.handle(machine.Exited(KEY, report), NOW)
    core.handle(machine.CheckpointSought(KEY, None), NOW)
    assert attempt.phase is AttemptPhase.ENDED


def test_stop_while_the_environment_is_built_ends_at_once_and_starts_nothing():
    core = machine.Machine()
    assert core.handle(PLACE, NOW) == [machine.Prepare(KEY)]
    (recorded,) = core.handle(STOP, NOW)
    assert isinstance(recorded, machine.RecordEnd)
    assert recorded.report.stopped
    assert core.handle(machine.Prepared(KEY), NOW) == []


def test_death_of_a_run_host_is_an_end_only_after_the_sweep():
    core = machine.Machine()
    for stimulus in (PLACE, machine.Prepared(KEY), machine.JournalGrew(KEY)):
        core.handle(stimulus, NOW)
    assert core.handle(machine.RunHostGone(KEY, "it died"), NOW) == [machine.Sweep(KEY)]
    assert core.handle(machine.RunHostGone(KEY, "it died"), NOW) == []
    assert core.attempts[KEY].phase is AttemptPhase.RUNNING
    assert core.handle(machine.Swept(KEY), NOW) == [machine.FindCheckpoint(KEY)]
    (recorded,) = core.handle(machine.CheckpointSought(KEY, SAVED), NOW)
    assert isinstance(recorded, machine.RecordEnd)
    assert recorded.report.category is FailureCategory.INFRASTRUCTURE
    assert (recorded.report.phase, recorded.report.checkpoint) == (AttemptPhase.RUNNING, SAVED)


def test_death_of_a_run_host_while_it_stops_is_a_stop():
    core = machine.Machine()
    for stimulus in (PLACE, machine.Prepared(KEY), STOP):
        core.handle(stimulus, NOW)
    core.handle(machine.RunHostGone(KEY, "it died"), NOW)
    core.handle(machine.Swept(KEY), NOW)
    (recorded,) = core.handle(machine.CheckpointSought(KEY, None), NOW)
    assert isinstance(recorded, machine.RecordEnd)
    assert (recorded.report.stopped, recorded.report.category) == (True, None)


def test_late_failure_of_a_build_does_not_end_a_running_attempt():
    core = machine.Machine()
    for stimulus in (PLACE, machine.Prepared(KEY)):
        core.handle(stimulus, NOW)
    assert core.handle(machine.PrepareFailed(KEY, "late", FailureCategory.INFRASTRUCTURE), NOW) == []
    assert core.attempts[KEY].phase is AttemptPhase.STARTING


def test_end_says_how_far_the_attempt_had_come():
    failed = ExitReport(code=1, category=FailureCategory.APPLICATION, ended_at=5.0)
    steps = [machine.Prepared(KEY), machine.JournalGrew(KEY), STOP]
    for count, phase in enumerate([AttemptPhase.STARTING, AttemptPhase.RUNNING, AttemptPhase.STOPPING], start=1):
        core = machine.Machine()
        for stimulus in (PLACE, *steps[:count]):
            core.handle(stimulus, NOW)
        assert core.handle(machine.Exited(KEY, failed), NOW) == [machine.FindCheckpoint(KEY)]
        assert core.attempts[KEY].phase is phase, "it has not ended before the checkpoint is known"
        assert core.handle(machine.CheckpointSought(KEY, SAVED), NOW) == []
        assert core.attempts[KEY].exit == failed.model_copy(update={"phase": phase, "checkpoint": SAVED})
    core = machine.Machine()
    core.handle(PLACE, NOW)
    (recorded,) = core.handle(machine.PrepareFailed(KEY, "no network", FailureCategory.INFRASTRUCTURE), NOW)
    assert isinstance(recorded, machine.RecordEnd)
    assert recorded.report.phase is AttemptPhase.PREPARING


def test_success_ends_at_once_and_no_checkpoint_is_sought():
    core = machine.Machine()
    for stimulus in (PLACE, machine.Prepared(KEY), machine.JournalGrew(KEY)):
        core.handle(stimulus, NOW)
    assert core.handle(machine.Exited(KEY, ExitReport(code=0, ended_at=5.0)), NOW) == []
    assert core.attempts[KEY].phase is AttemptPhase.ENDED


def test_exit_with_0_after_a_limit_is_no_success():
    core = machine.Machine()
    for stimulus in (PLACE, machine.Prepared(KEY), machine.JournalGrew(KEY)):
        core.handle(stimulus, NOW)
    report = ExitReport(code=0, category=FailureCategory.APPLICATION, limit="wall", ended_at=5.0)
    assert core.handle(machine.Exited(KEY, report), NOW) == [machine.FindCheckpoint(KEY)]


def test_phase_that_an_earlier_supervisor_recorded_stays():
    core = machine.Machine()
    core.handle(PLACE, NOW)
    report = ExitReport(code=None, stopped=True, ended_at=5.0, phase=AttemptPhase.RUNNING)
    core.handle(machine.Exited(KEY, report), NOW)
    core.handle(machine.CheckpointSought(KEY, None), NOW)
    assert core.attempts[KEY].exit == report


def test_attempt_forgotten_and_stored_while_its_checkpoint_is_sought_is_released_at_its_end():
    core = machine.Machine()
    for stimulus in (PLACE, machine.Prepared(KEY)):
        core.handle(stimulus, NOW)
    core.handle(machine.Exited(KEY, ExitReport(code=1, category=FailureCategory.APPLICATION, ended_at=5.0)), NOW)
    assert core.handle(FORGET, NOW) == []
    assert core.handle(machine.StreamsStored(KEY), NOW) == []
    assert core.handle(machine.CheckpointSought(KEY, None), NOW) == [machine.Release(KEY)]
    assert core.attempts == {}
