"""The Python examples of docs/write-a-worker.md run, and its signatures match the kit."""

import ast
import inspect
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import mosaic_worker
from mosaic_worker.config import parse_config
from mosaic_worker.frames.settings import FrameConfig

KIT = Path(__file__).resolve().parents[1]
PAGE = KIT.parents[1] / "docs" / "write-a-worker.md"
BLOCKS = dict(re.findall(r"<!-- block: (\w+) -->\n```python\n(.*?)```", PAGE.read_text(), re.DOTALL))


def test_the_smallest_worker_of_the_documentation_runs(tmp_path):
    (tmp_path / "coin.py").write_text(BLOCKS["smallest"])
    (tmp_path / "worker.json").write_text(json.dumps({"run_id": "r1", "episodes": 3, "seed": 7}))
    done = subprocess.run(
        [sys.executable, "coin.py", "--config", "worker.json"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(KIT)},
        capture_output=True,
        check=True,
        timeout=60,
    )
    events = [json.loads(line) for line in done.stdout.splitlines()]
    assert [event["event"] for event in events] == ["run_started", *["episode"] * 3, "run_completed"]
    assert events[-1]["summary"] == {"heads": sum(event["return"] for event in events[1:4])}


def test_the_environment_of_the_documentation_is_shown(tmp_path, monkeypatch):
    pytest.importorskip("gymnasium", reason="gymnasium is in the workers' environments")
    monkeypatch.setenv("MOSAIC_FASTLANE_DIR", str(tmp_path))
    config = parse_config(FrameConfig, {"run_id": "r", "fastlane_video_mode": "single"}, {})
    names = {"config": config, "context": SimpleNamespace(run_dir=tmp_path, emitter=None)}
    exec(BLOCKS["frames"], names)
    env = names["env"]
    # CartPole needs pygame to render, which only the workers' environments have.
    monkeypatch.setattr(env.unwrapped, "render", lambda: np.zeros((2, 2, 3), np.uint8))
    env.reset(seed=1)
    assert (tmp_path / "main.ring").exists()
    env.close()


def parameters_of(function):
    """Return names and kinds of the parameters in a documented function's AST."""
    arguments = function.args
    names = [(each.arg, "positional") for each in (*arguments.posonlyargs, *arguments.args)]
    names += [(each.arg, "keyword") for each in arguments.kwonlyargs]
    return [*names, *([(arguments.kwarg.arg, "any")] if arguments.kwarg else [])]


def real_parameters(function):
    kinds = {inspect.Parameter.KEYWORD_ONLY: "keyword", inspect.Parameter.VAR_KEYWORD: "any"}
    function = getattr(function, "__func__", function)
    return [(each.name, kinds.get(each.kind, "positional")) for each in inspect.signature(function).parameters.values()]


def defaults_of(kind):
    """Return the fields of a pydantic model or a dataclass."""
    return getattr(kind, "model_fields", None) or getattr(kind, "__dataclass_fields__", None)


def test_the_signatures_of_the_documentation_are_those_of_the_kit():
    documented = ast.parse(BLOCKS["signatures"]).body
    for node in documented:
        real = getattr(mosaic_worker, node.name)
        if isinstance(node, ast.FunctionDef):
            assert parameters_of(node) == real_parameters(real), node.name
            continue
        for part in node.body:
            if isinstance(part, ast.FunctionDef):
                assert parameters_of(part) == real_parameters(getattr(real, part.name)), f"{node.name}.{part.name}"
        fields = [part.target.id for part in node.body if isinstance(part, ast.AnnAssign)]
        if (real_fields := defaults_of(real)) is not None:
            assert fields == list(real_fields), node.name
    assert {node.name for node in documented} >= {"run_worker", "Emitter", "RunContext", "Stop", "WorkerMetadata"}
