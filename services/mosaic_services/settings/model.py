"""The settings: their names, types, defaults and limits. `configs/mosaic.toml` is made from this module.

A value belongs here if a user may have a reason to change it. Everything else stays a constant of its module.
"""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple

from pydantic import BaseModel, ConfigDict, Field

__all__ = [
    "CliSettings",
    "GatewaySettings",
    "Leaf",
    "SchedulerSettings",
    "ServiceSettings",
    "Settings",
    "StackSettings",
    "SupervisorSettings",
    "TelemetrySettings",
    "leaves",
]

Seconds = Annotated[float, Field(gt=0, le=86_400, allow_inf_nan=False)]
Mebibytes = Annotated[int, Field(gt=0, le=65_536)]


class Section(BaseModel):
    """A group of settings: a table of the file."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class ServiceSettings(Section):
    """All services."""

    heartbeat_s: Annotated[float, Field(ge=0.1, le=3.0, description="seconds between two states of a service")] = 1.0


class SchedulerSettings(Section):
    """The scheduler."""

    lost_after_s: Annotated[
        Seconds, Field(description="a host that is silent for this long loses its runs: they end as lost")
    ] = 300.0
    keep_free_after_s: Annotated[
        Seconds, Field(description="a run that smaller runs have overtaken for this long gets a host kept free")
    ] = 60.0
    longest_retry_delay_s: Annotated[
        Seconds, Field(description="upper limit of the delay between two attempts, which doubles each time")
    ] = 600.0


class SupervisorSettings(Section):
    """The supervisor of a host."""

    look_every_s: Annotated[
        float, Field(ge=0.005, le=1.0, description="seconds between two looks at the journals and logs of runs")
    ] = 0.05
    window_mb: Annotated[
        int, Field(gt=0, le=24, description="unstored output of one run that may be on its way to telemetry")
    ] = 4
    usage_every_s: Annotated[
        Seconds, Field(description="seconds between two measurements of the CPU and memory that runs use")
    ] = 2.0
    frames_per_second: Annotated[
        float, Field(ge=1, le=60, description="most frames of a stream that are announced per second")
    ] = 20.0
    pictures_per_second: Annotated[
        float, Field(ge=1, le=60, description="most pictures (JPEG) per second for remote readers")
    ] = 15.0
    run_log_mb: Annotated[
        Mebibytes, Field(description="how much of the beginning of a run's log is kept; its last MiB always is")
    ] = 16
    template_idle_s: Annotated[
        Seconds,
        Field(description="time without a run after which a template for warm starts, which holds memory, ends"),
    ] = 600.0
    build_retry_s: Annotated[
        Seconds, Field(description="delay before an environment that could not be built is tried again; it doubles")
    ] = 60.0
    longest_build_retry_s: Annotated[Seconds, Field(description="upper limit of that delay")] = 1800.0


class TelemetrySettings(Section):
    """The telemetry store."""

    summary_every_s: Annotated[
        float, Field(ge=0.05, le=60, description="seconds between two summaries of a run that makes progress")
    ] = 0.5
    inbox_mb: Annotated[Mebibytes, Field(description="received output that may wait in memory to be stored")] = 64
    queries_at_once: Annotated[int, Field(ge=1, le=64, description="queries that are answered at the same time")] = 4


class GatewaySettings(Section):
    """The gateway for browsers."""

    bind: Annotated[str, Field(description="IP address to listen on; beyond loopback it needs TLS or plain_http")] = (
        "127.0.0.1"
    )
    port: Annotated[
        int, Field(ge=0, le=65_535, description="port to listen on, or the next free one; 0: any free port")
    ] = 8720
    hosts: Annotated[str, Field(description="further names under which browsers may reach it, separated by commas")] = (
        ""
    )
    tls_certificate: Annotated[str, Field(description="file with the certificate chain, PEM")] = ""
    tls_key: Annotated[str, Field(description="file with its private key, PEM")] = ""
    plain_http: Annotated[
        bool, Field(description="listen beyond loopback without TLS, because something else encrypts")
    ] = False
    page: Annotated[str, Field(description="folder of the dashboard's files; empty: where the build puts them")] = ""


class StackSettings(Section):
    """What `mosaic up` does with the services."""

    ready_timeout_s: Annotated[Seconds, Field(description="time for all services to answer after their start")] = 30.0
    stop_timeout_s: Annotated[Seconds, Field(description="time for a service to end before it is killed")] = 10.0
    first_restart_s: Annotated[Seconds, Field(description="delay before a service that died is restarted")] = 0.2
    longest_restart_s: Annotated[Seconds, Field(description="upper limit of that delay, which doubles each time")] = 5.0
    log_mb: Annotated[
        Mebibytes, Field(description="size at which a service's log is renamed to .log.1 at the next start")
    ] = 20


class CliSettings(Section):
    """The `mosaic` command."""

    connect_timeout_s: Annotated[Seconds, Field(description="time for the broker to answer")] = 3.0
    outage_s: Annotated[
        Seconds, Field(description="how long watch, --wait and sweeps wait for a service that is being restarted")
    ] = 60.0


class Settings(Section):
    """All settings of a stack."""

    home: Annotated[str, Field(description="folder of the stack; not possible in $MOSAIC_HOME/mosaic.toml")] = (
        "~/.mosaic"
    )
    bus: Annotated[
        str, Field(description="address of the bus, ipc:///folder or tcp://127.0.0.1:port; empty: the home's own")
    ] = ""
    cache: Annotated[str, Field(description="folder of worker environments; empty: ~/.cache/mosaic")] = ""
    workers: Annotated[str, Field(description="folders with further workers, separated by colons")] = ""
    pythonpath: Annotated[
        str, Field(description="folders of your own modules that workers may import, separated by colons")
    ] = ""
    services: ServiceSettings = ServiceSettings()
    scheduler: SchedulerSettings = SchedulerSettings()
    supervisor: SupervisorSettings = SupervisorSettings()
    telemetry: TelemetrySettings = TelemetrySettings()
    gateway: GatewaySettings = GatewaySettings()
    stack: StackSettings = StackSettings()
    cli: CliSettings = CliSettings()


class Leaf(NamedTuple):
    """One setting: `scheduler.lost_after_s`, its value and what it is for."""

    key: str
    value: Any
    description: str


def leaves(settings: Settings) -> list[Leaf]:
    """List all settings, in the order of the model."""
    found = []
    for name, field in type(settings).model_fields.items():
        value = getattr(settings, name)
        if isinstance(value, Section):
            fields = type(value).model_fields
            found += [Leaf(f"{name}.{key}", getattr(value, key), fields[key].description or "") for key in fields]
        else:
            found.append(Leaf(name, value, field.description or ""))
    return found
