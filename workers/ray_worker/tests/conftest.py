"""The worker in its environment."""

import pytest
from worker_folder import WorkerFolder
from worker_folder import build as build_environment


@pytest.fixture(scope="session")
def build(tmp_path_factory):
    """Builds the environment of a worker and a profile."""
    home = tmp_path_factory.mktemp("home")
    return lambda worker, profile: build_environment(worker, profile, home)


@pytest.fixture(scope="session")
def environment(build):
    """The worker's environment."""
    return build("ray", "default")


@pytest.fixture(scope="session")
def make_rllib(environment):
    """Puts the worker in a folder."""
    return lambda folder: WorkerFolder("ray", environment, folder, deadline_s=800)


@pytest.fixture
def rllib(make_rllib, tmp_path):
    """The worker in the test's folder."""
    return make_rllib(tmp_path)
