"""The run host as a real process, with real workers (small scripts) under it."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import psutil
import pytest
from stack import wait_until

from mosaic_bus.commands import Place
from mosaic_bus.messages import FailureCategory, RunSpec
from mosaic_services.attempt_folder import AttemptFolder, AttemptKey, layout, proc
from mosaic_services.home import StackHome
from mosaic_services.processes import MARK, is_alive
from mosaic_services.supervisor import channel, run_host, run_hosts
from mosaic_services.supervisor.usage import UsageMeter

if TYPE_CHECKING:
    from pathlib import Path

# As a setting may say: other than the default.
LOG_HEAD_BYTES = 5 * 2**20
# A grandchild that hides as well as it can: double fork, new session, no open files, deaf to SIGTERM.
HIDDEN = """
import os, signal, time
if os.fork() == 0:
    os.setsid()
    if os.fork():
        os._exit(0)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    open("hidden.pid.new", "w").write(str(os.getpid()))
    os.rename("hidden.pid.new", "hidden.pid")
    os.closerange(0, 256)
    time.sleep(1000)
while not os.path.exists("hidden.pid"):
    time.sleep(0.01)
"""


class Attempt:
    """An attempt folder with a script as its worker."""

    def __init__(
        self,
        folder: Path,
        script: str,
        grace_s: float = 5.0,
        argv: list[str] | None = None,
        *,
        interactive: bool = False,
        **limits: float,
    ) -> None:
        home = StackHome.find(folder)
        home.create()
        self.folder = AttemptFolder(home, AttemptKey("01RUN", 1))
        asked = {"grace_s": grace_s, "limits": limits, "interactive": interactive}
        spec = RunSpec.model_validate({"worker": "script", **asked})
        placed = Place(run="01RUN", attempt=1, run_name="test", spec=spec)
        self.folder.place(placed, LOG_HEAD_BYTES)
        mark = {MARK: self.folder.process_mark, "PATH": os.environ["PATH"]}
        self.folder.order(placed, argv or [sys.executable, "-I", "-S", "-c", script], [], can_resume=False)
        self.environ = mark
        self.host: subprocess.Popen[bytes] | None = None

    def start(self) -> subprocess.Popen[bytes]:
        self.host = run_hosts.start(self.folder, self.environ)
        return self.host

    def run(self, seconds: float = 30) -> dict[str, Any]:
        assert self.start().wait(seconds) == 0, (self.folder.path / "host-errors.txt").read_text()
        return self.exit_record()

    def exit_record(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder.path / "exit.json").read_text())
        return found

    def journal(self) -> str:
        return self.folder.journal.read_text() if self.folder.journal.exists() else ""

    def wait_for(self, text: str) -> None:
        wait_until(f"the worker wrote {text!r}", lambda: text in self.journal())

    def pid_in(self, name: str) -> int:
        return int(wait_until(name, lambda: (path := self.folder.path / name).exists() and path.read_text()))

    def close(self) -> None:
        if self.host is not None:
            with contextlib.suppress(ProcessLookupError):
                self.host.kill()
            self.host.wait()
        run_hosts.sweep(self.folder)


@pytest.fixture
def attempt(tmp_path):
    made: list[Attempt] = []

    def make(script: str = "", **more: Any) -> Attempt:
        made.append(Attempt(tmp_path, script, **more))
        return made[-1]

    yield make
    for each in made:
        each.close()


def is_running(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def one_child(pid: int) -> list[psutil.Process]:
    """The descendants of a process if there is just one, or else none."""
    children = psutil.Process(pid).children(recursive=True)
    return children if len(children) == 1 else []


@pytest.mark.slow
@pytest.mark.parametrize("code", [0, 1, 2, 143])
def test_exit_code_is_recorded(attempt, code: int):
    record = attempt(f"print('hello'); raise SystemExit({code})").run()
    assert (record["code"], record["signal"], record["stopped"]) == (code, None, False)
    assert record["ended_at"] >= record["started_at"]
    assert record["max_rss_mb"] > 1


def test_stdout_is_the_journal_and_stderr_the_log(attempt):
    one = attempt("import sys; print('event'); print('noise', file=sys.stderr); sys.stdin.read()")
    one.run()
    assert one.journal() == "event\n"
    assert one.folder.log.read_text() == "noise\n"


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGKILL])
def test_signal_that_ended_the_worker_is_recorded(attempt, number: int):
    one = attempt(f"import os; os.kill(os.getpid(), {int(number)})")
    record = one.run()
    assert (record["code"], record["signal"]) == (None, number)
    report = one.folder.exit()
    killed = number == signal.SIGKILL
    assert report.category is (FailureCategory.INFRASTRUCTURE if killed else FailureCategory.APPLICATION)


def test_sigterm_reaches_the_worker_who_ends_as_it_likes(attempt):
    script = "import signal, sys, time; signal.signal(15, lambda *_: sys.exit(143)); print('up', flush=True)"
    one = attempt(f"{script}; time.sleep(1000)")
    host = one.start()
    one.wait_for("up")
    host.terminate()
    assert host.wait(10) == 0
    assert (one.exit_record()["code"], one.exit_record()["stopped"]) == (143, True)


@pytest.mark.parametrize("code", [0, 143])
def test_stop_that_nobody_asked_mosaic_for_is_a_failure_of_the_infrastructure(attempt, code: int):
    script = f"import signal, sys, time; signal.signal(15, lambda *_: sys.exit({code})); print('up', flush=True)"
    one = attempt(f"{script}; time.sleep(1000)")
    host = one.start()
    one.wait_for("up")
    host.terminate()
    assert host.wait(10) == 0
    report = one.folder.exit()
    assert (report.code, report.stopped, report.category) == (code, False, FailureCategory.INFRASTRUCTURE)
    assert report.reason.startswith("stopped by a signal that did not come from MOSAIC after 00:00:0")
    one.folder.ask_to_stop("cancelled by user")
    report = one.folder.exit()
    assert (report.stopped, report.category) == (True, None)
    assert report.reason.startswith("cancelled by user (after")


def test_worker_that_ignores_sigterm_is_killed_after_its_grace(attempt):
    script = "import signal, time; signal.signal(15, signal.SIG_IGN); print('up', flush=True); time.sleep(1000)"
    one = attempt(script, grace_s=0.3)
    host = one.start()
    one.wait_for("up")
    began = time.monotonic()
    host.terminate()
    host.wait(10)
    assert time.monotonic() - began >= 0.3
    assert (one.exit_record()["signal"], one.exit_record()["stopped"]) == (9, True)


def test_stop_before_the_worker_is_up_does_not_wait_for_the_grace_period(attempt):
    for number in range(5):
        one = attempt("import time; time.sleep(1000)", grace_s=1000)
        (one.folder.path / "host.json").unlink(missing_ok=True)
        (one.folder.path / "exit.json").unlink(missing_ok=True)
        host = one.start()
        wait_until("host.json", lambda path=one.folder.path / "host.json": path.exists())
        host.terminate()
        assert host.wait(20) == 0, f"stop {number} was lost"
        assert one.exit_record()["stopped"]


def test_hidden_grandchild_is_gone_after_a_stop(attempt):
    one = attempt(f"{HIDDEN}\nprint('up', flush=True)\ntime.sleep(1000)", grace_s=0.5)
    host = one.start()
    one.wait_for("up")
    hidden = one.pid_in("hidden.pid")
    assert is_running(hidden)
    host.terminate()
    host.wait(15)
    assert not is_running(hidden)
    assert one.exit_record()["stopped"]


def test_stopped_worker_gets_the_priority_back_that_it_gave_up(attempt):
    """Otherwise a stop would take seconds on a busy machine."""
    script = """
