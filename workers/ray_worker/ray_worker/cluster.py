"""The Ray cluster of a run: its own local one, or a running one that the config names.

Ray needs a temporary folder with a short path, since a Unix socket's may have 107 bytes and Ray itself uses some 60.
It is the folder `ray` in the run's folder, whose path can be long, so Ray gets a link to it in `/tmp/mosaic-<uid>`.
The keeper removes both; what a killed keeper left is removed by the next cluster of the user.
"""

import contextlib
import fcntl
import hashlib
import json
import math
import os
import secrets
import shutil
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from mosaic_worker.errors import ConfigError, InfrastructureError
from ray_worker.config import ResourceConfig
from ray_worker.keeper import DONE, end_session
from ray_worker.sitecustomize import HOOK

__all__ = ["RESERVED", "beyond_reservation", "check_cpus", "connect", "cpus_here", "set_variables"]

_FOLDER = "ray"
_LOCK = "keeper.lock"
_LINK = "ray-"
_REACH_S = 5.0
"""Seconds in which a cluster has to accept a connection."""
_ANSWER_S = 15.0
"""Seconds in which it has to answer, which a busy machine does late."""
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + b"\x04" + bytes(5)
"""The beginning of every HTTP/2 connection, which Ray's gRPC uses: a fixed text, and a frame of empty settings."""
_FRAME_HEAD = 9
_FRAME_TYPE = 3
"""Place of a frame's type in its head."""
_SETTINGS = 4
_END_S = 30.0
"""Deadline for the keeper to end Ray."""
_MB = 2**20
RESERVED = "MOSAIC_CPUS"
"""The variable with the CPUs that a run of the platform has reserved."""
_TOKENS = ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")


def set_variables(address: str, environ: MutableMapping[str, str]) -> None:
    """Set Ray's environment variables. Ray reads them when it is imported, so this comes first.

    The run's own cluster has a token of its own and listens on this machine alone. For another one, the user's token is
    used if there is any.
    """
    environ["RAY_USAGE_STATS_ENABLED"] = "0"
    environ.setdefault("RAY_DEDUP_LOGS", "0")
    environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # CUDA_VISIBLE_DEVICES is the platform's.
    if not address:
        environ["RAY_AUTH_MODE"] = "token"
        environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
        environ.pop("RAY_AUTH_TOKEN_PATH", None)
        environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"  # Ray's only switch to 127.0.0.1; it works on Linux, too.
    elif "RAY_AUTH_MODE" not in environ:
        has_token = any(environ.get(name) for name in _TOKENS) or (Path.home() / ".ray" / "auth_token").is_file()
        environ["RAY_AUTH_MODE"] = "token" if has_token else "disabled"


def cpus_here() -> int:
    """The number of CPUs that this process may use."""
    return len(os.sched_getaffinity(0))


def check_cpus(resources: ResourceConfig, cpus: float, where: str) -> None:
    """Refuse a run whose env runners ask for more CPUs than a cluster has: Ray would wait for ever."""
    needed = _cpus_of_runners(resources)
    if needed > cpus:
        raise ConfigError(
            f"resources.num_workers: {resources.num_workers} env runners with {resources.num_cpus:g} CPUs each need "
            f"{needed:g} CPUs, and {where} has {cpus:g}; give fewer, or a smaller num_cpus to share CPUs"
        )


def beyond_reservation(resources: ResourceConfig, environ: Mapping[str, str]) -> str | None:
    """Describe the CPUs of this machine that a run may use beyond its reservation; None if there are none."""
    reserved = float(environ.get(RESERVED) or math.inf)
    used = 1 + (0 if resources.address else _cpus_of_runners(resources))
    if used <= reserved:
        return None
    return (
        f"the run has reserved {reserved:g} CPUs, and may use {used:g}: 1 for the learner, {resources.num_cpus:g} for "
        f"each of {resources.num_workers} env runners. Other runs may be slowed down; submit it with "
        f"resources.cpus={used:g}"
    )


def _cpus_of_runners(resources: ResourceConfig) -> float:
    return resources.num_workers * resources.num_cpus


@contextmanager
def connect(resources: ResourceConfig, run_dir: Path) -> Iterator[dict[str, Any]]:
    """Connect this process to its cluster, and end what was started; yield what the cluster has."""
    with _other(resources.address) if resources.address else _own(resources, run_dir) as address:
        import ray  # noqa: PLC0415 - takes a second; its variables are set now

        _init(ray, address, own=not resources.address)
        try:
            has = ray.cluster_resources()
            check_cpus(resources, has.get("CPU", 0), f"the cluster at {address}")
            yield {"address": address, "nodes": len([node for node in ray.nodes() if node["Alive"]]), **has}
        finally:
            ray.shutdown()


