"""The worker in its environment."""

import pytest
from worker_folder import WorkerFolder, build


@pytest.fixture(scope="session")
def environment(tmp_path_factory):
    """The worker's environment."""
    return build("xuance", "default", tmp_path_factory.mktemp("home"))


@pytest.fixture(scope="session")
def xuance_in(environment):
    """The worker in a folder of the caller's choice."""
    return lambda folder: WorkerFolder("xuance", environment, folder)


@pytest.fixture
def xuance(xuance_in, tmp_path):
    """The worker in the test's folder."""
    return xuance_in(tmp_path)