import os, signal, sys, time
def group():
    return open("/proc/self/autogroup").read().split()[-1:] if os.path.exists("/proc/self/autogroup") else []
def say(*signals):
    while signals and group() == ["10"]:  # Linux allows a user only ten changes a second.
        time.sleep(0.01)
    print(os.nice(0), *group(), flush=True)
    if signals:
        sys.exit()
signal.signal(signal.SIGTERM, say)
say()
while True:
    signal.pause()
"""
    one = attempt(script, grace_s=60)
    host = one.start()
    one.wait_for("10")
    host.terminate()
    host.wait(60)
    before, after = (line.split() for line in one.journal().splitlines())
    assert set(before) == {"10"}
    assert after == ["0" if os.geteuid() == 0 else "10", "0"][: len(before)]


def test_worker_that_ends_normally_leaves_no_background_child(attempt):
    one = attempt(f"{HIDDEN}\nprint('done', flush=True)")
    record = one.run()
    assert (record["code"], record["stopped"]) == (0, False)
    assert not is_running(one.pid_in("hidden.pid"))


def test_zombies_of_orphans_are_reaped(attempt):
    script = """
import os, time
for _ in range(20):
    if os.fork() == 0:
        if os.fork() == 0:
            os._exit(0)
        os._exit(0)
    os.wait()
