"""The Ray cluster of a run: nothing of it outlives the run, however it ends; and a cluster that was there before."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import time
from pathlib import Path

import psutil
import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

DEADLINE_S = 240
ENDLESS = {
    "algorithm": "PPO",
    "env_id": "CartPole-v1",
    "total_timesteps": 10**9,
    "num_workers": 1,
    "num_cpus": 0.5,
    "network": {"fcnet_hiddens": [16]},
    "algo_params": {"train_batch_size_per_learner": 100, "minibatch_size": 50, "num_epochs": 1},
    "seed": 1,
}


BROKEN = """
from mpe2 import simple_spread_v3

def parallel_env(**given):
    env = simple_spread_v3.parallel_env(**given)
    def step(actions):
        raise ValueError("the world has ended")
    env.step = step
    return env
"""


def wait_until(what, condition):
    end = time.monotonic() + DEADLINE_S
    while not (found := condition()):
        assert time.monotonic() < end, f"not in time: {what}"
        time.sleep(0.02)
    return found


def named(events, name):
    return [event for event in events if event["event"] == name]


class Run:
    """A run of the worker, its journal, and the processes of its cluster."""

    def __init__(self, rllib, name, **config):
        self.folder = rllib.folder / name
        self.folder.mkdir(parents=True)
        (self.folder / "worker.json").write_text(json.dumps({"run_id": name, **ENDLESS, **config}))
        self.log = self.folder / "log.txt"
        command = [rllib.python, "-m", "ray_worker.cli", "--config", "worker.json"]
        with (self.folder / "journal").open("w") as out, self.log.open("w") as log:
            self.process = subprocess.Popen(command, cwd=self.folder, env=rllib.environ, stdout=out, stderr=log)

    def events(self):
        whole = [line for line in (self.folder / "journal").read_text().splitlines(keepends=True) if line[-1] == "\n"]
        return [json.loads(line) for line in whole]

    def wait_for(self, event, count=1):
        def found():
            assert self.process.poll() is None, self.log.read_text()
            return len(named(self.events(), event)) >= count

        wait_until(event, found)

    def session(self):
        """The session of the cluster, which is that of the keeper, as soon as there is one."""
        return wait_until("the keeper", self._keepers)[0]

    def _keepers(self):
        children = psutil.Process(self.process.pid).children()
        return [child.pid for child in children if "ray_worker.keeper" in title(child)]

    def end(self):
        return self.process.wait(timeout=DEADLINE_S)


def members(session):
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, ProcessLookupError):
            if os.getsid(process.pid) == session and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def listening(processes):
    """The addresses at which processes accept connections."""
    found = []
    for process in processes:
        with contextlib.suppress(psutil.Error):
            found += [each.laddr.ip for each in process.net_connections("inet") if each.status == psutil.CONN_LISTEN]
    return found


def has_nothing_of_ray(run, session):
    return not members(session) and not (run.folder / "ray").exists() and not links_to(run.folder)


def links_to(folder):
    return [link for link in Path(f"/tmp/mosaic-{os.getuid()}").glob("ray-*") if link.readlink().is_relative_to(folder)]


@pytest.fixture
def runs(rllib):
    begun = []

    def begin(name, **config):
        begun.append(Run(rllib, name, **config))
        return begun[-1]

    yield begin
    for run in begun:
        run.process.kill()
        run.process.wait()


def test_a_run_is_paused_continued_and_stopped_and_leaves_nothing(runs):
    deep = "a-folder-with-a-long-name/" * 5  # Too long for the path of a Unix socket.
    run = runs(deep + "paused")
    run.wait_for("scalars")
    session = run.session()
    assert {process.name() for process in members(session)} >= {"raylet", "gcs_server"}
    assert links_to(run.folder)
    open_to = listening([*members(session), psutil.Process(run.process.pid)])
    assert open_to
    assert set(open_to) <= {"127.0.0.1", "::ffff:127.0.0.1"}, "no other machine can reach the cluster"
    (raylet,) = [process for process in members(session) if process.name() == "raylet"]
    told = raylet.environ()
    assert (told["RAY_AUTH_MODE"], told["RAY_USAGE_STATS_ENABLED"]) == ("token", "0")
    assert len(told["RAY_AUTH_TOKEN"]) == 64
    assert f"--object_store_memory={200 * 2**20}" in raylet.cmdline()

    run.process.send_signal(signal.SIGUSR1)
    run.wait_for("checkpoint_saved")
    wait_until("it says so", lambda: any("paused" in event["message"] for event in named(run.events(), "log")))
    before = run.events()[-1]
    assert before["event"] == "log"
    run.process.send_signal(signal.SIGUSR2)
    wait_until("it goes on", lambda: run.events()[-1]["event"] in {"scalars", "episode"})

    run.process.terminate()
    assert run.end() == 143
    events = run.events()
    assert events[-1]["event"] == "run_cancelled"
    saved = named(events, "checkpoint_saved")[-1]
    assert (run.folder / saved["path"] / "mosaic.json").is_file()
    assert saved["step"] == events[-1]["step"]
    assert json.loads((run.folder / "analytics.json").read_text())["checkpoints"][-1] == saved["path"]
    assert has_nothing_of_ray(run, session), "the run has ended, and so has its cluster"


def test_an_environment_that_raises_ends_the_run_and_its_cluster(runs, rllib):
    (rllib.folder / "broken.py").write_text(BROKEN)
    apart, inside = (runs(f"raising-{number}", env_id="module:broken", num_workers=number) for number in (1, 0))
    sessions = [run.session() for run in (apart, inside)]
    for run, session in zip((apart, inside), sessions, strict=True):
        assert run.end() == 1, run.log.read_text()
        assert run.events()[-1]["event"] == "run_failed"
        assert has_nothing_of_ray(run, session)
    assert inside.events()[-1]["error"] == "ValueError: the world has ended"
    assert "ray_logs" in apart.events()[-1]["error"]
    assert any("the world has ended" in log.read_text() for log in (apart.folder / "ray_logs").glob("worker-*.err"))


def test_kill_of_the_driver_ends_its_cluster(runs):
    run = runs("killed")
    run.wait_for("scalars")
    session = run.session()
    started = {process.pid for process in members(session)}
    run.process.kill()
    run.end()
    wait_until("every process of the session is gone", lambda: not members(session))
    assert not [pid for pid in started if psutil.pid_exists(pid) and psutil.Process(pid).status() != "zombie"]
    wait_until("the folder is gone", lambda: not (run.folder / "ray").exists() and not links_to(run.folder))
    assert (run.folder / "ray_logs").is_dir(), "the logs of a run that did not end well are kept"


def test_what_a_killed_keeper_left_is_removed_by_the_next_cluster(runs):
    run = runs("keeper")
    run.wait_for("run_started")
    session = run.session()
    os.kill(session, signal.SIGKILL)
    code = run.end()
    assert code == 1
    failed = run.events()[-1]
    assert (failed["event"], failed["category"]) == ("run_failed", "infrastructure")
    assert members(session) == [], "the driver has ended what the keeper could not"
    assert links_to(run.folder), "nobody was there to remove it"
    following = runs("following", total_timesteps=100, num_workers=0)
    session = following.session()
    assert following.end() == 0, following.log.read_text()
    assert has_nothing_of_ray(following, session), "a run that ends by itself leaves nothing"
    assert not (following.folder / "ray_logs").exists()
    assert links_to(run.folder) == []
    assert not (run.folder / "ray").exists()


# ── a cluster that was there before ──────────────────────────────────────────────────────────────────


def free_ports(count):
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


@pytest.fixture
def two_nodes(rllib, tmp_path_factory):
    """Two raylets on this machine, each with one CPU, started as a user starts them."""
    token = "0123456789abcdef" * 4
    environ = {**rllib.environ, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token, "RAY_USAGE_STATS_ENABLED": "0"}
    del environ["PYTHONPATH"]  # The nodes of a cluster have Ray, but not our worker.
    folder = Path(f"/tmp/mosaic-test-{os.getpid()}")
    ray = Path(rllib.python).with_name("ray")
    port, client = free_ports(2)
    common = ["--num-cpus=1", "--object-store-memory=100000000", "--disable-usage-stats", "--block"]
    head = ["--head", f"--port={port}", f"--temp-dir={folder}", f"--ray-client-server-port={client}"]
    nodes = []

    def start(*arguments):
        with (rllib.folder / "nodes.log").open("a") as log:
            command = [ray, "start", *arguments, *common]
            nodes.append(
                subprocess.Popen(command, env=environ, stdout=log, stderr=log, start_new_session=True, cwd=rllib.folder)
            )

    try:
        start(*head, "--include-dashboard=false")
        address_file = folder / "ray_current_cluster"
        address = wait_until("the head is there", lambda: address_file.exists() and address_file.read_text().strip())
        start(f"--address={address}")
        yield address, {"RAY_AUTH_TOKEN": token, "RAY_AUTH_MODE": "token"}, nodes
    finally:
        for node in reversed(nodes):
            node.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                node.wait(timeout=30)
            for process in members(node.pid):
                process.kill()
        subprocess.run(["rm", "-rf", str(folder)], check=True)


def runners_of(node, kind="EnvRunner"):
    """The actors of a run on a node."""
    return [process for process in members(node.pid) if kind in title(process)]


def title(process):
    with contextlib.suppress(psutil.Error):
        return " ".join(process.cmdline())
    return ""


@pytest.mark.timeout(1500)
def test_a_run_spreads_over_two_nodes_and_leaves_the_cluster_as_it_was(rllib, runs, two_nodes):
    address, secrets, nodes = two_nodes
    rllib.environ.update(secrets)
    said = rllib.folder / "nodes.log"
    wait_until("both nodes have joined", lambda: said.read_text().count("Ray runtime started.") == len(nodes))
    batch = {"train_batch_size_per_learner": 100}
    given = {"address": address, "num_workers": 2, "num_cpus": 1, "algorithm": "IMPALA", "algo_params": batch}
    run = runs("spread", **given)
    run.wait_for("scalars")
    learns = lambda: any("total_loss" in event["values"] for event in named(run.events(), "scalars"))  # noqa: E731
    wait_until("it learns from what env runners on other nodes have sampled", learns)
    for node in nodes:
        assert len(runners_of(node, "AgentEnvRunner")) == 1, "one env runner on each node"
    run.process.terminate()
    assert run.end() == 143
    assert named(run.events(), "checkpoint_saved")
    for node in nodes:
        assert node.poll() is None
        wait_until("its env runners are gone", lambda node=node: not runners_of(node))

    killed = runs("killed", address=address, num_workers=1)
    killed.wait_for("scalars")
    killed.process.kill()
    killed.end()
    for node in nodes:
        wait_until("the env runners of a killed driver are gone", lambda node=node: not runners_of(node))
        assert node.poll() is None

    many = runs("many", **{**given, "num_workers": 3})
    rllib.environ["RAY_AUTH_TOKEN"] = "f" * 64
    stranger = runs("stranger", address=address, num_workers=1)
    assert stranger.end() == 2, stranger.log.read_text()
    refused = stranger.events()[-1]["error"]
    assert refused.startswith("resources.address")
    assert "RAY_AUTH_TOKEN" in refused
    assert many.end() == 2
    assert "3 CPUs" in many.events()[-1]["error"]
    assert "has 2" in many.events()[-1]["error"]


def test_a_cluster_that_cannot_be_reached_is_refused(runs):
    (port,) = free_ports(1)
    nobody = runs("nobody", address=f"127.0.0.1:{port}")
    client = runs("client", address="ray://127.0.0.1:10001")
    for run, word in ((nobody, "refused"), (client, "host:port")):
        assert run.end() == 2, run.log.read_text()
        failed = run.events()[-1]
        assert (failed["event"], failed["category"]) == ("run_failed", "configuration")
        assert failed["error"].startswith("resources.address")
        assert word in failed["error"]


PORTS = """
import json, os, socket, threading
from mosaic_worker.errors import ConfigError
from ray_worker import cluster

