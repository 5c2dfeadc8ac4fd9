"""Arrays within requests: in a file of shared memory, as base64, or as plain lists.

Whoever asks makes the file, names it at `init_agent`, and removes it. In a request `{"slot": {"offset", "shape",
"dtype"}}` stands for an array in that file, `{"b64", "shape", "dtype"}` for one that is written out.
"""

import base64
import mmap
import os
import tempfile
from pathlib import Path
from typing import Any, Self

import numpy as np

from mosaic_worker.errors import RequestError

__all__ = ["SMALL", "Slots", "as_base64", "is_in_slot", "read_arrays", "stack", "unstack"]

SMALL = 128
"""Bytes up to which an array is written as a list: a few numbers are read as fast as a reference."""
_ALIGNED = 64
_SHARED_MEMORY = "/dev/shm"  # noqa: S108 - shared memory is here and nowhere else


class Slots:
    """A file of shared memory in which arrays travel from one process to another."""

    def __init__(self, path: str, size: int, memory: mmap.mmap) -> None:
        """Use `memory`, which maps the file at `path`; see `create` and `open`."""
        self.path = path
        self.size = size
        self._memory = memory

    @classmethod
    def create(cls, size: int, folder: str = _SHARED_MEMORY) -> Self:
        """Make a file that only this user can read; the caller removes it with `remove`."""
        fd, path = tempfile.mkstemp(prefix="mosaic-slots-", dir=folder)
        try:
            os.posix_fallocate(fd, 0, size)  # fails now if there is no room, not with SIGBUS later
            return cls(path, size, mmap.mmap(fd, size))
        except OSError:
            Path(path).unlink(missing_ok=True)
            raise
        finally:
            os.close(fd)

    @classmethod
    def open(cls, given: Any) -> Self:
        """Map the file that a request names, for reading; RequestError if that is impossible."""
        path, size = (given.get("path"), given.get("size")) if isinstance(given, dict) else (None, None)
        if not isinstance(path, str) or type(size) is not int or size < 1:
            raise RequestError(f'slots: {given!r} is not allowed; give {{"path": "/dev/shm/…", "size": BYTES}}')
        try:
            with open(path, "rb") as file:  # noqa: PTH123 - a file of shared memory, by its name in the request
                return cls(path, size, mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ))
        except (OSError, ValueError) as error:
            raise RequestError(f"slots: {path!r} with {size} bytes cannot be mapped: {error}") from error

    def put(self, array: np.ndarray[Any, Any], offset: int) -> tuple[dict[str, Any], int]:
        """Copy an array to `offset`; return the reference to it and the next free offset."""
        end = offset + array.nbytes
        if end > self.size:
            raise ValueError(f"{array.nbytes} bytes at {offset} do not fit into {self.size}")
        np.ndarray(array.shape, array.dtype, self._memory, offset)[...] = array
        reference = {"slot": {"offset": offset, "shape": array.shape, "dtype": array.dtype.str}}
        return reference, -(-end // _ALIGNED) * _ALIGNED

    def place(self, shape: tuple[int, ...], dtype: np.dtype[Any], offset: int) -> np.ndarray[Any, Any]:
        """Return the array at `offset` itself, to be written again and again; let go of it before `remove`."""
        return np.ndarray(shape, dtype, self._memory, offset)

    def get(self, reference: Any) -> np.ndarray[Any, Any]:
        """Copy the array of a reference; RequestError if it does not lie in the file."""
        return self.view(reference).copy()  # the next request overwrites it, and a policy may keep what it saw

    def view(self, reference: Any) -> np.ndarray[Any, Any]:
        """Return the array of a reference itself; RequestError if it does not lie in the file."""
        try:
            dtype, offset = np.dtype(reference["dtype"]), reference["offset"]
            if dtype.hasobject or offset < 0:  # numpy would follow a pointer, or read what lies before the file
                raise ValueError("not numbers, or not in the file")
            return np.ndarray(tuple(reference["shape"]), dtype, self._memory, offset)
        except (TypeError, ValueError, KeyError) as error:
            raise RequestError(f"slot: {reference!r} is no array in {self.size} bytes: {error}") from error

    def remove(self) -> None:
        """Unmap the file and remove it."""
        Path(self.path).unlink(missing_ok=True)
        self._memory.close()

    def close(self) -> None:
        """Unmap the file."""
        self._memory.close()


def as_base64(array: np.ndarray[Any, Any]) -> dict[str, Any]:
    """Write an array out, for a receiver that does not share memory."""
    data = base64.b64encode(np.ascontiguousarray(array).tobytes()).decode()
    return {"b64": data, "shape": array.shape, "dtype": array.dtype.str}


def read_arrays(value: Any, slots: Slots | None) -> Any:
    """Replace the references to arrays in a value of a request, also those in parts of a dict, by the arrays."""
    if not isinstance(value, dict):
        return value
    if is_in_slot(value):
        if slots is None:
            raise RequestError("slot: no file was named; give slots to init_agent, or send the array as b64")
        return slots.get(value["slot"])
    if "b64" in value:
        try:
            flat = np.frombuffer(base64.b64decode(value["b64"], validate=True), value["dtype"])
            return flat.reshape(value["shape"]).copy()
        except (TypeError, ValueError, KeyError) as error:
            raise RequestError(f"b64: not an array: {error}") from error
    return {key: read_arrays(part, slots) for key, part in value.items()}


def is_in_slot(value: Any) -> bool:
    """Whether a value of a request is one array in the file of shared memory."""
    return isinstance(value, dict) and len(value) == 1 and "slot" in value


def stack(values: list[Any]) -> Any:
    """Join the observations of several lanes: arrays get a first dimension, a dict has each of its parts joined."""
    first = values[0]
    if isinstance(first, dict):
        return {key: stack([value[key] for value in values]) for key in first}
    if not isinstance(first, np.ndarray):
        return list(values)
    # Much quicker than np.stack, which prepares each array.
    return np.concatenate(values).reshape(len(values), *first.shape) if first.ndim else np.array(values)


def unstack(values: Any, index: int) -> Any:
    """Return the observation of one lane."""
    if isinstance(values, dict):
        return {key: unstack(part, index) for key, part in values.items()}
    return values[index]