print('up', flush=True)
time.sleep(1000)
"""
    one = attempt(script, grace_s=1)
    host = one.start()
    one.wait_for("up")
    children = wait_until("orphans reaped", lambda: one_child(host.pid))
    assert children[0].status() != psutil.STATUS_ZOMBIE, "only the worker is left"


def test_killed_run_host_takes_the_worker_along_and_the_sweep_takes_the_rest(attempt):
    one = attempt(f"{HIDDEN}\nprint(os.getpid(), flush=True)\ntime.sleep(1000)")
    host = one.start()
    worker = int(wait_until("worker", lambda: one.journal().strip()))
    hidden = one.pid_in("hidden.pid")
    host.kill()
    host.wait()
    wait_until("the worker died with its run host", lambda: not is_running(worker))
    assert is_running(hidden), "nobody else could have killed it"
    assert run_hosts.sweep(one.folder) == 1
    assert not is_running(hidden)
    assert not (one.folder.path / "exit.json").exists()
    assert not is_alive(one.folder.host())


def test_sweep_also_takes_descendants_that_cleared_their_environment(attempt):
    bare = "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(1000)'], env={}, start_new_session=True)"
    one = attempt(f"import subprocess, sys, time\nprint({bare}.pid, flush=True)\ntime.sleep(1000)")
    host = one.start()
    bare_pid = int(wait_until("worker", lambda: one.journal().strip()))
    family = one.folder.path / "family.json"
    wait_until("the run host has noted it", lambda: family.exists() and f'"pid": {bare_pid},' in family.read_text())
    host.kill()
    host.wait()
    assert is_running(bare_pid), "nobody else could have killed it"
    run_hosts.sweep(one.folder)
    assert not is_running(bare_pid)


def test_worker_that_cannot_be_started_ends_with_127_and_says_why_in_the_log(attempt):
    one = attempt(argv=["/nonexistent/python", "-m", "nothing"])
    assert one.run()["code"] == 127
    assert "cannot start ['/nonexistent/python'" in one.folder.log.read_text()
    assert "No such file or directory" in one.folder.log.read_text()
    assert one.folder.exit().category is FailureCategory.INFRASTRUCTURE


def test_started_twice_is_one_worker(attempt):
    one = attempt("import time; print('up', flush=True); time.sleep(1000)", grace_s=0.5)
    hosts = [one.start() for _ in range(5)]
    one.wait_for("up")
    wait_until("only one is left", lambda: sum(host.poll() is None for host in hosts) == 1)
    (last,) = [host for host in hosts if host.poll() is None]
    assert one.folder.host()["pid"] == last.pid
    assert one.journal() == "up\n"
    last.terminate()
    last.wait(10)
    assert one.start().wait(100) == 0
    assert one.journal() == "up\n", "an ended attempt is not started again"


def test_exit_record_is_whole_and_last(attempt):
    one = attempt(f"{HIDDEN}\nprint('done', flush=True)")
    host = one.start()
    path = one.folder.path / "exit.json"

    def appeared() -> bool:
        if not path.exists():
            return False
        json.loads(path.read_text())
        return True

    wait_until("exit.json", appeared)
    assert not is_running(one.pid_in("hidden.pid")), "recorded before everything was gone"
    host.wait(10)


def test_worker_starts_with_clean_signals_and_no_foreign_files(attempt):
    script = """
import os, signal
print(sorted(int(name) for name in os.listdir('/proc/self/fd'))[:3], len(os.listdir('/proc/self/fd')))
print(signal.pthread_sigmask(signal.SIG_BLOCK, []), signal.getsignal(15) is signal.SIG_DFL)
print(os.getsid(0) == os.getpid(), os.getcwd())
"""
    one = attempt(script)
    one.run()
    # The fourth is the listing of /proc/self/fd itself.
    assert one.journal().splitlines() == ["[0, 1, 2] 4", "set() True", f"True {one.folder.path}"]


@pytest.mark.slow
def test_log_flood_is_bounded_on_disk_with_offsets_intact(attempt):
    lines = (200 * 2**20) // 100
    script = f"""
import os, time
for start in range(0, {lines}, 10000):
    os.write(2, b"".join(b"%099d\\n" % number for number in range(start, min(start + 10000, {lines}))))
