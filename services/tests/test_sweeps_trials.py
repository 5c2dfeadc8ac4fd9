"""What is decided about a trial, and how a group of runs is shown. No processes."""

from __future__ import annotations

import math

import pytest
from ulid import ULID

from mosaic_bus.messages import RunSpec, RunState, RunSummary
from mosaic_services.cli.queue import in_order
from mosaic_services.cli.sweep.progress import Row, best_first, progress, run_table, why_not
from mosaic_services.comparison.folding import parameters
from mosaic_services.sweeps.trials import RUNGS, Followed, metric_value


def state(name: str, **more: object) -> RunState:
    known = {"run": str(ULID()), "name": "n", "worker": "w", "profile": "default", "reason": "because", "attempt": 1}
    return RunState.model_validate({**known, "state": name, "submitted_at": 0.0, "changed_at": 0.0, **more})


def summary(**more: object) -> RunSummary:
    return RunSummary.model_validate({"run": "r", "attempt": 1, **more})


def part(done: int, value: float | None, **more: object) -> RunSummary:
    return summary(step=done, total_steps=100, events=done, return_mean=value, **more)


def test_every_point_of_the_way_is_reported_once_although_summaries_skip_some():
    followed = Followed("episode_return")
    told = []
    for done, value in ((3, 1.0), (27, 2.0), (28, 3.0), (28, 3.0), (60, 4.0), (100, 5.0)):
        followed.take_summary(part(done, value), 0.0)
        told += followed.reports()
    assert [rung for rung, _ in told] == list(range(1, RUNGS + 1))
    assert told[:5] == [(rung, 2.0) for rung in range(1, 6)]
    assert told[-1] == (RUNGS, 5.0)


def test_a_driver_that_goes_on_reports_only_what_is_new():
    followed = Followed("episode_return", reported=5)
    followed.take_summary(part(30, 2.0), 0.0)
    assert followed.reports() == [(6, 2.0)]


def test_runs_of_unknown_length_are_compared_by_the_doubling_of_their_steps():
    rungs = []
    followed = Followed("loss")
    for step in (1, 10, 100, 1000, 100_000):
        followed.take_summary(summary(step=step, events=step, scalars={"loss": 0.5}), 0.0)
        rungs.append([rung for rung, _ in followed.reports()][-1])
    assert rungs == sorted(set(rungs))


@pytest.mark.parametrize("value", [None, math.nan, math.inf])
def test_what_is_no_number_is_not_reported(value):
    followed = Followed("loss")
    followed.take_summary(summary(step=50, total_steps=100, scalars={} if value is None else {"loss": value}), 0.0)
    assert followed.reports() == []
    assert metric_value(followed.summary, "loss") is None


def test_value_counts_when_all_is_stored_or_nothing_more_comes():
    followed = Followed("episode_return")
    followed.take_summary(part(90, 7.0), 0.0)
    assert followed.outcome(0.0) is None
    followed.take_state(state("succeeded"), 10.0)
    assert followed.outcome(24.0) is None
    late = followed.outcome(26.0)
    assert (late.state, late.value) == ("complete", 7.0)
    followed.take_summary(part(100, 8.0, complete=True), 11.0)
    assert followed.outcome(11.0).value == 8.0


def test_summary_of_an_earlier_attempt_is_not_the_result():
    followed = Followed("episode_return")
    followed.take_summary(part(100, 8.0, complete=True), 0.0)
    followed.take_state(state("succeeded", attempt=2), 0.0)
    assert followed.outcome(1.0) is None


def test_old_news_does_not_undo_the_end():
    followed = Followed("episode_return")
    followed.take_state(state("failed", reason="exit 1"), 0.0)
    followed.take_state(state("running"), 1.0)
    assert (followed.outcome(1.0).state, followed.outcome(1.0).reason) == ("failed", "failed: exit 1")
    followed.take_summary(part(50, 1.0), 0.0)
    followed.take_summary(part(20, 9.0), 0.0)
    assert followed.summary.step == 50


