"""A template: a process that has imported what a worker needs, and from which runs are forked.

The supervisor starts it (`python -m mosaic_worker.template DESCRIPTOR ROOM`) with a socket, on which both sides write
JSON, one object per line. The first line lists the modules to import; the answer is `{"ready": true}` or
`{"error": "why"}`. Each further line requests a run; the answer is `{"pid": …}` or `{"error": "why"}`. The template
forks a **run host**, with the supervisor's own code, and that forks the **worker**. Both are like processes that were
started anew, in session, signals, descriptors, environment, arguments, working folder, /proc entries and random
numbers. Only the imports are already done.

The template computes nothing and starts nothing. It has the environment variables of its runs, since libraries read
them when they are imported. It ends with the supervisor.
"""

import ctypes
import gc
import importlib
import importlib.util
import json
import os
import signal
import socket
import sys
import traceback
from collections.abc import Iterable, Mapping
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from mosaic_worker.process_title import Title, TitleError

__all__ = ["main"]

_MARK = "MOSAIC_ATTEMPT_MARK"
_PR_SET_PDEATHSIG = 1


class RefusedError(Exception):
    """No run can be forked from this process; the message says why."""


class Control:
    """The socket to the supervisor."""

    def __init__(self, descriptor: int) -> None:
        self._socket = socket.socket(fileno=descriptor)
        self._socket.set_inheritable(False)
        self._lines = self._socket.makefile("rb")

    def hear(self) -> dict[str, Any]:
        """Return the next line; end this process if the supervisor has gone."""
        line = self._lines.readline()
        if not line.endswith(b"\n"):
            os._exit(0)
        found: dict[str, Any] = json.loads(line)
        return found

    def say(self, **fields: object) -> None:
        """Answer."""
        try:
            self._socket.sendall(json.dumps(fields).encode() + b"\n")
        except OSError:
            os._exit(0)

    def close(self) -> None:
        """Close it, in a forked process."""
        self._lines.close()
        self._socket.close()


class Template:
    """What a forked process needs to become a run host, and then a worker."""

    def __init__(self, run_host: str, worker: str, modules: Iterable[str]) -> None:
        self._title = _find_title()
        before = _descriptors()
        for module in (*modules, worker):
            _import(module)
        self._run_host = _load(run_host)
        self._spec, self._code = _find_code(worker)
        # The handlers that a worker would have after these imports.
        self._handlers = {number: signal.getsignal(number) for number in self._run_host.SIGNALS}
        _refuse_what_a_fork_would_break(_descriptors() - before)
        gc.collect()
        gc.freeze()
        # The kernel reaps children from here on.
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)

    def serve(self, control: Control) -> dict[str, Any]:
        """Fork a process per request; return, with the request, in the forked process only."""
        while True:
            request = control.hear()
            try:
                self._title.check(self._host_arguments(request["folder"]), request["environ"][_MARK])
                pid = os.fork()
            except (OSError, KeyError, TitleError) as error:
                control.say(error=f"{type(error).__name__}: {error}")
                continue
            if pid == 0:
                control.close()
                return request
            control.say(pid=pid)

    def _host_arguments(self, folder: str) -> list[str]:
        return [sys.executable, str(self._run_host.__file__), folder]

    def be_run_host(self, folder: str, environ: dict[str, str]) -> dict[str, Any]:
        """Be a run host until the end; return, with its order, only in the process that becomes the worker."""
        try:
            os.setsid()
            for number in self._run_host.SIGNALS:
                signal.signal(number, signal.SIG_DFL)
            _redirect(os.open(os.devnull, os.O_RDWR), 0, 1)
            _redirect(os.open(f"{folder}/host-errors.txt", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), 2)
            self._title.write_arguments(self._host_arguments(folder))
            self._run_host.main(folder, environ)
        except self._run_host.Forked as forked:
            order: dict[str, Any] = forked.order
            return order
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)

    def be_worker(self, order: dict[str, Any]) -> None:
        """Become the worker, in the state in which `python -m PACKAGE.cli` would begin."""
        argv: list[str] = order["argv"]
        try:
            self._title.write_arguments(argv)
            self._title.write_variable(order["environ"][_MARK])
            for number, handler in self._handlers.items():
                if handler is not None:
                    signal.signal(number, handler)
            os.environ.clear()
            os.environ.update(order["environ"])
            sys.orig_argv[:] = argv
            sys.argv[:] = [str(self._spec.origin), *argv[argv.index("-m") + 2 :]]
            if not sys.flags.safe_path:
                sys.path[0] = str(Path.cwd())
            _reseed(sys.modules)
            module = ModuleType("__main__")
            module.__spec__, module.__loader__, module.__package__ = self._spec, self._spec.loader, self._spec.parent
            module.__file__ = self._spec.origin
            sys.modules["__main__"] = module
        except BaseException:
            traceback.print_exc()
            os._exit(127)
        exec(self._code, module.__dict__)  # noqa: S102 - the worker's own code, as `python -m` would run it


