"""How commands print numbers, times, plots and names, and read keys."""

from __future__ import annotations

import math

import pytest
from mosaic_cli import Cli
from ulid import ULID

from mosaic_bus.messages import RunState, RunSummary
from mosaic_services.cli.display.figures import eta_s, loss
from mosaic_services.cli.display.keys import split
from mosaic_services.cli.display.output import ago, duration, number, plain, size, why
from mosaic_services.cli.display.plot import bar, braille, sparkline, thin
from mosaic_services.progress import fraction


def summary(**fields: object) -> RunSummary:
    return RunSummary.model_validate({"run": "r", "attempt": 1, **fields})


def state(name: str = "running", **fields: object) -> RunState:
    known = {"run": str(ULID()), "name": "n", "worker": "w", "profile": "default", "state": name, "reason": "because"}
    times = {"attempt": 1, "submitted_at": 0.0, "changed_at": 0.0, "started_at": 100.0}
    return RunState.model_validate({**known, **times, **fields})


def test_progress_and_time_left():
    assert fraction(summary()) is None
    assert fraction(summary(step=50, total_steps=200, episodes=9, total_episodes=10)) == 0.25
    assert eta_s(state(), summary(step=50, total_steps=200, steps_per_s=10), 110) == 15
    assert eta_s(state(), summary(episodes=5, total_episodes=20), 110) == 30
    assert eta_s(state(), summary(), 110) is None


def test_loss_prefers_the_policy():
    assert loss(summary(scalars={"charts/sps": 3})) is None
    assert loss(summary(scalars={"losses/value_loss": 2, "losses/policy_loss": 1})) == ("losses/policy_loss", 1)


def test_sparkline_and_bar():
    assert sparkline([], 5) == ""
    assert sparkline([1, 1], 5) == "▄▄"
    assert sparkline([0, 1, 2, math.nan], 8) == "▁▅█"
    assert len(sparkline(list(range(1000)), 12)) == 12
    assert thin([1, 3, 5, 7], 2) == [2, 6]
    assert bar(0.5, 4) == "██░░"
    assert bar(7, 4) == "████"


@pytest.mark.parametrize("values", [[], [1.0], [1.0, 1.0], [0.0, 9.0, 3.0], [math.nan, math.inf], list(range(5000))])
def test_plot_has_the_size_asked_for(values):
    lines = braille([float(value) for value in values], 30, 6)
    assert [len(line) for line in lines] == [30] * 6


def test_plot_of_a_rising_line_rises():
    lines = braille([0.0, 1.0], 10, 3)
    assert lines[0].strip("⠀ ") == lines[0][-len(lines[0].strip("⠀ ")) :]
    assert lines[-1][0] != "⠀"


def test_keys_that_arrive_together_are_told_apart():
    assert split("jq\x1b[A\x1bOB\r\x1b[15~\x1b") == ["down", "q", "up", "down", "enter", "\x1b[15~", "escape"]


def test_words():
    assert [duration(each) for each in (0, 131, 90_061)] == ["00:00:00", "00:02:11", "1 d 01:01:01"]
    assert [ago(100 - each, 100) for each in (0, 5, 200, 7300)] == ["just now", "5 s ago", "3 min ago", "2 h ago"]
    assert [number(each) for each in (12410, 463.21, 0.0214, 4.1, 1.2e-5, -200.0, math.nan, None)] == [
        "12,410", "463.2", "0.0214", "4.1", "1.2e-05", "-200", "nan", "",
    ]  # fmt: skip
    assert [size(each) for each in (49, 6246.4)] == ["49 MB", "6.1 GB"]


def test_text_from_runs_does_not_steer_the_terminal():
    assert plain("a\x1b[2J\x1b[31mb\x07\rc\td\n") == "abc\td\n"


@pytest.mark.slow
def test_a_width_that_is_none_is_no_width(tmp_path):
    cli = Cli(tmp_path / "home")
    cli.env.pop("COLUMNS", None)
    plain = cli("workers", "list").stdout
    for columns in ("", "wide", "0"):
        cli.env["COLUMNS"] = columns
        assert cli("workers", "list").stdout == plain


@pytest.mark.parametrize(
    ("category", "expected"),
    [
        ("infrastructure", "killed by signal 9"),
        ("application", "killed by signal 9: RuntimeError: loss is NaN"),
    ],
)
def test_why_has_the_reason_first_and_the_last_line_only_of_a_failure_of_the_run_itself(category, expected):
    run = RunState(
        run="R",
        name="r",
        worker="w",
        profile="default",
        state="failed",
        reason="killed by signal 9",
        category=category,
        attempt=1,
        submitted_at=0.0,
        changed_at=0.0,
        detail="ALSA lib confmisc.c:855: cannot find card\nRuntimeError: loss is NaN",
    )
    assert why(run) == expected
