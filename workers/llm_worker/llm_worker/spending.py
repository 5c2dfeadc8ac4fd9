"""What the model has cost, by the price file, and whether it may go on."""

import fcntl
import json
import os
import tomllib
from dataclasses import dataclass
from pathlib import Path

from llm_worker.config import Limit, LlmConfig
from llm_worker.exchange import Reply
from llm_worker.problems import SpentError
from mosaic_worker.errors import ConfigError

__all__ = ["Ledger", "Price", "Used", "read_price"]

_MILLION = 1_000_000
_FIELDS = ("input", "cached_input", "output")


@dataclass(frozen=True)
class Price:
    """USD per million tokens."""

    input: float
    output: float
    cached_input: float

    def of(self, reply: Reply) -> float:
        """What a reply costs."""
        fresh = reply.tokens_in - reply.tokens_cached
        spent = fresh * self.input + reply.tokens_cached * self.cached_input + reply.tokens_out * self.output
        return spent / _MILLION


def read_price(config: LlmConfig) -> Price | None:
    """Return the price of the config's model; ConfigError if one is needed and not there."""
    if config.endpoint in {"local", "stand-in"} and config.prices is None:
        return Price(0.0, 0.0, 0.0)
    needed = config.limits.episode.usd is not None or config.limits.experiment.usd is not None
    if config.prices is None:
        if needed:
            raise ConfigError("limits: usd needs the model's price: name a price file in prices")
        return None
    try:
        table = tomllib.loads(Path(config.prices).read_text(encoding="utf-8")).get(config.model_name)
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"prices: {config.prices!r} cannot be read: {error}") from error
    if table is None:
        if needed:
            raise ConfigError(f'prices: {config.prices!r} has no ["{config.model_name}"], and limits.usd needs it')
        return None
    wrong = [name for name in table if name not in _FIELDS]
    numbers = all(type(value) in {int, float} and value >= 0 for value in table.values())
    if wrong or not numbers or not {"input", "output"} <= table.keys():
        raise ConfigError(
            f'prices: ["{config.model_name}"] in {config.prices!r} needs input and output, and may have cached_input, '
            f"each in USD per million tokens; it has {table}"
        )
    return Price(float(table["input"]), float(table["output"]), float(table.get("cached_input", table["input"])))


@dataclass
class Used:
    """What was used up."""

    tokens: int = 0
    seconds: float = 0.0
    turns: int = 0
    usd: float = 0.0

    def add(self, reply: Reply, usd: float) -> None:
        """Count a reply."""
        self.tokens += reply.tokens_in + reply.tokens_out
        self.seconds += reply.latency_s
        self.turns += 1
        self.usd += usd

    def beyond(self, limit: Limit) -> str | None:
        """Name the first limit that is reached."""
        for name in ("tokens", "seconds", "turns", "usd"):
            allowed, used = getattr(limit, name), getattr(self, name)
            if allowed is not None and used >= allowed:
                return f"{used:.6g} of {allowed:g} {name} are used up"
        return None


class Ledger:
    """What an operator has used up in an experiment, on this host. Replies from the cache are free."""

    def __init__(self, path: Path, limit: Limit) -> None:
        """Keep the sums in a file that all shards share."""
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._limit = limit

    def require_room(self) -> None:
        """Raise SpentError if a limit of the experiment is reached."""
        fcntl.flock(self._fd, fcntl.LOCK_SH)
        try:
            used = self._read()
        finally:
            fcntl.flock(self._fd, fcntl.LOCK_UN)
        if reached := used.beyond(self._limit):
            raise SpentError(f"limits.experiment: {reached}; raise the limit and play again with --restart")

    def add(self, reply: Reply, usd: float) -> None:
        """Count a reply that the endpoint gave."""
        fcntl.flock(self._fd, fcntl.LOCK_EX)
        try:
            used = self._read()
            used.add(reply, usd)
            os.pwrite(self._fd, line := json.dumps(vars(used)).encode() + b"\n", 0)
            os.ftruncate(self._fd, len(line))
        finally:
            fcntl.flock(self._fd, fcntl.LOCK_UN)

    def _read(self) -> Used:
        try:
            found = json.loads(os.pread(self._fd, 4096, 0))
            return Used(int(found["tokens"]), found["seconds"], int(found["turns"]), found["usd"])
        except (ValueError, KeyError, TypeError):
            return Used()

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)