def _init(ray: Any, address: str, *, own: bool) -> None:
    import mosaic_worker  # noqa: PLC0415 - its folder is sent to other machines
    import ray_worker  # noqa: PLC0415 - as above

    # Env runners on other machines have RLlib, but not this worker.
    sent = {} if own else {"py_modules": [str(Path(each.__file__).parent) for each in (mosaic_worker, ray_worker)]}
    runtime_env = {**sent, "worker_process_setup_hook": HOOK}
    try:
        ray.init(address=address, runtime_env=runtime_env, configure_logging=False, log_to_driver=True)
    except Exception as error:
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        if own:
            raise InfrastructureError(f"Ray does not answer at {address}: {reason}") from error
        raise ConfigError(
            f"resources.address: {address!r}: Ray refuses the connection: {reason}. The log may say more; a token that "
            "is missing or wrong (RAY_AUTH_TOKEN) is a usual cause"
        ) from error


@contextmanager
def _other(address: str) -> Iterator[str]:
    """Check the address of a running cluster. Ray itself would try for a long time."""
    host, colon, port = address.rpartition(":")
    if "://" in address or not colon or not host or not port.isdecimal():
        raise ConfigError(
            f"resources.address: {address!r} is not host:port, such as 10.0.0.5:6379, as `ray start --head` prints it"
        )
    try:
        connection = socket.create_connection((host, int(port)), timeout=_REACH_S)
    except (OSError, OverflowError) as error:
        raise ConfigError(f"resources.address: no Ray cluster can be reached at {address!r}: {error}") from error
    with connection:
        uses_tls = os.environ.get("RAY_USE_TLS", "0").lower() in {"1", "true"}  # as Ray reads it
        if not uses_tls and not _speaks_http2(connection):
            raise ConfigError(
                f"resources.address: {address!r} accepts connections, but is not the port of a Ray cluster, which "
                "`ray start --head` prints, or the cluster uses TLS (set RAY_USE_TLS and its certificates)"
            )
    yield address


def _speaks_http2(connection: socket.socket) -> bool:
    """Whether the other side answers as a server of HTTP/2 has to: with its settings."""
    connection.settimeout(_ANSWER_S)
    try:
        connection.sendall(_PREFACE)
        with connection.makefile("rb") as answer:
            head = answer.read(_FRAME_HEAD)
    except OSError:
        return False
    return len(head) == _FRAME_HEAD and head[_FRAME_TYPE] == _SETTINGS


@contextmanager
def _own(resources: ResourceConfig, run_dir: Path) -> Iterator[str]:
    """Start a cluster of the run's own, below a keeper that ends it when this process ends."""
    links = _private_folder(Path(f"/tmp/mosaic-{os.getuid()}"))  # noqa: S108 - made 0700 and its owner checked
    _sweep(links)
    folder = run_dir / _FOLDER
    shutil.rmtree(folder, ignore_errors=True)  # of an earlier attempt in the same folder
    folder.mkdir()
    link = links / f"{_LINK}{hashlib.sha256(os.fsencode(folder)).hexdigest()[:10]}"
    with (folder / _LOCK).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # Held by the keeper, too, so that nobody sweeps what is in use.
        with contextlib.suppress(FileNotFoundError):
            link.unlink()
        link.symlink_to(folder)
        keeper = _start_keeper(resources, folder, link, lock)
    is_well = False
    try:
        yield _address(keeper)
        is_well = True
    finally:
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            keeper.communicate(DONE if is_well else b"", timeout=_END_S)
        if keeper.returncode != 0:
            end_session(keeper.pid)  # The keeper was killed, so nobody else ends Ray.


def _start_keeper(resources: ResourceConfig, folder: Path, link: Path, lock: IO[str]) -> subprocess.Popen[bytes]:
    settings = {
        "folder": str(folder),
        "link": str(link),
        "num_cpus": max(1, math.ceil(_cpus_of_runners(resources))),
        "num_gpus": None,
        "object_store_bytes": resources.object_store_mb * _MB,
    }
    return subprocess.Popen(
        [sys.executable, "-m", "ray_worker.keeper", json.dumps(settings)],
        env={**os.environ, "OMP_NUM_THREADS": str(max(1, int(resources.num_cpus)))},  # of each env runner
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
        pass_fds=[lock.fileno()],
    )


def _address(keeper: subprocess.Popen[bytes]) -> str:
    line = keeper.stdout.readline() if keeper.stdout is not None else b""
    said = json.loads(line) if line else {"error": f"its keeper ended with exit code {keeper.wait()}"}
    if "error" in said:
        raise InfrastructureError(f"Ray could not be started: {said['error']}")
    return str(said["address"])


def _private_folder(path: Path) -> Path:
    """Make a folder that only this user can enter; refuse one that somebody else made."""
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=0o700)
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise InfrastructureError(f"{path} is not a folder that only you can enter: remove it, or correct its mode")
    return path


def _sweep(links: Path) -> None:
    """Remove links, and the folders that they lead to, whose keeper was killed."""
    for link in links.glob(f"{_LINK}*"):
        with contextlib.suppress(OSError):
            folder = link.readlink()
            if not (folder / _LOCK).exists():
                link.unlink()
                continue
            with (folder / _LOCK).open() as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # OSError while a keeper holds it
                link.unlink()
                shutil.rmtree(folder, ignore_errors=True)
