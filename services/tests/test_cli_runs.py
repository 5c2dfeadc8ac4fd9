"""The commands about runs, against a real stack with the baseline worker."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest
from mosaic_cli import MOSAIC, Cli
from stack import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def cli(tmp_path_factory) -> Iterator[Cli]:
    made = Cli(tmp_path_factory.mktemp("cli") / "home")
    made("workers", "install", "baseline", timeout=280)
    made("up", "--detach", "--cpus", "4")
    yield made
    made("down")


@pytest.fixture(scope="module")
def finished(cli) -> str:
    """A run that has ended, named `finished`."""
    document = cli.json("submit", "--worker", "baseline", "name=finished", "episodes=30", "seed=1", "--wait")
    run = document["runs"][0]
    assert (run["state"], run["complete"], run["summary"]["episodes"]) == ("succeeded", True, 30)
    return run["run"]


def test_wait_ends_with_success_only_when_everything_is_stored(cli, finished):
    shown = cli.json("show", finished)
    (journal,) = [each for each in shown["streams"] if each["kind"] == "journal"]
    assert (journal["stored"], journal["missing"], journal["final"]) == (len(cli.journal(finished)), 0, True)
    assert shown["run"]["exit_code"] == 0
    assert shown["decisions"][0]["event"] == "submitted"
    said = json.loads(cli.journal(finished)[-1])["summary"]
    assert said
    assert shown["results"] == said
    for name in said:
        assert f"summary: {name} " in cli("show", finished).stdout


def test_runs_are_found_by_part_of_the_id_and_by_name(cli, finished):
    for wanted in (finished, finished[-6:], "finished"):
        assert cli.json("show", wanted)["run"]["run"] == finished
    listed = cli("runs").stdout
    assert f"{finished[-6:]}  finished" in listed
    refused = cli("show", "no-such-run", code=2)
    assert refused.stderr.startswith("error: ")
    assert "no-such-run" in refused.stderr


def test_shared_name_means_the_newest_and_for_cancel_the_active_run(cli):
    long = cli.submit("name=twin", "episodes=1000000")
    newest = cli.submit("name=twin", "episodes=1")
    assert cli("watch", newest, "--until-done").returncode == 0
    shown = cli("show", "twin", "--json")
    assert json.loads(shown.stdout)["run"]["run"] == newest
    assert shown.stderr == f"note: 2 runs are called twin; this is {newest[-6:]} (succeeded)\n"
    assert [each["run"] for each in cli.json("cancel", "twin")["cancelled"]] == [long]
    assert cli("show", newest).stderr == "", "an id is not ambiguous"


def test_runs_by_state(cli, finished):
    assert finished in [each["run"] for each in cli.json("runs", "--state", "succeeded")["runs"]]
    assert finished not in [each["run"] for each in cli.json("runs", "--state", "active")["runs"]]
    assert "state 'runing' is unknown" in cli("runs", "--state", "runing", code=2).stderr


def test_failed_run_gives_1_and_says_why(cli):
    done = cli("submit", "--worker", "baseline", "env_id=NoSuchEnvironment-v0", "--wait", code=None)
    if done.returncode == 2:  # refused before it started is as good
        assert "NoSuchEnvironment-v0" in done.stderr
        return
    assert done.returncode == 1
    assert len(re.findall(r"^\w{6} +failed", done.stdout, re.MULTILINE)) == 1, "said once"
    assert "NoSuchEnvironment-v0" in done.stdout


def test_ctrl_c_while_waiting_leaves_the_run_going_and_says_how_to_stop_it(cli):
    waiting = cli.start("submit", "--worker", "baseline", "name=unattended", "episodes=1000000", "--wait")
    wait_until("the run to run", lambda: cli("runs", "--state", "running").stdout.count("unattended"))
    waiting.send_signal(signal.SIGINT)
    _, errors = waiting.communicate(timeout=60)
    run = cli.json("show", "unattended")["run"]
    assert (waiting.returncode, run["state"]) == (130, "running")
    assert f"mosaic cancel {run['run'][-6:]}" in errors
    assert "is being stopped on local" in cli("cancel", "unattended").stdout


def test_cancelled_run_gives_4(cli):
    waiting = cli.start("submit", "--worker", "baseline", "name=victim", "episodes=1000000", "--wait")
    wait_until("the run to run", lambda: cli("runs", "--state", "running").stdout.count("victim"))
    (cancelled,) = cli.json("cancel", "victim")["cancelled"]
    assert (cancelled["name"], "victim" in cancelled["note"]) == ("victim", True)
    output, errors = waiting.communicate(timeout=60)
    assert waiting.returncode == 4, output + errors
    assert "cancelled" in output
    assert "already" in cli("cancel", "victim", code=2).stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--worker", "basline"], "did you mean baseline?"),
        (["--worker", "baseline", "agnt=random"], "did you mean agent?"),
        (["--worker", "baseline", "resources.cpu=1"], "did you mean cpus?"),
        (["--worker", "baseline", "resources.cpus=-1"], "resources.cpus"),
        (["--worker", "baseline", "resources.cpus=4000"], "4000"),
        (["no-such-file.yaml"], "no-such-file.yaml: no such file"),
        ([], "nothing to submit"),
    ],
)
def test_bad_input_is_refused_with_2_and_one_line(cli, words, said):
    refused = cli("submit", *words, code=2)
    assert refused.stderr.startswith("error: ")
    assert said in refused.stderr
    assert refused.stdout == ""


def test_files_that_are_no_yaml_or_no_text_are_called_that(cli, tmp_path):
    (tmp_path / "page.yaml").write_text("worker: baseline\n**bold** and: [\n")
    (tmp_path / "noise.yaml").write_bytes(b"\xf0\xff\x00")
    assert "page.yaml:2:2: not YAML: " in cli("submit", str(tmp_path / "page.yaml"), code=2).stderr
    assert "noise.yaml: not a text file\n" in cli("submit", str(tmp_path / "noise.yaml"), code=2).stderr


def test_what_is_not_there_is_refused_with_what_is(cli, finished):
    assert "has no attempt 5\n       it has one\n" in cli("logs", finished, "--attempt", "5", code=2).stderr
    assert "add --detach" in cli("up", "--json", code=2).stderr
    said = cli("cancel", finished, code=2).stderr
    assert "has succeeded already" in said


def test_narrow_terminals_get_whole_columns(cli, finished):
    def narrow(command: str) -> str:
        environ = {**cli.env, "COLUMNS": "80"}
        return subprocess.run([*MOSAIC, command], env=environ, capture_output=True, text=True, check=True).stdout

    runs = narrow("runs")
    assert max(map(len, runs.splitlines())) <= 80
    (line,) = [each for each in runs.splitlines() if finished[-6:] in each]
    assert line.split()[1:4] == ["finished", "baseline", "succeeded"]
    (titles,) = [each for each in narrow("status").splitlines() if each.startswith("SERVICE")]
    assert titles.split()[-4:] == ["RECEIVED", "PUBLISHED", "DROPPED", "REPAIRED"]


def test_no_stack_gives_3_at_once(tmp_path):
    nowhere = Cli(tmp_path / "nowhere")
    for command in (["runs"], ["status"], ["submit", "--worker", "baseline"], ["watch"], ["logs", "x"]):
        refused = nowhere(*command, code=3, timeout=20)
        assert refused.stderr == f"error: no stack runs in {nowhere.home}\n       start one with: mosaic up\n"


def test_logs_of_an_ended_run(cli, finished):
    journal = cli.journal(finished)
    assert cli("logs", finished, "--events").stdout.splitlines() == journal
    assert cli("logs", finished, "--events", "--tail", "3").stdout.splitlines() == journal[-3:]
    assert cli("logs", finished, "--events", "--follow").stdout.splitlines() == journal
    lines = cli.json("logs", finished, "--events")["lines"]
    assert [each["number"] for each in lines] == list(range(len(journal)))


def test_following_prints_every_line_once_although_telemetry_is_killed(cli):
    run = cli.submit("name=followed", "episodes=1500", "seed=5")
    wait_until("a journal", (cli.home / "runs" / run / "1" / "journal.jsonl").exists)
    following = cli.start("logs", run, "--events", "--follow")
    pid = next(each["pid"] for each in cli.json("status", code=None)["services"] if each["service"] == "telemetry")
    os.kill(pid, signal.SIGKILL)
    output, errors = following.communicate(timeout=120)
    assert following.returncode == 0, errors
    assert output.splitlines() == cli.journal(run)


def test_export_holds_every_event_and_replaces_only_when_told(cli, finished, tmp_path):
    out = tmp_path / "exported"
    document = cli.json("export", finished, "--out", str(out))
    journal = cli.journal(finished)
    events = pq.read_table(out / "events.parquet").to_pylist()
    assert [each["line"] for each in events] == journal
    assert [each["number"] for each in events] == list(range(len(journal)))
    episodes = pq.read_table(out / "episodes.parquet").to_pylist()
    assert [each["return"] for each in episodes] == [
        each["return"] for line in journal if (each := json.loads(line))["event"] == "episode"
    ]
    assert document["complete"] is True
    assert document["rows"]["events"] == len(journal)
    assert json.loads((out / "run.json").read_text())["run"]["run"] == finished
    assert "exists already" in cli("export", finished, "--out", str(out), code=2).stderr
    (out / "logs.parquet").write_text("stale")
    cli("export", finished, "--out", str(out), "--force")
    assert pq.read_table(out / "logs.parquet").num_rows == document["rows"]["logs"]
    assert [each.name for each in tmp_path.iterdir()] == ["exported"]


def test_brackets_and_escapes_in_a_name_are_only_text(cli):
    name = "odd [/bold] [red]x[/red] \x1b[2J"
    run = cli.json("submit", "--worker", "baseline", "episodes=1", "--name", name, "--wait")["runs"][0]
    assert run["name"] == name
    for command in (["runs"], ["show", run["run"]], ["watch", "--once"], ["watch", run["run"], "--once"]):
        output = cli(*command).stdout
        assert "odd [/bold]" in output or command == ["watch", "--once"]
        assert "\x1b" not in output


def test_series(cli, finished):
    assert cli.json("series", finished)["metrics"]["episode_return"] == 30
    series = cli.json("series", finished, "episode_return")
    assert (series["points"], len(series["values"])) == (30, 30)
    assert "episode_return of" in cli("series", finished, "episode_return").stdout
    assert "episode_return" in cli("series", finished, "episode_retrun", code=2).stderr


def test_status_and_stats_as_json(cli):
    status = cli.json("status", code=None)
    services = {"broker", "scheduler", "telemetry", "operator", "gateway", "supervisor.local"}
    assert {each["service"] for each in status["services"]} == services
    (broker,) = cli.json("stats", "broker")["services"]
    assert broker["counters"]["forward_received"] > 0
    # Anybody may add a service to a bus, so it is asked.
    silent = cli("stats", "nobody", code=3).stderr
    assert "nobody does not answer" in silent
    assert "broker, scheduler, telemetry, operator, gateway and supervisor.HOST" in silent


def test_watch_without_a_terminal(cli, finished):
    picture = cli("watch", "--once").stdout
    assert picture.startswith("MOSAIC  local")
    assert finished[-6:] in picture
    assert "30 of 30" in cli("watch", "finished", "--once").stdout
    (row,) = cli.json("watch", "finished", "--once")["runs"]
    assert (row["run"], row["state"], row["summary"]["episodes"], row["usage"]) == (finished, "succeeded", 30, None)
    everything = cli.json("watch", "--once")
    assert finished in [each["run"] for each in everything["runs"]]
    assert everything["hosts"][0]["host"] == "local"
    run = cli.submit("name=watched", "episodes=300")
    lines = cli("watch", run, "--until-done").stdout.splitlines()
    assert re.search(rf"{run[-6:]}  watched  succeeded  100%  step [\d,]+  episode 300", lines[-1])
    lines = cli("submit", "--worker", "baseline", "name=piped", "episodes=20", "--watch").stdout.splitlines()
    assert lines[0].startswith("queued ")
    assert re.search(r"succeeded piped in [\d:]+: 20 episodes, ", lines[-1])


class Terminal:
    """A pseudo-terminal with `mosaic` in it."""

    def __init__(self, cli: Cli, *arguments: str, columns: int = 120) -> None:
        self.master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
        env = {**cli.env, "TERM": "xterm-256color"}
        self.process = subprocess.Popen(
            [*MOSAIC, *arguments], env=env, stdin=slave, stdout=slave, stderr=slave, start_new_session=True
        )
        os.close(slave)
        self.seen = ""

    def wait_for(self, text: str, seconds: float = 30) -> None:
        deadline = time.monotonic() + seconds
        while text not in self.seen:
            assert time.monotonic() < deadline, f"{text!r} not seen within {seconds} s:\n{self.seen[-3000:]}"
            assert self._read(0.1), f"it ended before {text!r} was seen:\n{self.seen[-3000:]}"

    def _read(self, seconds: float) -> bool:
        """Take in what is shown; False once the other side has closed the terminal."""
        if select.select([self.master], [], [], seconds)[0]:
            try:
                self.seen += os.read(self.master, 65536).decode(errors="replace")
            except OSError:
                return False
        return True

    def press(self, keys: bytes) -> None:
        os.write(self.master, keys)

    def end(self, seconds: float = 20) -> int:
        deadline = time.monotonic() + seconds
        while (code := self.process.poll()) is None:
            assert time.monotonic() < deadline, f"it does not end:\n{self.seen[-3000:]}"
            self._read(0.05)
        os.close(self.master)
        return code


@pytest.fixture
def terminals(cli) -> Iterator[Callable[..., Terminal]]:
    """Opens terminals, and ends what a failed test left in them."""
    opened: list[Terminal] = []

    def start(*arguments: str) -> Terminal:
        opened.append(Terminal(cli, *arguments))
        return opened[-1]

    yield start
    for each in opened:
        each.process.kill()
        each.process.wait()


@pytest.mark.parametrize("leave", [b"q", "signal"])
def test_watch_in_a_terminal_opens_a_run_and_leaves(terminals, finished, leave):
    terminal = terminals("watch")
    terminal.wait_for(finished[-6:])
    if leave == "signal":
        terminal.process.send_signal(signal.SIGINT)
    else:
        terminal.press(b"j")
        terminal.press(b"\r")
        terminal.wait_for("over the last 100 episodes")
        terminal.press(b"w")
        terminal.wait_for("[esc] back")
        terminal.press(leave)
    assert terminal.end() == 0
    assert "Traceback" not in terminal.seen


def test_submit_and_watch_in_a_terminal_until_q(terminals):
    terminal = terminals("submit", "--worker", "baseline", "name=shown", "episodes=20", "--watch")
    terminal.wait_for("● succeeded", 60)
    terminal.press(b"q")
    assert terminal.end() == 0


def test_a_reader_that_goes_away_is_no_error(cli, finished):
    shell = f"{' '.join(MOSAIC)} logs {finished} --events | head -n 1"
    done = subprocess.run(["bash", "-c", shell], env=cli.env, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.count("\n") == 1
    assert done.stderr == ""


def test_start_up_imports_only_what_is_needed(cli):
    def imported(*arguments: str) -> str:
        command = [sys.executable, "-X", "importtime", "-m", "mosaic_services.cli", *arguments]
        return subprocess.run(command, env=cli.env, capture_output=True, text=True, timeout=60, check=True).stderr

    helping = imported("--help")
    assert "mosaic_bus" not in helping
    listing = imported("runs")
    for heavy in ("pyarrow", "rich.live", "yaml", "mosaic_services.environments", "numpy"):
        assert f" {heavy}\n" not in listing, heavy
