"""A worker built with the kit and started as the platform does: its events, log and exit code."""

import contextlib
import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

from mosaic_worker.events.models import parse_event


def names(tiny):
    return [event["event"] for event in tiny.events()]


def test_a_run_ends_with_what_it_returned(tiny):
    assert tiny.run("--config", tiny.config(episodes=2)) == 0
    assert names(tiny) == ["run_started", "episode", "episode", "run_completed"]
    assert tiny.events()[-1]["summary"]["played"] == 2
    assert tiny.events()[-1]["step"] == 2
    for line in tiny.stdout.read_bytes().splitlines():
        parse_event(line)


def test_a_refused_config_is_reported_and_exits_2(tiny):
    assert tiny.run("--config", tiny.config(episods=2)) == 2
    (event,) = tiny.events()
    assert (event["event"], event["category"]) == ("run_failed", "configuration")
    assert "did you mean 'episodes'?" in event["error"]
    assert "did you mean 'episodes'?" in tiny.stderr.read_text()


def test_an_exception_is_reported_with_its_traceback_and_exits_1(tiny):
    assert tiny.run("--config", tiny.config(mode="raise")) == 1
    event = tiny.events()[-1]
    assert (event["event"], event["category"], event["error"]) == (
        "run_failed",
        "application",
        "RuntimeError: the sky fell",
    )
    assert "in run\n" in event["traceback"]
    assert "Traceback" in tiny.stderr.read_text()
    assert "the sky fell" in tiny.stderr.read_text()


def test_an_infrastructure_error_is_reported_and_its_traceback_is_not_logged(tiny):
    assert tiny.run("--config", tiny.config(mode="disk")) == 1
    event = tiny.events()[-1]
    assert event["category"] == "infrastructure"
    assert "in run\n" in event["traceback"]
    assert "the disk is on fire" in tiny.stderr.read_text()
    assert "Traceback" not in tiny.stderr.read_text()


def test_shutdown_joins_threads_runs_exit_handlers_ends_children_and_skips_module_teardown(tiny):
    assert tiny.run("--config", tiny.config(mode="leave")) == 0
    assert names(tiny)[-1] == "run_completed"
    assert {path.name for path in tiny.folder.iterdir()} >= {"exit-handler", "thread"}
    assert not (tiny.folder / "destroyed").exists()
    assert "not flushed yet" in tiny.stderr.read_text()
    assert processes_in(tiny.folder) == []


