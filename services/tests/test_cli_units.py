"""The parts of the command line that need no stack."""

from __future__ import annotations

import fcntl
import io
import json
import math
import os
import subprocess
import sys
import threading

import pytest
from rich.console import Console
from ulid import ULID

from mosaic_bus.messages import HostState, Resources, RunState, RunSummary
from mosaic_services.cli.display.figures import eta_s, loss
from mosaic_services.cli.display.keys import split
from mosaic_services.cli.display.output import ago, duration, number, plain, size
from mosaic_services.cli.display.plot import bar, braille, sparkline, thin
from mosaic_services.cli.watch.endings import Endings
from mosaic_services.cli.watch.feed import View
from mosaic_services.cli.workers.description_page import type_of
from mosaic_services.home import StackHome
from mosaic_services.progress import fraction
from mosaic_services.specs import SpecError, make_spec, parse_word, read_file, split_words
from mosaic_services.stack import leftovers
from mosaic_services.stack.backoff import Backoff
from mosaic_services.stack.locks import holder, holders


def mosaic(*arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "mosaic_services.cli", *arguments],
        env={**os.environ, "NO_COLOR": "1", **env},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


# ── restarts ─────────────────────────────────────────────────────────────────────────────────────────


def test_backoff_doubles_up_to_its_limit_and_is_reset_by_a_long_life():
    backoff = Backoff(0.2, 5.0)
    assert [backoff.delay(1) for _ in range(7)] == [0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]
    assert backoff.delay(31) == 0.2
    assert backoff.delay(1) == 0.4


def test_lock_of_a_dead_process_is_held_by_nobody(tmp_path):
    home = StackHome.find(tmp_path)
    assert holders(home) == {}
    with home.lock("up"):
        assert holder(tmp_path / "up.lock") == os.getpid()
        assert holders(home) == {"up": os.getpid()}
    assert (tmp_path / "up.lock").read_text() == str(os.getpid())
    assert holders(home) == {}


def test_a_look_at_a_lock_does_not_refuse_a_service_that_starts(tmp_path):
    path = tmp_path / "scheduler.lock"
    path.touch()
    with path.open() as looking:
        fcntl.flock(looking, fcntl.LOCK_SH)
        timer = threading.Timer(0.2, lambda: fcntl.flock(looking, fcntl.LOCK_UN))
        timer.start()
        with StackHome.find(tmp_path).lock("scheduler"):
            assert holders(StackHome.find(tmp_path)) == {"scheduler": os.getpid()}
        timer.join()


def test_what_is_left_of_runs_is_found_told_and_killed(tmp_path):
    """One run host that has not written `host.json` yet, and one process that only carries the mark."""
    home = StackHome.find(tmp_path / "home")
    folder = home.runs / "some-run" / "1"
    folder.mkdir(parents=True)
    (home.path / "active").mkdir()
    (home.path / "active" / "some-run.1").touch()
    script = tmp_path / "run_host.py"
    script.write_text("import time; time.sleep(100)")
    host = subprocess.Popen([sys.executable, str(script), str(folder)])
    child = subprocess.Popen(["sleep", "100"], env={**os.environ, "MOSAIC_ATTEMPT_MARK": str(folder)})
    stranger = subprocess.Popen(["sleep", "100"], env={**os.environ, "MOSAIC_ATTEMPT_MARK": f"{folder}0"})
    try:
        assert leftovers.alive(home) == {"some-run": host.pid}
        assert leftovers.strays(home) == {child.pid}
        assert leftovers.terminate(home) == 1
        assert host.wait(10) == -15
        assert json.loads((folder / "stop.json").read_text()) == {"reason": "mosaic up was stopped"}
        host = subprocess.Popen([sys.executable, str(script), str(folder)])
        assert leftovers.kill(home) == (1, 1)
        assert (host.wait(10), child.wait(10)) == (-9, -9)
        assert (leftovers.alive(home), leftovers.strays(home), stranger.poll()) == ({}, set(), None)
    finally:
        for each in (host, child, stranger):
            each.kill()
            each.wait()


# ── specs ────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("word", "keys", "value"),
    [
        ("config.seed=3", ["config", "seed"], 3),
        ("seed=3", ["config", "seed"], 3),
        ("env_kwargs.g=3.7", ["config", "env_kwargs", "g"], 3.7),
        ("resources.cpus=0.5", ["resources", "cpus"], 0.5),
        ("name=a=b", ["name"], "a=b"),
        ("layers=[64, 64]", ["config", "layers"], [64, 64]),
        ("flag=true", ["config", "flag"], True),
        ("empty=", ["config", "empty"], ""),
    ],
)
def test_overrides(word, keys, value):
    assert parse_word(word) == (keys, value)


