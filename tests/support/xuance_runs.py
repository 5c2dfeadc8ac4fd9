"""Configs of small trainings, and code that runs many of them in one process.

One process saves time: importing XuanCe takes longer than these trainings.
"""

SPREAD = {"env_id": "simple_spread_v3", "parallels": 4, "seed": 1}
QUICK = {"start_training": 100, "training_frequency": 4, "batch_size": 32, "buffer_size": 2048}
ON_POLICY = {"buffer_size": 200}
VDN = {**SPREAD, "algorithm": "vdn", "running_steps": 600, "overrides": QUICK}

RUNNER = """
import json, os, sys
from pathlib import Path
from mosaic_worker.config import parse_config
from mosaic_worker.context import RunContext
from mosaic_worker.emitter import Emitter
from mosaic_worker.errors import ConfigError, WorkerError
from mosaic_worker.stop import Stop
from xuance_worker import get_worker_metadata
from xuance_worker.config import XuanCeWorkerConfig
from xuance_worker.runtime import preflight, run

def events_of(name, **given):
    folder = Path.cwd() / name
    folder.mkdir()
    journal = os.open(folder / "journal", os.O_CREAT | os.O_WRONLY)
    config = parse_config(XuanCeWorkerConfig, {"run_id": name, **given}, {})
    plan = preflight(config)
    run(RunContext(get_worker_metadata(), config, Emitter(journal), Stop(), folder, plan=plan))
    return [json.loads(line) for line in (folder / "journal").read_text().splitlines()]

def refusal(given):
    try:
        preflight(parse_config(XuanCeWorkerConfig, {"run_id": "r", **given}, {}))
    except ConfigError as error:
        return str(error)
    return "accepted"
"""


def named(events, name):
    """Return the events with a given name."""
    return [event for event in events if event["event"] == name]