print('written', flush=True)
while True:
    time.sleep(1)
"""
    one = attempt(script, grace_s=0.5)
    host = one.start()
    wait_until("the flood is over", lambda: "written" in one.journal())
    log = one.folder.log
    bound = LOG_HEAD_BYTES + layout.LOG_TAIL_BYTES + run_host.LOG_SLACK_BYTES + 2**20
    wait_until("the middle is given back", lambda: log.stat().st_blocks * 512 <= bound)
    assert log.stat().st_size == lines * 100
    with log.open("rb") as file:
        assert int(file.read(100)) == 0
        file.seek(LOG_HEAD_BYTES // 100 * 100 - 100)
        assert int(file.read(100)) == LOG_HEAD_BYTES // 100 - 1
        file.seek(-100, os.SEEK_END)
        assert int(file.read()) == lines - 1
    host.terminate()
    host.wait(10)
    assert len(one.folder.exit().last_lines) == 20


def test_usage_is_that_of_everything_below_the_run_host(attempt):
    script = """
import os
import re
data = bytearray(64 * 2**20)
os.fork()
print('up', flush=True)
while True:
    pass
"""
    one = attempt(script, grace_s=0.2)
    host = one.start()
    wait_until("both are up", lambda: one.journal().count("up") == 2)
    meter = UsageMeter()
    meter.measure({"one": host.pid}, time.monotonic())

    def busy() -> bool:
        usage = meter.measure({"one": host.pid}, time.monotonic())["one"]
        return usage.processes == 2 and usage.rss_mb > 64 and usage.cpu_percent > 5

    wait_until("usage is seen", busy)
    assert meter.measure({}, time.monotonic()) == {}
    host.terminate()
    host.wait(10)


def test_reason_of_a_failure_is_what_the_worker_said_last(attempt):
    said = {"event": "run_failed", "category": "configuration", "error": "env_id\u2028is unknown", "ts": 1.0}
    one = attempt(f"import json; print(json.dumps({said!r}, ensure_ascii=False)); raise SystemExit(1)")
    one.run()
    report = one.folder.exit()
    assert report.category is FailureCategory.CONFIGURATION
    assert report.reason.startswith("env_id\u2028is unknown: exit 1 after 00:00:0")


@pytest.mark.slow
def test_run_host_starts_its_worker_in_the_time_of_a_few_interpreters(tmp_path, record_property):
    """Compared with bare Python, started in turns, since the machine may be slow or busy."""
    date = ["/bin/sh", "-c", "date +%s.%N"]
    alone = [sys.executable, "-I", "-c", f"import os; os.execv({date[0]!r}, {date!r})"]
    times, ratios = [], []
    for number in range(15):
        one = Attempt(tmp_path / str(number), "", argv=date)
        began = time.time()
        one.start().wait(30)
        times.append(float(one.journal()) - began)
        began = time.time()
        bare = float(subprocess.run(alone, capture_output=True, check=True).stdout) - began
        ratios.append(times[-1] / bare)
    p50_ms, ratio = 1000 * statistics.median(times), statistics.median(ratios)
    record_property("p50_ms", p50_ms)
    print(f"from Popen to the worker's first work: p50 {p50_ms:.1f} ms, {ratio:.1f} times Python alone")
    assert ratio < 8


# ── limits ───────────────────────────────────────────────────────────────────────────────────────

HOLD = """
import os, signal, sys, time
def hold(mb):
    return bytearray(b'x') * (mb * 2**20)
def until(name):
    while not os.path.exists(name):
        time.sleep(0.01)
