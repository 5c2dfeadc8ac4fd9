"""The operator service as a process on a real bus, with folders as a killed one left them."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import orjson
import pytest
from stack import wait_until

from mosaic_bus import Bus
from mosaic_bus.commands import ShowExperiment
from mosaic_bus.messages import ExperimentStateName
from mosaic_services.experiments.folder import ExperimentFolder
from mosaic_services.experiments.model import Experiment
from mosaic_services.experiments.plan import make_plan
from mosaic_services.experiments.provenance import Found
from mosaic_services.experiments.records import record_line
from mosaic_services.home import StackHome
from mosaic_services.operator.progress import Progress, Shard
from mosaic_services.operator.summary import summarise

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mosaic_bus.messages import ExperimentState

RUN = "01K00000000000000000000001"
HOST = {"node-1": {"processor": "fast", "environments": {}}}


@contextlib.contextmanager
def running(home: StackHome, service: str) -> Iterator[None]:
    with (home.logs / f"{service}.log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", f"mosaic_services.{service}", "--home", str(home.path)], stderr=log
        )
    try:
        yield
    finally:
        process.terminate()
        code = process.wait(20)
    assert code == 0


@pytest.fixture
def home(tmp_path):
    """A home with a broker."""
    home = StackHome.find(tmp_path / "home")
    home.create()
    with running(home, "broker"):
        yield home


def record(episode: int) -> dict[str, Any]:
    more = {"env_seed": episode, "length": 1, "failures": [], "action_hash": "x", "numerics": {"a": "1"}}
    return {"lineup": "a", "episode": episode, "returns": {"agent": 1.0}, "ended": "terminated", **more}


def decided(home: StackHome) -> ExperimentFolder:
    """Write an experiment of two episodes that is decided, and of whose last files none is there."""
    attempt = home.runs / RUN / "1"
    attempt.mkdir(parents=True)
    (attempt / "film.mp4").write_bytes(b"film")
    records = [record(1), record(0)]
    (attempt / "episodes.jsonl").write_bytes(b"".join(map(record_line, records)))
    steps = [{"lineup": "a", "episode": each["episode"], "step": 0} for each in records]
    (attempt / "steps.jsonl").write_bytes(b"".join(orjson.dumps(each) + b"\n" for each in steps))

    fields = {"environment": {"id": "X-v0"}, "operators": {"a": {"worker": "random"}}, "episodes": 2, "steps": True}
    folder = ExperimentFolder(home.experiments / "trial")
    folder.write_plan(make_plan(Experiment.model_validate({"name": "trial", **fields}), {}))
    folder.append(map(record_line, records))
    shard = Shard(run=RUN, number=1, play=[("a", 0, 2)], acknowledged=True, settled=True, done=2, host="node-1")
    progress = Progress(
        state=ExperimentStateName.FINISHED, wanted={"a": 2}, shards=[shard], started_at=1.0, ended_at=5.0
    )
    found = Found(hosts=HOST, videos={"a": {0: str(attempt / "film.mp4")}})
    summary = summarise("trial", progress, folder.read_records(keep=False), str(folder.path), 1)
    written = {"progress": progress, "summary": summary, "found": found}
    folder.write_state({name: each.model_dump(mode="json") for name, each in written.items()})
    return folder


def end_of(home: StackHome, name: str) -> ExperimentState:
    """Run the service until an experiment has ended."""

    def ended() -> ExperimentState | None:
        state = bus.request("operator", ShowExperiment(experiment=name), timeout=30)
        return state if state.state.final else None

    with running(home, "operator"), Bus(home.address()) as bus:
        return wait_until(f"{name} ends", ended)


def test_service_killed_while_it_finishes_keeps_steps_videos_and_provenance(home):
    folder = decided(home)
    ended = end_of(home, "trial")
    assert (ended.state, ended.done, ended.ended_at) == (ExperimentStateName.FINISHED, 2, 5.0)
    plan = folder.read_plan()
    assert plan is not None
    assert (plan["state"], plan["elapsed_s"], plan["shards"]) == ("finished", 4.0, 1)
    assert plan["provenance"]["hosts"] == HOST
    assert plan["provenance"]["numerics"] == {"a": ["1"]}
    (video,) = plan["videos_recorded"]
    assert (folder.path / video["path"]).read_bytes() == b"film"
    assert [orjson.loads(each)["episode"] for each in folder.episodes.read_bytes().splitlines()] == [0, 1]
    assert len((folder.path / "steps.jsonl").read_bytes().splitlines()) == 2
    # Ended for good: a later start of the service writes nothing.
    before = folder.plan_file.stat().st_mtime_ns
    assert end_of(home, "trial").state is ExperimentStateName.FINISHED
    assert folder.plan_file.stat().st_mtime_ns == before