def _find_title() -> Title:
    try:
        return Title(_MARK)
    except (OSError, ValueError, IndexError, TitleError) as error:
        raise RefusedError(f"its processes could not be told apart: {error}") from None


def _import(module: str) -> None:
    try:
        importlib.import_module(module)
    except BaseException as error:
        traceback.print_exc()
        raise RefusedError(f"cannot import {module}: {type(error).__name__}: {error}") from None


def _load(path: str) -> ModuleType:
    """Load a file that is in no package."""
    spec = importlib.util.spec_from_file_location("mosaic_run_host", path)
    if spec is None or spec.loader is None:
        raise RefusedError(f"{path} is not Python")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _find_code(module: str) -> tuple[ModuleSpec, CodeType]:
    spec = importlib.util.find_spec(module)
    code = getattr(spec.loader, "get_code", lambda _: None)(module) if spec else None
    if spec is None or code is None:
        raise RefusedError(f"{module} has no code that can be run")
    return spec, code


def _descriptors() -> set[str]:
    found = set()
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 - only the names, and one of them is this listing itself
        try:
            found.add(f"{name} ({os.readlink(f'/proc/self/fd/{name}')})")  # noqa: PTH115 - it may be no path at all
        except FileNotFoundError:
            continue
    return found


def _refuse_what_a_fork_would_break(opened: set[str]) -> None:
    """Refuse threads, which do not survive a fork while their locks do, and files, which all runs would share."""
    # Some libraries, such as OpenBLAS, end their threads at a fork: do one first.
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    threads = len(os.listdir("/proc/self/task"))  # noqa: PTH208 - only how many there are
    if threads > 1:
        raise RefusedError(f"the imports have started threads ({threads - 1} are running), which a fork would break")
    if opened:
        raise RefusedError(f"the imports have left files open, which all runs would share: {', '.join(sorted(opened))}")


def _redirect(file: int, *targets: int) -> None:
    for target in targets:
        os.dup2(file, target)
    os.close(file)


def _reseed(modules: Mapping[str, Any]) -> None:
    """Reseed the generators that libraries made during the import, so that runs do not share random numbers.

    Python's own `random` reseeds itself after a fork. A run that sets its seeds is not affected.
    """
    if (numpy_random := modules.get("numpy.random")) is not None:
        numpy_random.seed()
    if (torch := modules.get("torch")) is not None:
        torch.default_generator.seed()


def _die_with(parent: int) -> None:
    """Have the kernel kill this process when the supervisor dies, even during an import that hangs."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(0)


def main() -> None:
    """Be a template; in a forked worker, return or raise as its main module does."""
    # Ignored signals are inherited, as from nohup; a run must start without that.
    for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    control = Control(int(sys.argv[1]))
    wanted = control.hear()
    _die_with(wanted["parent"])
    try:
        template = Template(wanted["run_host"], wanted["worker"], wanted["modules"])
    except RefusedError as error:
        control.say(error=str(error))
        os._exit(1)
    control.say(ready=True)
    request = template.serve(control)
    order = template.be_run_host(request["folder"], request["environ"])
    template.be_worker(order)


if __name__ == "__main__":
    main()