"""
DEAF = "signal.signal(15, signal.SIG_IGN)"


def warnings_of(one: Attempt) -> list[str]:
    return wait_until("a warning", one.folder.warnings)


@pytest.mark.slow
def test_memory_near_its_limit_warns_once_and_at_the_limit_the_run_is_stopped(attempt):
    script = f"{HOLD}\nheld = hold(160)\nprint('up', flush=True)\nuntil('more')\nheld += hold(100)\ntime.sleep(1000)"
    one = attempt(script, memory_mb=200)
    host = one.start()
    (warning,) = warnings_of(one)
    assert re.fullmatch(r"memory 1[67]\d of 200 MB \(8\d %\)", warning)
    assert not (one.folder.path / "exit.json").exists()
    (one.folder.path / "more").touch()
    assert host.wait(20) == 0
    report = one.folder.exit()
    assert (report.limit, report.stopped, report.signal) == ("memory", False, signal.SIGTERM)
    assert report.category is FailureCategory.APPLICATION
    assert re.fullmatch(r"memory limit: [23]\d\d of 200 MB used", report.reason)
    assert one.folder.warnings() == [warning]
    assert one.folder.log.read_text() == f"mosaic: warning: {warning}\nmosaic: {report.reason}: stopping the run\n"
    assert report.last_lines[0] == f"mosaic: warning: {warning}"


@pytest.mark.slow
def test_memory_of_a_hidden_grandchild_counts_and_nothing_of_it_is_left(attempt):
    hungry = HIDDEN.replace("os.closerange(0, 256)", "held = bytearray(b'x') * (150 * 2**20)")
    one = attempt(f"{hungry}\nprint('up', flush=True)\ntime.sleep(1000)", memory_mb=100, grace_s=0.5)
    assert one.start().wait(100) == 0
    assert one.exit_record()["limit"] == "memory"
    assert not is_running(one.pid_in("hidden.pid"))


@pytest.mark.slow
def test_pages_that_processes_share_count_once(attempt):
    script = f"""{HOLD}
held = hold(100)
for _ in range(4):
    if os.fork() == 0:
        time.sleep(1000)
