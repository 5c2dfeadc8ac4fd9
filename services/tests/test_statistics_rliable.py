"""Our statistics against rliable's, on the same scores and the same stream of resampled indices."""

from __future__ import annotations

import fcntl
import hashlib
import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from mosaic_services.environments.environment import cache_folder
from mosaic_services.statistics.aggregates import iqm, optimality_gap, probability_of_improvement, profile
from mosaic_services.statistics.resampling import bootstrap, percentile_interval

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

HERE = Path(__file__).parent / "rliable"
SEED, REPS, TARGET = 7, 300, 0.8
TAUS = np.linspace(-1, 2, 13)


@pytest.fixture(scope="module")
def rliable_python(announce) -> Path:
    """The Python of a virtualenv that has rliable; it is named by its lock and kept beside those of the workers."""
    lock = HERE / "rliable.lock"
    name = hashlib.sha256(f"{sys.version_info[:2]}{lock.read_text()}".encode()).hexdigest()[:16]
    venv = cache_folder() / "tests" / f"rliable-{name}"
    venv.parent.mkdir(parents=True, exist_ok=True)
    with venv.with_name(f"{venv.name}.lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        if not (venv / "complete").exists():
            shutil.rmtree(venv, ignore_errors=True)
            subprocess.run([sys.executable, "-m", "venv", venv], check=True, timeout=120)
            pip = [venv / "bin" / "python", "-m", "pip", "--disable-pip-version-check", "--no-input", "install", "-q"]
            done = subprocess.run([*pip, "-r", lock], capture_output=True, text=True, timeout=600, check=False)
            if done.returncode != 0:
                reason = f"rliable cannot be installed here: {done.stderr.strip()[-400:]}"
                announce(reason)
                pytest.skip(reason)
            (venv / "complete").touch()
    return venv / "bin" / "python"


@pytest.fixture(scope="module")
def announce(request):
    """Print past the capture of pytest, so that the reason of a skip is seen."""
    manager = request.config.pluginmanager.getplugin("capturemanager")

    def say(text: str) -> None:
        with manager.global_and_fixture_disabled():
            print(f"\n{text}")

    return say


@pytest.fixture(scope="module")
def scores():
    """Runs by tasks: x has ties and different tasks, y has another number of runs."""
    generator = np.random.default_rng(11)
    x = np.round(generator.normal([0.2, 0.9, 0.5], [0.3, 0.1, 0.6], (12, 3)), 1)
    return x, np.round(generator.normal(0.4, 0.4, (9, 3)), 1)


@pytest.fixture(scope="module")
def theirs(rliable_python, scores):
    request = {"x": scores[0].tolist(), "y": scores[1].tolist(), "seed": SEED, "reps": REPS}
    request |= {"target": TARGET, "taus": TAUS.tolist()}
    done = subprocess.run(
        [rliable_python, "-W", "ignore", HERE / "reference.py"],
        input=json.dumps(request),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def stream(*shapes):
    """The indices that rliable draws from NumPy's global generator, one resample at a time."""
    generator = np.random.RandomState(SEED)
    for _ in range(REPS):
        drawn = [generator.choice(shape[0], shape) for shape in shapes]
        yield [column[None] for indices in drawn for column in indices.T]


@pytest.mark.parametrize(
    ("name", "statistic"),
    [
        ("mean", lambda rows: rows.mean(-1)),
        ("iqm", iqm),
        ("gap", lambda rows: optimality_gap(rows, TARGET)),
        ("profile", lambda rows: profile(rows, TAUS)),
    ],
)
def test_aggregate_and_its_interval_equal_those_of_rliable(theirs, scores, name, statistic):
    x, _ = scores
    estimates = bootstrap(list(x.T), statistic, stream(x.shape)).reshape(REPS, -1)
    point, interval = theirs[name]
    assert np.ravel(statistic(x.ravel()[None])) == pytest.approx(point, rel=1e-12)
    ours = np.array([percentile_interval(column) for column in estimates.T]).T
    assert ours == pytest.approx(np.array(interval), rel=1e-12)


def test_probability_of_improvement_equals_that_of_rliable(theirs, scores):
    x, y = scores
    tasks, runs = x.shape[1], len(x)

    def over_tasks(rows):
        pairs = zip(np.split(rows[:, : x.size], tasks, 1), np.split(rows[:, x.size :], tasks, 1), strict=True)
        return np.mean([probability_of_improvement(a, b) for a, b in pairs], axis=0)

    strata = [*x.T, *y.T]
    assert [len(each) for each in strata] == [runs] * tasks + [len(y)] * tasks
    point, interval = theirs["improvement"]
    assert over_tasks(np.concatenate(strata)[None]) == pytest.approx(point, rel=1e-12)
    estimates = bootstrap(strata, over_tasks, stream(x.shape, y.shape))
    assert percentile_interval(estimates) == pytest.approx(tuple(np.ravel(interval)), rel=1e-12)
