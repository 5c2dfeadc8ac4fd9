"""Language models as operators: they read what an agent sees, and answer with one of its legal actions."""

from importlib.metadata import PackageNotFoundError, version

from mosaic_worker.metadata import WorkerCapabilities, WorkerMetadata

__all__ = ["get_worker_metadata"]

__version__ = "0.1.0"


def get_worker_metadata() -> WorkerMetadata:
    """Say what this worker is; the entry point in pyproject.toml leads here, so it must not import the library."""
    from llm_worker.config import LlmConfig  # noqa: PLC0415 - keeps `import llm_worker` light

    try:
        upstream = version("httpx2")
    except PackageNotFoundError:
        upstream = None
    return WorkerMetadata(
        name="llm",
        version=__version__,
        description="Language models as operators, at OpenAI-compatible endpoints, Anthropic's, or on this machine",
        upstream_library="httpx2",
        upstream_version=upstream,
        capabilities=WorkerCapabilities(
            worker_type="llm",
            supported_paradigms=("sequential", "simultaneous"),
            env_families=("gymnasium", "minigrid", "babyai", "pettingzoo", "mpe"),
            action_spaces=("discrete", "continuous", "multi_discrete"),
            observation_spaces=("vector", "image", "discrete", "dict", "text"),
            max_agents=64,
            interactive_commands=("init_agent", "begin_episode", "select_action", "select_actions"),
            estimated_memory_mb=256,
        ),
        config_model=LlmConfig,
        # The stand-in needs no model: a run asks it a question many times.
        example_config={"endpoint": "stand-in", "model": "stand-in", "questions": 100},
    )
