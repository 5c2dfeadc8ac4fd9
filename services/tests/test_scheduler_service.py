"""The scheduler's shell without a broker: invalid reports and a store that cannot be written."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace

import pytest
from pydantic import ValidationError
from scheduler_story import attempt, host

from mosaic_bus import BusError, CommandRefusedError, topics
from mosaic_bus.commands import Cancel, Rerun, Submit
from mosaic_bus.messages import AttemptReport, ExitReport, HostState, RunSpec, RunStateName, RunSummary, Usage
from mosaic_services.home import StackHome
from mosaic_services.scheduler.errors import StoreError
from mosaic_services.scheduler.service import SchedulerService
from mosaic_services.settings import Settings

NAN, INF = float("nan"), float("inf")
RUN = "01K00000000000000000000001"


class NoBus:
    """A bus without other clients."""

    def __init__(self):
        self.counters = {}

    def publish(self, *_):
        return True

    async def request(self, *_, **__):
        raise BusError("nobody answers")


@pytest.fixture
def in_service(tmp_path):
    """Run a coroutine with a service that has no bus but a working writer."""

    def play(story):
        async def main():
            service = SchedulerService(StackHome.find(tmp_path), None, Settings())
            service.bus = NoBus()
            writing = asyncio.create_task(service.writer.work())
            try:
                await asyncio.wait_for(story(service), 30)
            finally:
                writing.cancel()
                await asyncio.gather(writing, return_exceptions=True)
                service.store.close()
                service.lock.close()

        asyncio.run(main())

    return play


# ── reports that make no sense ──────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("value", [NAN, INF, -INF, "NaN"])
@pytest.mark.parametrize(
    ("kind", "field", "others"),
    [
        (ExitReport, "ended_at", {"code": 0}),
        (ExitReport, "started_at", {"code": 0, "ended_at": 1.0}),
        (ExitReport, "max_rss_mb", {"code": 0, "ended_at": 1.0}),
        (Usage, "rss_mb", {}),
        (AttemptReport, "started_at", {"run": RUN, "attempt": 1, "phase": "running", "resources": {}}),
        (HostState, "cpu_percent", {"host": "local", "total": {}}),
    ],
)
def test_a_figure_that_is_no_number_is_no_report(kind, field, others, value):
    with pytest.raises(ValidationError, match=field):
        kind.model_validate({**others, field: value})


def test_a_share_of_a_gpu_is_a_number_and_a_return_need_not_be():
    with pytest.raises(ValidationError, match="gpus"):
        AttemptReport(run=RUN, attempt=1, phase="running", resources={}, gpus={"0": INF})
    assert RunSummary(run=RUN, attempt=1, return_last=INF, scalars={"loss": NAN}).return_last == INF


async def reports(*states):
    for state in states:
        header = SimpleNamespace(src=f"supervisor.{state.host}")
        yield SimpleNamespace(topic=topics.host_state(state.host), payload=state.model_dump(mode="json"), header=header)


def test_a_report_that_cannot_be_dealt_with_does_not_end_the_scheduler(in_service, capsys):
    async def story(service):
        await service._listen(reports(host()))
        good, bad, later = [(await service._submit(Submit(spec=RunSpec(worker="w", name=name)))).run for name in "abc"]
        # Both times are finite, but their difference is not.
        absurd = attempt(bad, "ended", code=0, started_at=-1e308, ended_at=1e308)
        both = host(attempt(good, "ended", code=0), absurd)
        await service._listen(reports(both, both, host(attempt(bad), name="other")))
        assert service.counters()["bad_reports"] == 2
        assert "other" in service.machine.ledger.hosts, "what came after it was heard"
        await service.writer.flush()
        saved = {run.id: run.state for run in service.store.load()}
        assert saved[good] is RunStateName.SUCCEEDED, "what was decided before it failed is saved"
        assert not saved[later].final

    in_service(story)
    said = capsys.readouterr()
    assert (said.out + said.err).count("bad report") == 1


# ── a store that cannot be written ──────────────────────────────────────────────────────────────────


def fails_slowly(service, times):
    """Make the next commits slow, and fail."""
    commit, left = service.store.commit, [None] * times

    def fail(unsaved):
        if left:
            left.pop()
            time.sleep(0.3)
            raise StoreError("store", "disk full")
        commit(unsaved)

    service.store.commit = fail


async def while_written(first, again):
    """Send a command twice, the second time while the first is being written; return both answers."""
    one = asyncio.create_task(first)
    await asyncio.sleep(0.1)
    return await asyncio.gather(one, again, return_exceptions=True)


@pytest.mark.parametrize("failures", [1, 2])
def test_a_repeated_submission_is_refused_if_the_first_could_not_be_saved(in_service, failures):
    async def story(service):
        fails_slowly(service, failures)
        command = Submit(run=RUN, spec=RunSpec(worker="w"))
        answers = await while_written(service._submit(command), service._submit(command))
        assert [getattr(each, "code", each) for each in answers] == ["store_unavailable"] * 2
        assert not answers[1].message.endswith(": ")
        assert RUN not in service.machine.ledger.runs
        if failures == 1:
            assert (await service._submit(command)).run == RUN

    in_service(story)


def test_a_repeated_rerun_is_refused_if_the_first_could_not_be_saved(in_service):
    async def story(service):
        await service._submit(Submit(run=RUN, spec=RunSpec(worker="w")))
        await service._change(Cancel(run=RUN))
        fails_slowly(service, 1)
        command = Rerun(run=RUN)
        answers = await while_written(service._submit(command), service._submit(command))
        assert [getattr(each, "code", each) for each in answers] == ["store_unavailable"] * 2
        assert list(service.machine.ledger.runs) == [RUN]

    in_service(story)


def test_a_submission_that_is_saved_is_acknowledged_again_though_others_are_not(in_service):
    async def story(service):
        command = Submit(run=RUN, spec=RunSpec(worker="w"))
        first = await service._submit(command)
        fails_slowly(service, 1)
        new = Submit(spec=RunSpec(worker="w"))
        other, again = await asyncio.gather(service._submit(new), service._submit(command), return_exceptions=True)
        assert isinstance(other, CommandRefusedError)
        assert again == first

    in_service(story)