print('up', flush=True)
until('more')
more = hold(150)
time.sleep(1000)
"""
    one = attempt(script, memory_mb=200, grace_s=0.5)
    host = one.start()
    one.wait_for("up")
    wait_until("it is looked at", (one.folder.path / "family.json").exists)
    family = proc.descendants(host.pid)
    assert len(family) == 5
    assert sum(family.values()) > 500 * 2**20
    assert sum(proc.fair_share(pid, resident) for pid, resident in family.items()) < 160 * 2**20
    assert one.folder.warnings() == []
    (one.folder.path / "more").touch()
    host.wait(20)
    used = int(re.search(r"(\d+) of 200 MB", one.exit_record()["reason"])[1])
    assert 200 <= used < 350


def test_memory_of_a_process_that_does_not_say_its_share_is_what_is_resident():
    assert proc.fair_share(os.getpid(), 7) > 2**20
    assert proc.fair_share(2**22 + 1, 7) == 0, "there is no such process"
    if os.getuid() != 0:
        assert proc.fair_share(1, 7) == 7, "a stranger's"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("on_sigterm", "grace_s", "code", "number"),
    [
        ("lambda *_: sys.exit(0)", 60, 0, None),
        ("lambda *_: sys.exit(143)", 60, 143, None),
        ("signal.SIG_IGN", 0.3, None, 9),
    ],
)
def test_time_limit_is_a_failure_however_the_worker_then_ends(attempt, on_sigterm, grace_s, code, number):
    one = attempt(f"{HOLD}\nsignal.signal(15, {on_sigterm})\ntime.sleep(1000)", grace_s=grace_s, wall_s=1.5)
    assert one.start().wait(100) == 0
    report = one.folder.exit()
    assert (report.limit, report.stopped, report.category) == ("wall", False, FailureCategory.APPLICATION)
    assert (report.code, report.signal) == (code, number)
    assert report.reason == "wall-clock limit of 1.5 s reached"
    assert report.ended_at - report.started_at >= 1.4
    (warning,) = one.folder.warnings()
    assert re.fullmatch(r"time 1\.[2-5] s of 1\.5 s \(\d+ %\)", warning)


@pytest.mark.slow
def test_cancel_that_comes_before_a_limit_stays_a_cancel(attempt):
    one = attempt(f"{HOLD}\n{DEAF}\nprint('up', flush=True)\ntime.sleep(1000)", grace_s=3.5, wall_s=3)
    host = one.start()
    one.wait_for("up")
    one.folder.ask_to_stop("cancelled by user")
    host.terminate()
    assert host.wait(20) == 0
    report = one.folder.exit()
    assert report.ended_at - report.started_at > 3, "the limit passed meanwhile"
    assert (report.limit, report.stopped, report.category) == (None, True, None)


@pytest.mark.slow
def test_cancel_that_comes_after_a_limit_changes_nothing(attempt):
    one = attempt(f"{HOLD}\n{DEAF}\nprint('up', flush=True)\ntime.sleep(1000)", grace_s=1.5, wall_s=0.3)
    host = one.start()
    wait_until("the limit is reached", lambda: one.folder.log.exists() and "limit" in one.folder.log.read_text())
    host.terminate()
    assert host.wait(20) == 0
    assert (one.exit_record()["limit"], one.exit_record()["stopped"]) == ("wall", False)


@pytest.mark.slow
def test_cancel_that_waits_when_a_limit_is_noticed_wins(attempt):
    one = attempt(f"{HOLD}\ntime.sleep(1000)", wall_s=1.5)
    host = one.start()
    wait_until("the run host is up", one.folder.host)
    host.send_signal(signal.SIGSTOP)
    host.terminate()
    began = time.monotonic()
    wait_until("the limit has passed", lambda: time.monotonic() - began > 2)
    host.send_signal(signal.SIGCONT)
    assert host.wait(20) == 0
    assert (one.exit_record()["limit"], one.exit_record()["stopped"]) == (None, True)


def test_run_that_keeps_its_limits_ends_as_ever(attempt):
    one = attempt("print('done')", memory_mb=1000, wall_s=1000)
    record = one.run()
    assert (record["code"], record["limit"], record["reason"]) == (0, None, "")
    assert one.folder.warnings() == []
    assert one.folder.exit().reason.startswith("finished after")


def test_limits_are_looked_at_only_when_it_matters(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # A run host works in the folder of its attempt.
    assert run_host.Limits(None, None, 50.0).look_at == float("inf")
    times = run_host.Limits(None, 100.0, 50.0)
    assert times.look_at == 130.0
    assert times.next_look(130.0, 0.0) == 150.0
    assert times.look_at_time(149.0) is None
    memory = run_host.Limits(100.0, None, 50.0)
    assert memory.look_at == 51.0
    assert memory.next_look(60.0, 0.1) == pytest.approx(65.0), "on a crowded machine, less often"


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.25, "0.2 s"), (59.0, "59 s"), (2880.0, "00:48:00"), (100 * 3600.0, "100:00:00")]
)
def test_lengths_of_time_are_written_for_people(seconds, text):
    assert run_host.duration(seconds) == text


def test_stdin_of_an_interactive_attempt_stays_open_whoever_writes_and_goes_with_it(attempt):
    one = attempt("import sys\nfor line in sys.stdin: print('heard', line, end='', flush=True)", interactive=True)
    host = one.start()
    wait_until("the pipe is there", one.folder.stdin.exists)
    for number in range(3):
        # Each call opens and closes the FIFO, as supervisors come and go.
        channel.tell(one.folder.stdin, b"%d\n" % number)
        wait_until("heard", lambda number=number: f"heard {number}\n" in one.journal())
    host.terminate()
    assert host.wait(30) == 0
    assert one.exit_record()["signal"] == signal.SIGTERM
    assert not one.folder.stdin.exists()


def test_stdin_of_any_other_attempt_is_empty(attempt):
    one = attempt("import sys; print(repr(sys.stdin.read()))")
    one.run()
    assert one.journal() == "''\n"


def test_run_host_that_is_paused_and_continued_goes_on_watching(attempt):
    """`sigtimedwait` of CPython 3.11 returns a signal that nobody sent when it is interrupted past its time-out."""
    one = attempt("import time; print('up', flush=True); time.sleep(1000)")
    host = one.start()
    wait_until("up", one.journal)
    for _ in range(2):
        paused_at = time.monotonic()
        host.send_signal(signal.SIGSTOP)
        # It waits for a signal for one second at most.
        wait_until("paused for long", lambda at=paused_at: time.monotonic() - at > 1.5)
        host.send_signal(signal.SIGCONT)
    process = psutil.Process(host.pid)
    slept = process.num_ctx_switches().voluntary
    wait_until(
        "it has looked again", lambda: host.poll() is not None or process.num_ctx_switches().voluntary > slept + 2
    )
    assert host.poll() is None
    host.terminate()
    assert host.wait(30) == 0
    assert one.exit_record()["stopped"] is True


def test_worker_that_is_paused_and_continued_ends_as_it_would_have(attempt):
    one = attempt("import time; print('up', flush=True); time.sleep(0.5)")
    host = one.start()
    wait_until("up", one.journal)
    (worker,) = psutil.Process(host.pid).children()
    worker.suspend()
    wait_until("paused", lambda: worker.status() == psutil.STATUS_STOPPED)
    paused_at = time.monotonic()
    wait_until("paused past its own end", lambda: time.monotonic() - paused_at > 1.5)
    assert host.poll() is None
    worker.resume()
    assert host.wait(30) == 0
    assert (one.exit_record()["code"], one.exit_record()["stopped"]) == (0, False)