def processes_in(folder):
    """Return the ids of processes whose working directory is `folder`."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and (entry / "cwd").readlink() == folder:
                found.append(entry.name)
    return found


def test_preflight_runs_at_the_start_of_every_run(tiny):
    assert tiny.run("--config", tiny.config(mode="missing")) == 2
    (event,) = tiny.events()
    assert (event["event"], event["category"]) == ("run_failed", "configuration")
    assert tiny.run("--config", tiny.config(mode="planned")) == 0
    assert tiny.events()[-1]["summary"]["plan"] == {"would": "planned"}


def test_a_library_that_calls_sys_exit_has_failed(tiny):
    assert tiny.run("--config", tiny.config(mode="exit")) == 1
    assert tiny.events()[-1]["error"] == "the library ended the process with sys.exit(0)"


def nested(tiny, **top):
    path = tiny.folder / "worker.json"
    config = {"episodes": 1, "mode": "resume"}
    path.write_text(json.dumps({"run_id": "r1", "metadata": {"worker": {"config": config}}, **top}))
    return path


@pytest.mark.parametrize("step", [{"step": 7}, {}, {"step": None}])
def test_a_run_resumes_from_the_given_checkpoint(tiny, step):
    assert tiny.run("--config", nested(tiny, resume={"path": "/data/7.pt", **step})) == 0
    (loaded,) = [event for event in tiny.events() if event["event"] == "checkpoint_loaded"]
    assert (loaded["path"], loaded.get("step")) == ("/data/7.pt", step.get("step"))


@pytest.mark.parametrize("top", [{}, {"resume": None}])
def test_a_first_attempt_loads_no_checkpoint(tiny, top):
    assert tiny.run("--config", nested(tiny, **top)) == 0
    assert names(tiny) == ["run_started", "episode", "run_completed"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "given",
    ["/data/7.pt", 7, {}, {"path": None}, [], {"path": ""}, {"path": "/a", "step": "7"}, {"path": "/a", "step": -1}],
)
def test_an_invalid_resume_field_is_refused(tiny, given):
    assert tiny.run("--config", nested(tiny, resume=given)) == 2
    (event,) = tiny.events()
    assert (event["event"], event["category"]) == ("run_failed", "configuration")
    assert "resume" in event["error"]
    assert repr(given) in event["error"]


def test_a_second_terminal_event_is_a_mistake_that_does_not_reach_the_journal(tiny):
    assert tiny.run("--config", tiny.config(mode="end-twice")) == 1
    assert names(tiny) == ["run_started", "run_completed"]
    assert "already ended with run_completed" in tiny.stderr.read_text()


def test_prints_of_python_c_and_children_go_to_the_log(tiny):
    assert tiny.run("--config", tiny.config(mode="prints", episodes=1)) == 0
    assert names(tiny) == ["run_started", "episode", "run_completed"]
    log = tiny.stderr.read_text()
    assert all(f"from {who}" in log for who in ("python", "C", "a child"))


def test_a_child_can_be_handed_the_journal(tiny):
    assert tiny.run("--config", tiny.config(mode="child", episodes=0)) == 0
    assert [event.get("message") for event in tiny.events()] == [None, "child writes", None]
    assert "from a child" in tiny.stderr.read_text()


def test_other_children_do_not_have_the_journal(tiny):
    assert tiny.run("--config", tiny.config(mode="leak", episodes=0)) == 0
    assert "leaked" not in tiny.stdout.read_text()
    assert "Bad file descriptor" in tiny.stderr.read_text()


def test_a_journal_descriptor_in_the_environment_is_used(tiny, tmp_path):
    with (tmp_path / "other.jsonl").open("wb") as other:
        process = subprocess.run(
            [os.sys.executable, "-m", "tiny_worker.cli", "--config", tiny.config(episodes=1)],
            env={**tiny.environ, "MOSAIC_JOURNAL_FD": str(other.fileno())},
            pass_fds=(other.fileno(),),
            stdout=subprocess.PIPE,
            check=True,
            timeout=60,
        )
    assert process.stdout == b""
    assert len((tmp_path / "other.jsonl").read_text().splitlines()) == 3


@pytest.mark.slow
@pytest.mark.parametrize("number", ["999", "text", "1", ""])
def test_a_journal_descriptor_that_is_not_open_is_ignored(tiny, number):
    assert tiny.run("--config", tiny.config(episodes=0), MOSAIC_JOURNAL_FD=number) == 0
    assert names(tiny) == ["run_started", "run_completed"]


@pytest.mark.parametrize("mode", ["wait", "wait-raise"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_cancels_the_run_and_exits_143(tiny, mode, number):
    process = tiny.start("--config", tiny.config(mode=mode))
    tiny.wait_for("run_started")
    process.send_signal(number)
    assert process.wait(60) == 143
    assert names(tiny) == ["run_started", "run_cancelled"]
    assert tiny.events()[-1]["reason"] == signal.Signals(number).name


def test_a_run_that_does_not_listen_ends_at_the_second_sigterm(tiny):
    process = tiny.start("--config", tiny.config(mode="deaf"), MOSAIC_HEARTBEAT_S="0.02")
    tiny.wait_for("run_started")
    process.send_signal(signal.SIGTERM)
    tiny.wait_for("heartbeat")
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 143
    assert names(tiny)[-1] == "run_cancelled"
    assert tiny.events()[-1]["reason"] == "SIGTERM again"


def test_a_forked_child_dies_of_sigterm_as_usual(tiny):
    assert tiny.run("--config", tiny.config(mode="fork", episodes=0)) == 0
    assert tiny.events()[1]["signal"] == -signal.SIGTERM


def test_heartbeats_say_how_far_the_run_is(tiny):
    process = tiny.start("--config", tiny.config(mode="wait"), MOSAIC_HEARTBEAT_S="0.02")
    tiny.wait_for("heartbeat")
    process.terminate()
    process.wait(60)
    beat = next(event for event in tiny.events() if event["event"] == "heartbeat")
    assert beat["uptime_s"] > 0
    assert names(tiny)[-1] == "run_cancelled"


def test_dry_run_says_what_would_run(tiny):
    assert tiny.run("--config", tiny.config(seed=3), "--dry-run") == 0
    (answer,) = tiny.events()
    assert answer["ok"] is True
    assert (answer["run_id"], answer["config"]["seed"]) == ("r1", 3)


def test_dry_run_refuses_with_every_problem(tiny):
    assert tiny.run("--config", tiny.config(seed=-3, x=1), "--dry-run") == 2
    (answer,) = tiny.events()
    assert answer["ok"] is False
    assert [problem.split(":")[0] for problem in answer["problems"]] == ["seed", "x"]


@pytest.mark.parametrize(
    ("text", "problem"),
    [('{"run_id": "r", "metadata": 5}', "metadata: unknown"), (f'{{"seed": {"1" * 5000}}}', "worker.json")],
    ids=["metadata", "number"],
)
def test_a_strange_document_is_refused_by_dry_run_and_run_alike(tiny, text, problem):
    path = tiny.config()
    path.write_text(text)
    assert (tiny.run("--config", path, "--dry-run"), tiny.run("--config", path)) == (2, 2)
    answer, event = tiny.events()
    assert (answer["ok"], event["category"]) == (False, "configuration")
    assert problem in answer["problems"][0]
    assert "Traceback" not in tiny.stderr.read_text()


def test_dry_run_asks_the_worker_what_would_run(tiny):
    assert tiny.run("--config", tiny.config(mode="planned"), "--dry-run") == 0
    assert tiny.events()[-1]["plan"] == {"would": "planned"}


def test_dry_run_refuses_what_the_worker_refuses(tiny):
    assert tiny.run("--config", tiny.config(mode="missing"), "--dry-run") == 2
    (answer,) = tiny.events()
    assert (answer["ok"], answer["problems"]) == (False, ["mode: 'missing' is not installed here"])


def test_describe_is_one_json_object(tiny):
    assert tiny.run("--describe") == 0
    (card,) = tiny.events()
    assert card["metadata"]["name"] == "tiny"
    assert card["capabilities"]["worker_type"] == "tiny"
    assert card["protocol"] == 1
    assert "run_id" in card["config_schema"]["properties"]
    assert "run_id" not in card["config_schema"]["required"]


def test_version_and_missing_config(tiny):
    assert tiny.run("--version") == 0
    assert tiny.stdout.read_text().startswith("tiny 1.2.3 (mosaic-worker ")
    assert tiny.run() == 2
    assert "--config PATH is needed" in tiny.stderr.read_text()


def test_the_environment_names_run_and_folder(tiny, tmp_path):
    (tmp_path / "worker.json").write_text(json.dumps({"episodes": 0}))
    folder = tmp_path / "runs" / "r7"
    assert tiny.run("--config", tmp_path / "worker.json", MOSAIC_RUN_ID="r7", MOSAIC_RUN_DIR=str(folder)) == 0
    assert tiny.events()[0]["run_id"] == "r7"
    assert folder.is_dir()


def test_a_run_folder_that_is_a_file_is_the_fault_of_the_infrastructure(tiny):
    config = tiny.config()
    assert tiny.run("--config", config, MOSAIC_RUN_DIR=str(config)) == 1
    (event,) = tiny.events()
    assert event["category"] == "infrastructure"
    assert "MOSAIC_RUN_DIR" in event["error"]
    assert str(config) in event["error"]
    assert "Traceback" not in tiny.stderr.read_text()


def test_without_stdout_a_worker_says_so(tiny):
    done = subprocess.run(
        ["sh", "-c", 'exec "$@" >&-', "sh", os.sys.executable, "-m", "tiny_worker.cli", "--config", tiny.config()],
        env=tiny.environ,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 1
    assert done.stderr.startswith("mosaic_worker: stdout (descriptor 1) is not open")


def talk(tiny, *requests, config=None):
    process = tiny.start("--config", config or tiny.config(), "--interactive", stdin=subprocess.PIPE)
    process.communicate(b"".join(request + b"\n" for request in requests), timeout=60)
    return process.returncode, tiny.events()


def test_interactive_mode_answers_each_request_with_one_line(tiny):
    code, answers = talk(
        tiny,
        b'{"cmd": "ping", "id": "a"}',
        b'{"cmd": "reset", "seed": 4}',
        b"",
        b'{"cmd": "step", "action": 1, "id": 7}',
        b'{"cmd": "stop"}',
        b'{"cmd": "ping"}',
    )
    assert code == 0
    assert answers == [
        {"type": "pong", "id": "a"},
        {"type": "reset", "observation": [4], "info": {}},
        {
            "type": "step",
            "action": 1,
            "observation": [0],
            "reward": "Infinity",
            "terminated": False,
            "truncated": False,
            "info": {},
            "id": 7,
        },
        {"type": "stopped"},
    ]
    assert "hello from a library" in tiny.stderr.read_text()


def test_a_bad_request_is_answered_and_the_worker_goes_on(tiny):
    bad = [
        (b"{nonsense", "not JSON"),
        (b"\xff", "not JSON"),
        (b"3", "a request is a JSON object"),
        (b"{}", "cmd None is not one of ping, reset"),
        (b'{"cmd": ["ping"]}', "is not one of"),
        (b'{"cmd": "reset", "seed": "x"}', "seed 'x' is not a whole number"),
        (b'{"cmd": "step", "action": "boom"}', "RuntimeError: boom"),
        (b'{"cmd": "select_action"}', "needs observation"),
        (b'{"cmd": "select_action", "observation": 1, "agent": 3}', "agent 3 is not a name"),
        (b'{"cmd": "init_agent", "action_space": {}}', "init_agent is not supported"),
    ]
    code, answers = talk(tiny, *(line for each, _ in bad for line in (each, b'{"cmd": "ping"}')))
    assert code == 0  # end of input ends the worker
    assert [answer["type"] for answer in answers] == ["error", "pong"] * len(bad)
    for (line, message), answer in zip(bad, answers[::2], strict=True):
        assert message in answer["message"], line


@pytest.mark.parametrize(("fields", "code"), [({"mode": "broken"}, 1), ({"nope": 1}, 2)])
def test_a_worker_that_cannot_start_says_so_to_its_client(tiny, fields, code):
    exit_code, answers = talk(tiny, b'{"cmd": "ping"}', config=tiny.config(**fields))
    assert exit_code == code
    assert [answer["type"] for answer in answers] == ["error"]


def test_a_library_that_calls_sys_exit_fails_interactive_mode_and_its_client_hears_of_it(tiny):
    code, (answer,) = talk(tiny, b'{"cmd": "step", "action": "exit"}', b'{"cmd": "ping"}')
    assert (code, answer["message"]) == (1, "the library ended the process with sys.exit(0)")


def test_sigterm_ends_interactive_mode(tiny):
    process = tiny.start("--config", tiny.config(), "--interactive", stdin=subprocess.PIPE)
    process.stdin.write(b'{"cmd": "ping"}\n')
    process.stdin.flush()
    tiny.wait_for("pong")
    process.terminate()
    assert process.wait(60) == 143


def test_sigterm_before_an_interactive_run_reads_requests_cancels_it(make_tiny, variant, tmp_path):
    early = "    os.kill(os.getpid(), signal.SIGTERM)\n"
    read = "from mosaic_worker import cli\nread = cli.read_document\ndef read_late(path):\n" + early
    read += "    return read(path)\ncli.read_document = read_late\n\ndef run(context):"
    tiny = make_tiny(variant(code={"def run(context):": read}), tmp_path)
    process = tiny.start("--config", nested(tiny, interactive=True), stdin=subprocess.PIPE)
    assert process.wait(20) == 143
    assert names(tiny) == ["run_cancelled"]
