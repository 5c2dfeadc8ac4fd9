"""Reads what a stopped stack has stored: services of its own on copies of the stores answer the usual queries.

The scheduler works on a copy of its store, since it would note that hosts are gone. Telemetry's store may be large, so
it is linked: without a supervisor nothing arrives that could be written.
"""

from __future__ import annotations

import contextlib
import sqlite3
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from mosaic_bus import Bus, BusError
from mosaic_bus.commands import Ping
from mosaic_services.home import StackHome
from mosaic_services.stack.backoff import Backoff
from mosaic_services.stack.children import Child
from mosaic_services.stack.errors import StackError
from mosaic_services.stack.services import SERVICES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mosaic_bus.wire.address import Address

__all__ = ["has_stores", "reading"]

_READY_S = 30.0
_STOP_S = 10.0


def has_stores(home: StackHome) -> bool:
    """Whether a stack has ever run in this home."""
    return home.scheduler_store.exists() and home.telemetry_store.exists()


@contextlib.contextmanager
def reading(home: StackHome) -> Iterator[Address]:
    """Give the address of a bus on which scheduler and telemetry answer from the stores of a home."""
    with tempfile.TemporaryDirectory(prefix="mosaic-read-") as folder:
        copy = StackHome(Path(folder))
        copy.create()
        _copy_store(home.scheduler_store, copy.scheduler_store)
        copy.telemetry_store.symlink_to(home.telemetry_store)
        arguments = ["--home", folder, "--bus", str(copy.address())]
        children = [
            Child(row, row.name, arguments, copy.logs / f"{row.name}.log", 2**30, Backoff(1.0, 1.0))
            for row in SERVICES
            if row.answers_alone
        ]
        try:
            for child in children:
                child.start()
            _await_all(children, copy.address())
            yield copy.address()
        finally:
            for child in reversed(children):
                _end(child)


def _copy_store(source: Path, target: Path) -> None:
    with (
        contextlib.closing(sqlite3.connect(f"{source.as_uri()}?mode=ro", uri=True)) as old,
        contextlib.closing(sqlite3.connect(target)) as new,
    ):
        old.backup(new)


def _await_all(children: list[Child], address: Address) -> None:
    deadline = time.monotonic() + _READY_S
    waiting = list(children)
    while waiting:
        dead = next((each for each in children if not each.running), None)
        if dead is not None or time.monotonic() > deadline:
            late = dead or waiting[0]
            what = "ended" if dead else f"did not answer within {_READY_S:g} s"
            raise StackError(f"cannot read the stores: {late.name} {what}", "\n".join(late.last_words()))
        with contextlib.suppress(BusError), Bus(address, connect_timeout=0.5) as bus:
            while waiting:
                bus.request(waiting[0].bus_name, Ping(), timeout=0.3)
                waiting.pop(0)


def _end(child: Child) -> None:
    if child.process is None:
        return
    child.process.terminate()
    try:
        child.process.wait(_STOP_S)
    except subprocess.TimeoutExpired:
        child.process.kill()
        child.process.wait()
