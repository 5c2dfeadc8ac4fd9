"""Templates as real processes, compared with spawned runs of the same worker."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import psutil
import pytest
from stack import wait_until

from mosaic_bus.commands import Place
from mosaic_bus.messages import RunSpec
from mosaic_services import processes
from mosaic_services.attempt_folder import AttemptFolder, AttemptKey
from mosaic_services.environments import Environment, Profile, Recipe
from mosaic_services.home import StackHome
from mosaic_services.supervisor import channel, run_hosts, templates
from mosaic_services.supervisor.templates import Template, TemplateError, Templates

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

KEY = ("probe", "default")
Value = TypeVar("Value")

# Everything about a process that a worker could notice.
FACTS = """
import json, os, resource, signal, sys, threading, __main__

files = {name: f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd")}
print(json.dumps({
    "argv": sys.argv, "orig_argv": sys.orig_argv, "path": sys.path, "executable": sys.executable,
    "flags": list(sys.flags), "environ": dict(os.environ), "cwd": os.getcwd(), "umask": os.umask(0o22),
    "nice": os.nice(0), "autogroup": open("/proc/self/autogroup").read().split()[-1],
    "is_session": os.getsid(0) == os.getpid(), "is_group": os.getpgid(0) == os.getpid(),
    "files": {name: os.readlink(path) for name, path in files.items() if os.path.lexists(path)},
    "handlers": {number: str(signal.getsignal(number)) for number in range(1, 32)},
    "mask": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])), "threads": threading.active_count(),
    "limits": {name: resource.getrlimit(getattr(resource, name)) for name in dir(resource) if "RLIMIT_" in name},
    "main": [__name__, __file__, __package__, __spec__.name, sys.modules["__main__"] is __main__],
    "same": __main__.__dict__ is globals(), "buffers": [str(type(each.buffer)) for each in (sys.stdout, sys.stderr)],
    "command": open("/proc/self/cmdline").read().rstrip("\\0").split("\\0"),
    "mark": [each for each in open("/proc/self/environ").read().split("\\0") if each.startswith("MOSAIC_ATTEMPT_MARK")],
    "parent": open(f"/proc/{os.getppid()}/cmdline").read().rstrip("\\0").split("\\0")[-2:],
}))
"""

HANG = "import time; print('up', flush=True); time.sleep(1000)"


class Probe:
    """A worker of a few lines that runs in the environment of the tests, and its attempts."""

    def __init__(self, folder: Path, code: str, **modules: str) -> None:
        self.home = StackHome.find(folder / "home")
        self.home.create()
        self.site = folder / "site"
        self.write("probe/__init__", "")
        for name, text in modules.items():
            self.write(name, text)
        # As in every worker, importing the module does nothing.
        guarded = "if __name__ == '__main__':\n" + textwrap.indent(textwrap.dedent(code), "    ")
        self.write("probe/cli", code if "if __name__ ==" in code else guarded)
        self.warm: tuple[str, ...] = ("numpy", *modules)
        self.env = {"PROBE": "of the profile"}
        self.attempts: list[AttemptFolder] = []

    def write(self, module: str, text: str) -> None:
        path = self.site / f"{module}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))

    def environment(self, site: Path | None = None) -> Environment:
        profile = Profile("default", Path("none.lock"), ">=3.11", "", env=self.env, warm=self.warm)
        recipe = Recipe("probe", self.site, "probe", {"default": profile})
        return Environment(recipe, "default", Path(sys.executable), Path(sys.prefix), site or self.site)

    def place(self, grace_s: float = 5.0, *, interactive: bool = False) -> tuple[AttemptFolder, dict[str, str]]:
        folder = AttemptFolder(self.home, AttemptKey(f"01RUN{len(self.attempts)}", 1))
        spec = RunSpec(worker="probe", grace_s=grace_s, interactive=interactive)
        placed = Place(run=folder.key.run, attempt=1, run_name="test", spec=spec)
        folder.place(placed)
        argv = self.environment().command("--config", str(folder.path / "worker.json"))
        folder.order(placed, argv, [], can_resume=False)
        self.attempts.append(folder)
        mark = folder.process_mark
        return folder, {**self.environment().environ(), "MOSAIC_RUN_DIR": mark, processes.MARK: mark}

    def with_template(self, scenario: Callable[[Template], Awaitable[Value]]) -> Value:
        """Run a scenario with a template that is ready."""

        async def main() -> Value:
            template = Template(self.environment(), self.environment().environ(), self.home.runs, time.monotonic())
            try:
                await template.preload()
                return await scenario(template)
            finally:
                template.kill()
                await asyncio.to_thread(template.process.wait)

        return asyncio.run(main())

    async def warm_run(self, template: Template) -> AttemptFolder:
        folder, environ = self.place()
        await template.fork(folder, environ)
        await ended(folder)
        return folder

    def cold_run(self) -> AttemptFolder:
        folder, environ = self.place()
        assert run_hosts.start(folder, environ).wait(30) == 0
        return folder

    def both(self) -> tuple[AttemptFolder, AttemptFolder]:
        """Do the same run cold and warm."""
        return self.cold_run(), self.with_template(self.warm_run)

    def close(self) -> None:
        processes.sweep({folder.process_mark for folder in self.attempts})


@pytest.fixture
def probe(tmp_path):
    made: list[Probe] = []

    def make(code: str = "print('up')", **modules: str) -> Probe:
        made.append(Probe(tmp_path, code, **modules))
        return made[-1]

    yield make
    for each in made:
        each.close()


async def until(what: str, condition: Callable[[], object], deadline_s: float = 30) -> None:
    await asyncio.to_thread(wait_until, what, condition, deadline_s)


async def ended(folder: AttemptFolder) -> None:
    await until("the run has ended", (folder.path / "exit.json").exists)


def is_running(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def journal(folder: AttemptFolder) -> str:
    return folder.journal.read_text() if folder.journal.exists() else ""


def record(folder: AttemptFolder) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder.path / "exit.json").read_text())
    return found


# ── what a worker finds, and how it ends ────────────────────────────────────────────────────────────


def test_warm_worker_finds_what_a_spawned_one_finds(probe):
    cold, warm = probe(FACTS).both()
    # They differ in the folder's name and in nothing else.
    facts = json.loads(journal(cold).replace(str(cold.path), "FOLDER"))
    assert json.loads(journal(warm).replace(str(warm.path), "FOLDER")) == facts
    assert facts["mark"] == ["MOSAIC_ATTEMPT_MARK=FOLDER"]
    assert (facts["nice"], facts["is_session"], facts["cwd"]) == (10, True, "FOLDER")
    assert facts["environ"]["PROBE"] == "of the profile"
    assert facts["parent"][0].endswith("run_host.py")
    assert facts["parent"][1] == "FOLDER"
    assert sorted(facts["files"]) == ["0", "1", "2"]
    assert (cold.host()["warm"], warm.host()["warm"]) == (False, True)


@pytest.mark.parametrize(
    "end",
    [
        "pass",
        "raise SystemExit",
        "raise SystemExit(143)",
        "raise SystemExit('too bad')",
        "raise RuntimeError('too bad')",
        "raise KeyboardInterrupt",
        "import os; os._exit(7)",
        "import os; os.kill(os.getpid(), 9)",
        "import os; os.kill(os.getpid(), 11)",
        "import signal, os; os.kill(os.getpid(), signal.SIGTERM)",
        "import threading, time; threading.Thread(target=lambda: (time.sleep(0.2), print('late'))).start()",
        "import sys; sys.stdout.write('no newline')",
        "import nothing_of_this_name",
    ],
)
def test_warm_worker_ends_as_a_spawned_one_does(probe, end: str):
    cold, warm = probe(f"import atexit; atexit.register(print, 'at exit'); print('up')\n{end}\n").both()
    assert journal(warm) == journal(cold)
    assert [record(warm)[name] for name in ("code", "signal", "stopped")] == [
        record(cold)[name] for name in ("code", "signal", "stopped")
    ]
    assert warm.log.read_text().splitlines()[-1:] == cold.log.read_text().splitlines()[-1:]
    assert warm.exit().category == cold.exit().category


@pytest.mark.slow
def test_unseeded_runs_of_one_template_differ_and_seeded_ones_are_those_of_a_spawn(probe):
    draw = "random.random(), float(numpy.random.random())"
    seed = "random.seed(5); numpy.random.seed(5)"
    code = f"import json, random, numpy; fresh = {draw}; {seed}; print(json.dumps([fresh, {draw}]))"
    one = probe(code)

    async def two(template: Template) -> list[AttemptFolder]:
        return [await one.warm_run(template) for _ in range(2)]

    runs = [json.loads(journal(each)) for each in (one.cold_run(), *one.with_template(two))]
    fresh = [number for run in runs for number in run[0]]
    assert len(set(fresh)) == len(fresh)
    assert runs[0][1] == runs[1][1] == runs[2][1]


@pytest.mark.slow
def test_process_that_a_warm_worker_spawns_finds_its_main_module(probe):
    code = """
    import multiprocessing

    def double(number):
        return 2 * number

    if __name__ == "__main__":
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            print(pool.map(double, [21]))
    """
    cold, warm = probe(code).both()
    assert journal(warm) == journal(cold) == "[42]\n"


def test_library_that_installs_a_signal_handler_keeps_it(probe):
    code = "import signal, handling; print(signal.getsignal(signal.SIGTERM) is handling.stop)"
    handling = "import signal\ndef stop(*_): pass\nsignal.signal(signal.SIGTERM, stop)\n"
    cold, warm = probe(code, handling=handling).both()
    assert journal(warm) == journal(cold) == "True\n"


# ── what a template refuses ─────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (
            "import nothing_of_this_name",
            "cannot import bad: ModuleNotFoundError: No module named 'nothing_of_this_name'",
        ),
        ("raise SystemExit(3)", "cannot import bad: SystemExit: 3"),
        (
            "import threading, time; threading.Thread(target=time.sleep, args=[1000], daemon=True).start()",
            "1 are running",
        ),
        ("import tempfile; file = tempfile.TemporaryFile()", "left files open"),
        ("import os; os.kill(os.getpid(), 9)", "it ended without an answer"),
    ],
)
def test_template_that_no_run_can_be_forked_from_says_why(probe, bad: str, reason: str):
    one = probe(bad=bad)
    with pytest.raises(TemplateError, match=reason):
        one.with_template(one.warm_run)


@pytest.mark.slow
def test_threads_that_a_library_gives_up_for_a_fork_do_no_harm(probe):
    # OpenBLAS starts its threads when it is loaded; on a machine with one core there are none.
    code = "import numpy; a = numpy.ones((400, 400)); print((a @ a).sum())"
    cold, warm = probe(code, blas="import numpy; assert (numpy.ones((400, 400)) @ numpy.ones((400, 400))).any()").both()
    assert journal(warm) == journal(cold) == "64000000.0\n"


def test_run_in_a_folder_whose_name_is_too_long_is_refused_and_the_next_one_served(probe):
    one = probe()

    async def scenario(template: Template) -> AttemptFolder:
        folder, environ = one.place()
        with pytest.raises(TemplateError, match="do not fit"):
            await template.fork(folder, {**environ, processes.MARK: "x" * 5000})
        return await one.warm_run(template)

    assert journal(one.with_template(scenario)) == "up\n"


def test_variable_that_libraries_read_when_imported_must_be_the_same(probe):
    one = probe()

    async def scenario(template: Template) -> None:
        _, environ = one.place()
        assert template.serves(environ)
        assert template.serves({**environ, "CUDA_VISIBLE_DEVICES": "1"})
        assert not template.serves({**environ, "OMP_NUM_THREADS": "8"})
        assert not template.serves({name: value for name, value in environ.items() if name != "PROBE"})

    one.with_template(scenario)


# ── faults ──────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
def test_killed_template_leaves_its_runs_going(probe):
    one = probe(HANG)

    async def scenario(template: Template) -> None:
        folder, environ = one.place()
        await template.fork(folder, environ)
        await until("up", lambda: journal(folder) == "up\n")
        template.process.kill()
        template.process.wait()
        host = folder.host()
        assert processes.is_alive(host)
        run_hosts.stop(host)
        await ended(folder)
        assert record(folder)["stopped"]
        # It writes the exit record a moment before it ends.
        await until("gone", lambda: not processes.is_alive(host))

    one.with_template(scenario)


@pytest.mark.slow
@pytest.mark.parametrize("bad", ["", "import time; time.sleep(1000)"], ids=["ready", "importing"])
def test_template_ends_when_the_supervisor_is_killed_and_runs_go_on(probe, bad: str):
    one = probe(HANG, bad=bad)
    folder, environ = one.place()
    # A process that stands for a supervisor.
    script = f"""
    import asyncio, sys, time
    from pathlib import Path
    from mosaic_services.home import StackHome
    from mosaic_services.environments import Environment, Profile, Recipe
    from mosaic_services.attempt_folder import AttemptFolder, AttemptKey
    from mosaic_services.supervisor.templates import Template

    async def main():
        profile = Profile("default", Path("none.lock"), ">=3.11", "", env={{}}, warm=("bad",))
        recipe = Recipe("probe", Path({str(one.site)!r}), "probe", {{"default": profile}})
        environment = Environment(recipe, "default", Path(sys.executable), Path(sys.prefix), Path({str(one.site)!r}))
        template = Template(environment, environment.environ(), Path({str(one.home.runs)!r}), 0.0)
        print(template.process.pid, flush=True)
        await template.preload()
        await template.fork(AttemptFolder(StackHome.find({str(one.home.path)!r}), AttemptKey("01RUN0", 1)), {environ!r})
        await asyncio.sleep(1000)

    asyncio.run(main())
    """
    with subprocess.Popen([sys.executable, "-c", textwrap.dedent(script)], stdout=subprocess.PIPE) as supervisor:
        pid = int(supervisor.stdout.readline())
        if bad:
            wait_until("it imports", lambda: "template" in " ".join(psutil.Process(pid).cmdline()))
        else:
            wait_until("up", lambda: journal(folder) == "up\n")
        supervisor.kill()
    wait_until("the template is gone", lambda: not is_running(pid))
    if not bad:
        assert processes.is_alive(folder.host())


@pytest.mark.slow
def test_killed_run_host_takes_the_warm_worker_along_and_the_sweep_takes_the_rest(probe):
    hidden = """
    import os, signal, subprocess, sys, time
    children = [subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"], start_new_session=True)]
    if (forked := os.fork()) == 0:
        os.setsid()
        time.sleep(1000)
    print(os.getpid(), children[0].pid, forked, flush=True)
    time.sleep(1000)
    """
    one = probe(hidden)

    async def scenario(template: Template) -> None:
        folder, environ = one.place()
        await template.fork(folder, environ)
        await until("up", lambda: journal(folder).endswith("\n"))
        worker, spawned, forked = map(int, journal(folder).split())
        assert processes.carriers({str(folder.path)}) == {worker, spawned, forked}
        assert processes.run_hosts({str(folder.path)}) == {str(folder.path): folder.host()["pid"]}
        os.kill(folder.host()["pid"], signal.SIGKILL)
        await until("the worker died with its run host", lambda: not is_running(worker))
        assert is_running(spawned)
        assert is_running(forked)
        assert await asyncio.to_thread(run_hosts.sweep, folder) == 2
        assert not is_running(spawned)
        assert not is_running(forked)
        assert is_running(template.process.pid), "the template is nobody's run"

    one.with_template(scenario)


def test_interactive_run_that_is_forked_reads_its_own_stdin(probe):
    one = probe("import os; print('heard', open(os.dup(0)).readline(), end='', flush=True)")

    async def scenario(template: Template) -> None:
        folder, environ = one.place(interactive=True)
        await template.fork(folder, environ)
        await until("the pipe is there", folder.stdin.exists)
        channel.tell(folder.stdin, b"a line\n")
        await ended(folder)
        assert journal(folder) == "heard a line\n"
        assert (record(folder)["code"], folder.stdin.exists()) == (0, False)

    one.with_template(scenario)


def test_template_that_is_paused_and_continued_serves_the_run_that_waited(probe):
    one = probe("print('up')")

    async def scenario(template: Template) -> None:
        process = psutil.Process(template.process.pid)
        process.suspend()
        folder, environ = one.place()
        fork = asyncio.create_task(template.fork(folder, environ))
        await until("paused", lambda: process.status() == psutil.STATUS_STOPPED)
        process.resume()
        await fork
        await ended(folder)
        assert (journal(folder), folder.host()["warm"]) == ("up\n", True)

    one.with_template(scenario)


@pytest.mark.slow
def test_fork_and_spawn_of_one_attempt_are_one_run(probe):
    one = probe("import time; print('up', flush=True); time.sleep(0.5)")

    async def scenario(template: Template) -> None:
        started = set()
        for order in ("fork first", "spawn first", "spawn is up") * 2:
            folder, environ = one.place()
            if order == "fork first":
                await template.fork(folder, environ)
            spawned = run_hosts.start(folder, environ)
            if order == "spawn is up":
                await until("the run host is up", folder.host)
            if order != "fork first":
                await template.fork(folder, environ)
            await ended(folder)
            assert await asyncio.to_thread(spawned.wait, 30) == 0
            assert journal(folder) == "up\n"
            started.add(folder.host()["warm"])
        assert started == {True, False}, "each was first once"

    one.with_template(scenario)


@pytest.mark.slow
def test_runs_asked_for_at_the_same_time_are_all_served(probe):
    one = probe("print('up')")

    async def scenario(template: Template) -> None:
        placed = [one.place() for _ in range(20)]
        await asyncio.gather(*(template.fork(folder, environ) for folder, environ in placed))
        for folder, _ in placed:
            await ended(folder)
            assert journal(folder) == "up\n"
        # No zombies are left.
        await until("reaped", lambda: not psutil.Process(template.process.pid).children())

    one.with_template(scenario)


# ── all templates of a host ─────────────────────────────────────────────────────────────────────────


def with_templates(one: Probe, scenario: Callable[[Templates], Awaitable[None]]) -> None:
    async def main() -> None:
        tasks: set[asyncio.Task[None]] = set()

        def spawn(work: Coroutine[Any, Any, None], _: str) -> None:
            tasks.add(asyncio.create_task(work))

        made = Templates(one.home.runs, spawn, 600.0)
        try:
            await scenario(made)
        finally:
            await made.close()
            await asyncio.gather(*tasks)

    asyncio.run(main())


async def start(
    made: Templates, one: Probe, environment: Environment | None = None, **variables: str
) -> tuple[bool, AttemptFolder]:
    folder, environ = one.place()
    return await made.start(folder, environment or one.environment(), {**environ, **variables}), folder


async def until_ready(made: Templates) -> Template:
    await until("a template is ready", lambda: (found := made._templates.get(KEY)) is not None and found.ready)
    return made._templates[KEY]


@pytest.mark.slow
def test_template_has_the_threads_of_the_run_it_was_started_beside_and_others_do_not_keep_it(probe):
    one = probe("import os; print(os.environ['OMP_NUM_THREADS'])")

    async def scenario(made: Templates) -> None:
        assert not (await start(made, one, OMP_NUM_THREADS="2"))[0]
        template = await until_ready(made)
        warm, folder = await start(made, one, OMP_NUM_THREADS="2")
        assert warm
        await ended(folder)
        assert journal(folder) == "2\n"
        used_at = template.used_at
        assert not (await start(made, one, OMP_NUM_THREADS="1"))[0]
        assert template.used_at == used_at

    with_templates(one, scenario)


def test_first_run_is_spawned_and_the_next_ones_are_forked(probe):
    one = probe()

    async def scenario(made: Templates) -> None:
        assert not (await start(made, one))[0]
        assert len(made) == 1
        template = await until_ready(made)
        for _ in range(2):
            warm, folder = await start(made, one)
            assert warm
            await ended(folder)
        assert template.served == 2
        await made.close()
        assert len(made) == 0
        assert template.process.returncode == -signal.SIGKILL
        assert not (await start(made, one))[0]
        assert len(made) == 0, "nothing is begun at the end"

    with_templates(one, scenario)


def test_profile_that_does_not_ask_for_it_has_no_template(probe):
    one = probe()
    one.warm = None

    async def scenario(made: Templates) -> None:
        assert not (await start(made, one))[0]
        assert len(made) == 0

    with_templates(one, scenario)


@pytest.mark.slow
def test_changed_environment_gets_a_new_template(probe):
    one = probe()

    async def scenario(made: Templates) -> None:
        await start(made, one)
        old = await until_ready(made)
        changed = one.site.with_name("changed")
        one.site.rename(changed)
        one.site = changed
        assert not (await start(made, one))[0]
        await until("the old one is gone", lambda: old.process.poll() is not None)
        new = await until_ready(made)
        assert new is not old
        assert (await start(made, one))[0]
        made.tidy({KEY: "changed-again"}, time.monotonic())
        assert len(made) == 0
        await until("ended", lambda: new.process.poll() is not None)

    with_templates(one, scenario)


@pytest.mark.slow
def test_template_that_nobody_uses_is_ended(probe):
    one = probe()

    async def scenario(made: Templates) -> None:
        await start(made, one)
        template = await until_ready(made)
        known = {KEY: one.environment().fingerprint}
        made.tidy(known, template.used_at + 500)
        assert len(made) == 1
        made.tidy(known, template.used_at + 700)
        assert len(made) == 0
        await until("ended", lambda: template.process.poll() is not None)
        assert not (await start(made, one))[0]
        assert len(made) == 1

    with_templates(one, scenario)


@pytest.mark.slow
def test_killed_template_is_replaced_with_the_next_run(probe):
    one = probe()

    async def scenario(made: Templates) -> None:
        await start(made, one)
        old = await until_ready(made)
        assert (await start(made, one))[0]
        old.process.kill()
        assert not (await start(made, one))[0]
        assert await until_ready(made) is not old
        assert (await start(made, one))[0]

    with_templates(one, scenario)


@pytest.mark.slow
def test_template_that_hangs_does_not_hold_up_runs_nor_start_any_later(probe, monkeypatch):
    monkeypatch.setattr(templates, "_ANSWER_S", 0.3)
    one = probe()

    async def scenario(made: Templates) -> None:
        await start(made, one)
        template = await until_ready(made)
        os.kill(template.process.pid, signal.SIGSTOP)
        placed = [one.place() for _ in range(3)]
        warm = await asyncio.gather(*(made.start(folder, one.environment(), environ) for folder, environ in placed))
        assert warm == [False] * 3
        await until("killed", lambda: template.process.poll() is not None)
        for folder, environ in placed:
            assert folder.host() is None
            await asyncio.to_thread(run_hosts.start(folder, environ).wait)
            assert journal(folder) == "up\n"

    with_templates(one, scenario)


@pytest.mark.slow
def test_template_that_was_of_no_use_is_not_tried_again_until_the_environment_changes(probe, capfd):
    one = probe(bad="import nothing_of_this_name")

    async def scenario(made: Templates) -> None:
        await start(made, one)
        await until("given up", lambda: len(made) == 0)
        assert not (await start(made, one))[0]
        assert len(made) == 0
        one.write("bad", "")
        changed = one.site.with_name("mended")
        one.site.rename(changed)
        one.site = changed
        await start(made, one)
        await until_ready(made)

    with_templates(one, scenario)
    said = "".join(capfd.readouterr())
    assert "cannot import bad: ModuleNotFoundError: No module named 'nothing_of_this_name'" in said


@pytest.mark.slow
def test_import_that_hangs_is_given_up(probe, monkeypatch):
    monkeypatch.setattr(templates, "_IMPORT_S", 0.5)
    one = probe(bad="import time; time.sleep(1000)")

    async def scenario(made: Templates) -> None:
        await start(made, one)
        process = made._templates[KEY].process
        assert not (await start(made, one))[0], "nobody waits for it"
        await until("given up", lambda: process.poll() is not None)
        assert len(made) == 0

    with_templates(one, scenario)
