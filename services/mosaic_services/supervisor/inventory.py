"""What a host offers: CPUs and memory of the machine, GPUs from NVML or from the configuration, and tags."""

from __future__ import annotations

import importlib
import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import psutil

from mosaic_bus.logs import Logger
from mosaic_bus.messages import Gpu, Resources
from mosaic_services.host_config import HostConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mosaic_services.host_config import HostConfig

__all__ = ["Inventory", "take_inventory"]

_log = Logger()

VISIBLE = "CUDA_VISIBLE_DEVICES"
_ID = re.compile(r"[A-Za-z0-9-]+")


@dataclass(frozen=True, slots=True)
class Inventory:
    """What one host offers; fixed while its supervisor runs."""

    host: str
    total: Resources
    gpus: tuple[Gpu, ...]
    tags: tuple[str, ...]


def take_inventory(config: HostConfig, default_host: str, environ: Mapping[str, str]) -> Inventory:
    """Combine the configuration with what is found on the machine."""
    host = config.host or default_host
    gpus = _gpus(config.gpus, environ.get(VISIBLE))
    tags = dict.fromkeys([f"host:{host}", *(["gpu"] if gpus else []), *config.tags])
    return Inventory(host, config.total(_machine(), len(gpus)), gpus, tuple(tags))


def _machine() -> Resources:
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return Resources(cpus=float(cpus), memory_mb=int(psutil.virtual_memory().total / 2**20))


def _gpus(declared: int | tuple[Gpu, ...] | None, visible: str | None) -> tuple[Gpu, ...]:
    if declared is None:
        return _found_by_nvml(visible)
    if not isinstance(declared, int):
        return declared
    allowed = [str(number) for number in range(declared)] if visible is None else _listed(visible)
    if len(allowed) < declared:
        raise HostConfigError(f"gpus: {declared} are declared, and {VISIBLE}={visible} allows {len(allowed)}")
    return tuple(Gpu(id=each) for each in allowed[:declared])


def _listed(visible: str) -> list[str]:
    """Return the ids in CUDA_VISIBLE_DEVICES up to the first invalid one, as CUDA does."""
    found: list[str] = []
    for each in (part.strip() for part in visible.split(",")):
        if not _ID.fullmatch(each) or each.startswith("-") or each in found:
            break
        found.append(each)
    return found


def _found_by_nvml(visible: str | None) -> tuple[Gpu, ...]:
    try:
        devices = _devices(importlib.import_module("pynvml"))
    except ImportError:
        _log.info("no GPUs", reason="the package nvidia-ml-py is not installed")
        return ()
    except Exception as error:
        _log.info("no GPUs", reason=f"NVML does not answer: {error}")
        return ()
    if visible is None:
        return tuple(Gpu(id=str(number), **facts) for number, (_, facts) in enumerate(devices))
    chosen = []
    for each in _listed(visible):
        matches = [
            facts for number, (uuid, facts) in enumerate(devices) if each == str(number) or uuid.startswith(each)
        ]
        if len(matches) != 1:
            break
        chosen.append(Gpu(id=each, **matches[0]))
    return tuple(chosen)


def _devices(nvml: Any) -> list[tuple[str, dict[str, Any]]]:
    """Return UUID, name and memory of every GPU, in the order of their bus addresses."""
    nvml.nvmlInit()
    try:
        handles = [nvml.nvmlDeviceGetHandleByIndex(number) for number in range(nvml.nvmlDeviceGetCount())]
        return [
            (
                _text(nvml.nvmlDeviceGetUUID(handle)),
                {
                    "name": _text(nvml.nvmlDeviceGetName(handle)),
                    "memory_mb": int(nvml.nvmlDeviceGetMemoryInfo(handle).total / 2**20),
                },
            )
            for handle in handles
        ]
    finally:
        nvml.nvmlShutdown()


def _text(value: str | bytes) -> str:
    """Older versions of the library answer with bytes."""
    return value.decode() if isinstance(value, bytes) else value