@pytest.mark.parametrize("word", ["=3", "a..b=3", ".a=1", "x=[1"])
def test_bad_overrides_are_refused(word):
    with pytest.raises(SpecError):
        parse_word(word)


def test_overrides_go_into_a_copy_of_the_file():
    document = {"worker": "baseline", "config": {"seed": 1, "env_kwargs": {"g": 9.8}}}
    spec = make_spec(document, ["seed=2", "env_kwargs.m=1", "grace_s=3"], "here")
    assert spec.config == {"seed": 2, "env_kwargs": {"g": 9.8, "m": 1}}
    assert spec.grace_s == 3
    assert document["config"] == {"seed": 1, "env_kwargs": {"g": 9.8}}


@pytest.mark.parametrize(
    ("document", "said", "hint"),
    [
        ({"wroker": "baseline"}, "here: field 'wroker' is unknown", "did you mean worker?"),
        ({"worker": "x", "learning_rate": 1}, "'learning_rate'", "under config:"),
        ({"worker": "x", "resources": {"memory": 1}}, "here: resources: field 'memory'", "did you mean memory_mb?"),
        ({"config": {}}, "no worker", "worker: baseline"),
        ({"worker": "x", "resources": {"cpus": "many"}}, "resources.cpus", ""),
        ({"worker": "No Such"}, "worker", ""),
    ],
)
def test_what_is_unknown_is_refused_with_near_names(document, said, hint):
    with pytest.raises(SpecError) as caught:
        make_spec(document, [], "here")
    assert said in caught.value.message
    assert hint in caught.value.hint


def test_error_in_a_file_names_its_line_and_one_of_the_command_line_does_not(tmp_path):
    file = tmp_path / "run.yaml"
    file.write_text("worker: baseline\nresources:\n  memory_mb: 5\n  cpus: many\nconfig:\n  seed: 1\n")
    with pytest.raises(SpecError, match=r"run.yaml:4: resources.cpus: must be a number, got 'many'"):
        make_spec(read_file(file), [], str(file))
    with pytest.raises(SpecError, match=r"command line: grace_s: must be a number"):
        make_spec(read_file(file), ["resources.cpus=1", "grace_s=long"], str(file))
    file.write_text("worker: baseline\n\nnmae: x\n")
    with pytest.raises(SpecError, match=r"run.yaml:3: field 'nmae'"):
        make_spec(read_file(file), [], str(file))


def test_mistyped_folder_and_file_are_both_suggested(tmp_path):
    (tmp_path / "configs" / "runs").mkdir(parents=True)
    (tmp_path / "configs" / "runs" / "ppo.yaml").write_text("worker: x")
    with pytest.raises(SpecError) as caught:
        read_file(tmp_path / "confgs" / "runs" / "ppo.yml")
    assert str(tmp_path / "configs" / "runs" / "ppo.yaml") in caught.value.hint


def test_files(tmp_path):
    good = tmp_path / "good.yaml"
    good.write_text("worker: baseline\nconfig: {seed: 3}\n")
    as_json = tmp_path / "good.json"
    as_json.write_text(json.dumps({"worker": "baseline"}))
    assert read_file(good)["config"] == {"seed": 3}
    assert read_file(as_json) == {"worker": "baseline"}
    (tmp_path / "bad.yaml").write_text("worker: [baseline\n")
    (tmp_path / "empty.yaml").write_text("")
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    for name, said in (("bad.yaml", "bad.yaml:2:1"), ("empty.yaml", "empty"), ("binary.yaml", "binary.yaml")):
        with pytest.raises(SpecError, match=said):
            read_file(tmp_path / name)
    with pytest.raises(SpecError) as caught:
        read_file(tmp_path / "god.yaml")
    assert "good.yaml" in caught.value.hint


def test_a_file_whose_name_has_an_equals_sign_is_a_file(tmp_path):
    odd = tmp_path / "a=b.yaml"
    odd.touch()
    assert split_words([str(odd), "seed=3"]) == ([odd], ["seed=3"])


# ── figures and pictures ─────────────────────────────────────────────────────────────────────────────


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


# ── when it is over ──────────────────────────────────────────────────────────────────────────────────


def ended(name: str = "succeeded", *, complete: bool = True) -> tuple[RunState, RunSummary]:
    one = state(name, ended_at=200.0)
    return one, summary(run=one.run, complete=complete)


def view_of(*pairs: tuple[RunState, RunSummary | None], trouble: str = "") -> View:
    return View(
        runs=[one for one, _ in pairs],
        summaries={one.run: found for one, found in pairs if found},
        loaded=True,
        trouble=trouble,
    )