cluster._ANSWER_S = 1.0

def said(answer):
    with socket.create_server(("127.0.0.1", 0)) as server:
        def serve():
            connection, _ = server.accept()
            with connection:
                connection.recv(100)
                connection.sendall(answer)
        if answer is not None:
            threading.Thread(target=serve).start()
        try:
            with cluster._other(f"127.0.0.1:{server.getsockname()[1]}"):
                return "accepted"
        except ConfigError as error:
            return str(error)

found = {
    "silent": said(None),
    "closed": said(b""),
    "web": said(b"HTTP/1.1 400 Bad Request\\r\\n\\r\\n"),
    "http2": said(bytes(3) + b"\\x04" + bytes(5)),
}
os.environ["RAY_USE_TLS"] = "true"
print(json.dumps({**found, "tls": said(None)}))
"""


def test_a_port_of_another_program_is_refused_before_ray_tries_it(rllib):
    found = rllib.says(PORTS)
    assert (found.pop("http2"), found.pop("tls")) == ("accepted", "accepted")
    for name, said in found.items():
        assert "is not the port of a Ray cluster" in said, name
        assert "RAY_USE_TLS" in said, name


@pytest.mark.timeout(1600)
def test_the_compliance_suite_passes(environment, tmp_path):
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("MOSAIC_", "PYTHON", "RAY_"))}
    done = subprocess.run(
        [environment["python"], "-m", "mosaic_worker.check", "ray", "--json", "--timeout", "600"],
        cwd=tmp_path,
        env={**clean, "PYTHONPATH": environment["site"]},
        capture_output=True,
        text=True,
        check=False,
        timeout=1500,
    )
    report = json.loads(done.stdout)
    assert {check["id"]: check["reason"] for check in report["checks"] if check["status"] == "fail"} == {}
    passed = {check["id"] for check in report["checks"] if check["status"] == "pass"}
    assert {"run", "same-seed", "sigterm", "interactive-agent", "interactive-lanes"} <= passed
