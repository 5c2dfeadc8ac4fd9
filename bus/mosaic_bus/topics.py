"""Names of topics. The kind comes first, since ZeroMQ matches prefixes: `summary.` gets every summary and nothing else.

All topics are dotted and end in a dot, so that no name is the prefix of another.
"""

from __future__ import annotations

import re

__all__ = [
    "EXPERIMENT_STATES",
    "HOST_STATES",
    "RUN_STATES",
    "SERVICE_STATES",
    "STORED",
    "SUMMARIES",
    "build",
    "command",
    "experiment_state",
    "frame",
    "host_state",
    "is_host_name",
    "journal",
    "log",
    "picture",
    "repair",
    "reply",
    "run_state",
    "service_state",
    "streams",
    "summary",
    "supervisor",
    "welcome",
]

STORED = "stored."
SERVICE_STATES = "state.service."
HOST_STATES = "state.host."
RUN_STATES = "state.run."
EXPERIMENT_STATES = "state.experiment."
SUMMARIES = "summary."

_HOST = re.compile(r"[a-z0-9-]{1,63}")


def is_host_name(name: str) -> bool:
    """Whether a name can be part of a topic."""
    return _HOST.fullmatch(name) is not None


def supervisor(host: str) -> str:
    """The service name of the supervisor on a host."""
    return f"supervisor.{host}"


def service_state(service: str) -> str:
    """Heartbeat of a service."""
    return f"{SERVICE_STATES}{service}."


def host_state(host: str) -> str:
    """Resources, environments and attempts of a host."""
    return f"{HOST_STATES}{host}."


def run_state(run: str) -> str:
    """State of a run, from the scheduler."""
    return f"{RUN_STATES}{run}."


def experiment_state(experiment: str) -> str:
    """State of an experiment, from the operator service."""
    return f"{EXPERIMENT_STATES}{experiment}."


def summary(run: str) -> str:
    """Live aggregates of a run."""
    return f"{SUMMARIES}{run}."


def journal(run: str) -> str:
    """Raw journal lines of a run, in batches."""
    return f"journal.{run}."


def log(run: str) -> str:
    """Raw log lines of a run, in batches."""
    return f"log.{run}."


def frame(run: str) -> str:
    """Handles of a run's newest frames."""
    return f"frame.{run}."


def picture(run: str, max_dim: int, quality: int) -> str:
    """A run's frames as JPEG pictures of that size and quality, for readers on other machines."""
    return f"picture.{run}.{max_dim}.{quality}."


def build(host: str) -> str:
    """Progress of environments being built on a host."""
    return f"build.{host}."


def streams(host: str) -> str:
    """How far the open journals and logs of a host go."""
    return f"streams.{host}."


def repair(run: str) -> str:
    """Batches of a run that the aggregator asked to have again."""
    return f"repair.{run}."


def command(service: str) -> str:
    """Commands for a service."""
    return f"command.{service}."


def reply(client: str) -> str:
    """Answers to the commands of a client."""
    return f"reply.{client}."


def welcome(client: str) -> str:
    """Confirmation by the broker that a client's subscriptions are in force.

    After a reconnection, ZeroMQ sends subscriptions in the order of their bytes. The tilde sorts last, so the welcome
    confirms all others.
    """
    return f"~welcome.{client}."