def test_watching_ends_although_the_telemetry_of_a_run_is_lost():
    endings, lost = Endings(), view_of(ended(), ended("lost", complete=False))
    assert not endings.is_over(lost, None, 100.0)
    assert not endings.is_over(lost, None, 114.0)
    assert endings.is_over(lost, None, 116.0)


def test_watching_does_not_end_before_the_summary_is_there():
    one, found = ended()
    endings = Endings()
    assert not endings.is_over(View(), None, 100.0)
    assert not endings.is_over(view_of((one, None)), one.run, 100.0)
    assert not endings.is_over(view_of((one, summary(run=one.run, complete=True, attempt=0))), one.run, 101.0)
    assert endings.is_over(view_of((one, found)), one.run, 102.0)
    assert endings.is_over(view_of(), None, 102.0)


def test_watching_does_not_take_an_outage_for_the_end():
    endings, late = Endings(), ended(complete=False)
    assert not endings.is_over(view_of(late), None, 100.0)
    for now in (110.0, 120.0, 130.0):
        assert not endings.is_over(view_of(late, trouble="telemetry does not answer"), None, now)
    assert not endings.is_over(view_of(late), None, 131.0)
    assert endings.is_over(view_of(late), None, 146.0)


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


@pytest.mark.parametrize("width", [60, 80, 100, 120, 160, 250])
def test_watch_fits_the_terminal(width):
    from mosaic_services.cli.watch.closeup import closeup
    from mosaic_services.cli.watch.panel import table

    runs = [state(name, detail="x" * 300) for name in ("running", "queued", "preparing", "failed", "stopping")]
    figures = {"task": "t" * 99, "returns": [1, 2, 3], "return_mean": -12345.6, "return_std": 1e6, "steps_per_s": 1e6}
    view = View(
        runs=runs,
        hosts=[HostState(host="local", total=Resources(cpus=2, memory_mb=100))],
        summaries={each.run: summary(**figures, run=each.run, scalars={"loss": 1e-9}) for each in runs},
        loaded=True,
        log=["l" * 500],
    )
    for picture in (table(view, width, 30, 200.0), closeup(view, runs[0].run, width, 30, 200.0)):
        console = Console(width=width, file=io.StringIO(), record=True)
        console.print(picture)
        lines = console.export_text().splitlines()
        assert max(map(len, lines)) <= width
        assert len(lines) <= 32


def test_watch_in_80_columns_shows_names_and_whole_times():
    from mosaic_services.cli.watch.panel import Columns, run_line

    run = state().model_copy(update={"name": "ppo-cartpole"})
    far = summary(task="CartPole-v1", run=run.run, step=1, total_steps=10**6, steps_per_s=2.0, return_mean=21.5)
    view = View(runs=[run], summaries={run.run: far}, loaded=True)
    for with_loss in (True, False):
        columns = Columns(80, with_loss=with_loss)
        line = run_line(run, view, columns, 200.0).plain
        assert "ppo-cartpole" in line
        assert line.endswith("5 d 18 h")
        assert columns.titles().plain.endswith("ETA")
        assert len(columns.titles().plain) == len(line) <= 80


@pytest.mark.parametrize("wide", [{"return_mean": -12345.6, "return_std": 1e6}, {"steps_per_s": 1e7}])
def test_watch_in_80_columns_cuts_no_time_whatever_the_figures(wide):
    from mosaic_services.cli.watch.panel import Columns, run_line

    run = state()
    figures = {"step": 1, "total_steps": 10**12, "steps_per_s": 2e6, "returns": [1.0, 2.0, 3.0, 4.0], **wide}
    view = View(runs=[run], summaries={run.run: summary(run=run.run, **figures)}, loaded=True)
    assert run_line(run, view, Columns(80, with_loss=False), 200.0).plain.endswith(" h")


def test_watch_keeps_names_apart_that_differ_at_their_end_and_titles_times_and_losses():
    from mosaic_services.cli.watch.panel import table

    def picture(*runs):
        scalars = {"losses/policy_loss": 0.5}
        figures = {each.run: summary(run=each.run, scalars=scalars) for each in runs}
        view = View(runs=list(runs), summaries=figures, loaded=True)
        console = Console(width=100, file=io.StringIO(), record=True)
        console.print(table(view, 100, 30, 200.0))
        return console.export_text()

    names = [f"ppo-cartpole-with-a-long-name-seed{number}" for number in (1, 2)]
    going = [state().model_copy(update={"name": name}) for name in names]
    over = state("succeeded")
    shown = picture(*going)
    assert "seed1" in shown
    assert "seed2" in shown
    assert "LOSS: losses/policy_loss" in shown
    titles = [next(line for line in text.splitlines() if "RUN" in line) for text in (shown, picture(over))]
    assert [line.split()[-1] for line in titles] == ["ETA", "TOOK"]
    assert "ETA/TOOK" in picture(*going, over)


