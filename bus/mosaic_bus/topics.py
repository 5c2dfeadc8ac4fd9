"""Names of topics. All are dotted and end in a dot, since ZeroMQ matches prefixes of bytes."""

from __future__ import annotations

import re

__all__ = [
    "STORED",
    "build",
    "command",
    "host",
    "host_state",
    "host_streams",
    "is_host_name",
    "repair",
    "reply",
    "run",
    "run_frame",
    "run_log",
    "run_picture",
    "run_state",
    "run_summary",
    "run_telemetry",
    "service_state",
    "supervisor",
    "welcome",
]

STORED = "telemetry.stored."

_HOST = re.compile(r"[a-z0-9-]{1,63}")


def is_host_name(name: str) -> bool:
    """Whether a name can stand in a topic."""
    return _HOST.fullmatch(name) is not None


def supervisor(host: str) -> str:
    """The service name of the supervisor on a host."""
    return f"supervisor.{host}"


def service_state(service: str) -> str:
    """Heartbeat of a service."""
    return f"service.{service}.state."


def host(name: str) -> str:
    """Everything about a host."""
    return f"host.{name}."


def host_state(name: str) -> str:
    """Resources, environments and attempts of a host."""
    return f"host.{name}.state."


def host_streams(name: str) -> str:
    """How far the open journals and logs of a host go."""
    return f"host.{name}.streams."


def build(name: str) -> str:
    """Progress of environments being built on a host."""
    return f"host.{name}.build."


def run(run_id: str) -> str:
    """Everything about a run."""
    return f"run.{run_id}."


def run_state(run_id: str) -> str:
    """State of a run, from the scheduler."""
    return f"run.{run_id}.state."


def run_telemetry(run_id: str) -> str:
    """Raw journal lines of a run, in batches."""
    return f"run.{run_id}.telemetry."


def run_log(run_id: str) -> str:
    """Raw log lines of a run, in batches."""
    return f"run.{run_id}.log."


def run_summary(run_id: str) -> str:
    """Live aggregates of a run."""
    return f"run.{run_id}.summary."


def run_frame(run_id: str) -> str:
    """Handles of a run's newest pictures."""
    return f"run.{run_id}.frame."


def run_picture(run_id: str, max_dim: int, quality: int) -> str:
    """A run's pictures themselves, of that size and quality, for readers on other machines."""
    return f"run.{run_id}.picture.{max_dim}.{quality}."


def repair(run_id: str) -> str:
    """Batches of a run that the aggregator asked to have again."""
    return f"repair.{run_id}."


def command(service: str) -> str:
    """Commands for a service."""
    return f"cmd.{service}."


def reply(client: str) -> str:
    """Answers to the commands of a client."""
    return f"reply.{client}."


def welcome(client: str) -> str:
    """The broker's word that a client's subscriptions are in force.

    The tilde sorts last, so that after a reconnection, when subscriptions are sent anew in
    order of their bytes, this one still comes after all others.
    """
    return f"~welcome.{client}."