def test_cancelled_is_pruned_only_if_we_pruned_it():
    for pruned_at, expected in ((None, "failed"), (40, "pruned")):
        followed = Followed("episode_return", pruned_at=pruned_at)
        followed.take_state(state("cancelled"), 0.0)
        assert followed.outcome(0.0).state == expected
    finished_first = Followed("episode_return", pruned_at=40)
    finished_first.take_summary(part(100, 3.0, complete=True), 0.0)
    finished_first.take_state(state("succeeded"), 0.0)
    assert finished_first.outcome(0.0).state == "complete"


def test_nothing_is_pruned_that_is_over_or_pruned_already():
    followed = Followed("episode_return")
    followed.take_summary(part(50, 1.0), 0.0)
    assert followed.prunable
    followed.pruned_at = 50
    assert not followed.prunable
    over = Followed("episode_return")
    over.take_summary(part(100, 1.0), 0.0)
    assert not over.prunable


def test_run_without_the_metric_says_what_it_has():
    followed = Followed("accuracy")
    followed.take_summary(part(100, 3.0, complete=True, scalars={"loss": 1.0}), 0.0)
    followed.take_state(state("succeeded"), 0.0)
    assert followed.outcome(0.0).reason == "the run has no finite 'accuracy'; it has: episode_return, loss"


# ── how a group is shown ─────────────────────────────────────────────────────────────────────────────


def test_one_line_of_progress():
    counts = {"succeeded": 37, "running": 3, "starting": 1, "queued": 20, "failed": 2}
    assert progress(counts, 63, 8).plain == "█████░░░ 61 %  37 done · 4 running · 20 queued · 2 failed"
    assert progress({"running": 4}, 4, 4, under_way=2.0).plain.startswith("██░░ 50 %")
    assert progress({}, 0, 4).plain == "░░░░ 0 %  0 done"
    assert progress({"succeeded": 199, "lost": 1}, 200, 4).plain == "████ 100 %  199 done · 1 lost"
    assert progress({"succeeded": 199, "running": 1}, 200, 4).plain.startswith("████ 99 %")


def test_best_first_and_those_without_a_value_last():
    runs = [state("succeeded") for _ in range(4)]
    values = dict(zip([each.run for each in runs], [1.0, 3.0, None, 2.0], strict=True))
    summaries = {run: summary(return_mean=value) for run, value in values.items()}
    order = [values[each.run] for each in best_first(runs, summaries, "episode_return", lowest=False)]
    assert order == [3.0, 2.0, 1.0, None]
    order = [values[each.run] for each in best_first(runs, summaries, "episode_return", lowest=True)]
    assert order == [1.0, 2.0, 3.0, None]


def test_only_what_varies_is_shown():
    specs = {
        str(seed): RunSpec(worker="w", name=f"n{seed}", config={"seed": seed, "env": "e", "net": {"width": 2**seed}})
        for seed in (1, 2)
    }
    assert parameters(specs) == {
        "1": {"config.seed": 1, "config.net.width": 2},
        "2": {"config.seed": 2, "config.net.width": 4},
    }
    assert parameters({"1": specs["1"]}) == {"1": {}}


def test_table_of_a_group_is_followed_by_reasons_if_something_went_wrong():
    good = Row(state("succeeded"), summary(return_mean=2.0, return_std=1.0), {"config.lr": 0.001})
    bad = Row(state("failed", reason="exit 1"), None, {"config.lr": 1e-5})
    assert [str(each.header) for each in run_table([good, bad], "loss").columns] == [
        "RUN", "NAME", "LR", "STATE", "LOSS", "EPISODES", "STEPS",
    ]  # fmt: skip
    assert why_not([good]) == []
    assert [str(line) for line in why_not([good, bad])] == [f"{bad.run.run[-6:]}  failed: exit 1"]
    assert str(why_not([bad] * 12)[-1]).startswith("and 2 more")


def test_queue_is_in_the_order_of_priority_and_then_of_coming():
    given = (("a", 0), ("b", 5), ("c", 0), ("d", 5))
    newest_first = [state("queued", host=each, priority=priority) for each, priority in given][::-1]
    assert [each.host for each in in_order(newest_first)] == ["b", "d", "a", "c"]