def test_cpu_and_memory_are_shown_from_100_columns():
    from mosaic_services.cli.watch.panel import Columns

    assert Columns(100, with_loss=False).usage
    assert not Columns(80, with_loss=False).usage
    assert Columns(110, with_loss=True).usage


def test_keys_that_arrive_together_are_told_apart():
    assert split("jq\x1b[A\x1bOB\r\x1b[15~\x1b") == ["down", "q", "up", "down", "enter", "\x1b[15~", "escape"]


def test_words():
    assert [duration(each) for each in (0, 131, 90_061)] == ["00:00:00", "00:02:11", "1 d 01:01:01"]
    assert [ago(100 - each, 100) for each in (0, 5, 200, 7300)] == ["just now", "5 s ago", "3 min ago", "2 h ago"]
    assert [number(each) for each in (12410, 463.21, 0.0214, 4.1, 1.2e-5, -200.0, math.nan, None)] == [
        "12,410", "463.2", "0.0214", "4.1", "1.2e-05", "-200", "nan", "",
    ]  # fmt: skip
    assert [size(each) for each in (49, 6246.4)] == ["49 MB", "6.1 GB"]


def test_types_of_fields_read_like_words():
    schema = {"$defs": {"Kind": {"enum": ["a", "b"]}}}
    assert type_of({"$ref": "#/$defs/Kind"}, schema) == "a | b"
    assert type_of({"anyOf": [{"type": "integer", "minimum": 0}, {"type": "null"}]}, schema) == "integer ≥ 0 | null"
    assert type_of({"type": "array", "items": {"type": "number"}}, schema) == "list of number"


# ── the front ────────────────────────────────────────────────────────────────────────────────────────


def test_help_names_every_command_and_the_exit_codes():
    done = mosaic("--help", COLUMNS="100")
    assert done.returncode == 0
    for name in ("up", "down", "submit", "watch", "workers", "Exit codes"):
        assert name in done.stdout
    assert mosaic().returncode == 0
    assert mosaic("--version").stdout.startswith("mosaic ")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["sbmit"], "Did you mean 'submit'?"),
        (["run"], "did you mean: mosaic submit"),
        (["submit", "--priority", "high"], "must be a whole number"),
        (["runs", "--limit", "many"], "--limit"),
        (["runs", "--nonsense"], "--nonsense"),
        (["show"], "RUN"),
        (
            ["up", "--host", "No Host"],
            "command line: host: use lower-case letters, digits and dashes, at most 63, got 'No Host'",
        ),
        (["up", "--cpus", "0"], "command line: cpus: must be greater than 0, got 0.0"),
        (["up", "--gpus", "-1"], "command line: gpus: give a number from 0 to 1024, or a list"),
        (["up", "--tag", "Fast Disk"], "tag 'Fast Disk': use lower-case letters, digits and"),
        (["up", "--config", "/nowhere/stack.yaml"], "/nowhere/stack.yaml: no such file"),
        (["watch", "--json"], "--once"),
        (["--bus", "nonsense", "runs"], "bus address 'nonsense'"),
        (["workers", "describe", "no-such-worker"], "worker 'no-such-worker' is unknown"),
        (["workers", "install", "/no/such/folder"], "/no/such/folder/pyproject.toml is missing"),
    ],
)
def test_bad_usage_is_one_line_and_2(arguments, said, refusal):
    assert said in refusal(*arguments)


@pytest.mark.slow
def test_nothing_answers_at_an_address(tmp_path):
    done = mosaic("--bus", "tcp://127.0.0.1:1", "runs", "-v", MOSAIC_HOME=str(tmp_path))
    assert done.returncode == 3
    assert "no broker answers at tcp://127.0.0.1:1" in done.stderr
    assert "Traceback" in done.stderr  # asked for with -v


def test_workers_list_as_json(tmp_path):
    found = json.loads(mosaic("workers", "list", "--json", MOSAIC_HOME=str(tmp_path)).stdout)["workers"]
    assert {"worker": "baseline", "profile": "default"}.items() <= found[0].items()


def test_text_from_runs_does_not_steer_the_terminal():
    assert plain("a\x1b[2J\x1b[31mb\x07\rc\td\n") == "abc\td\n"
