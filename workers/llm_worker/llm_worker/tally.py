"""What an episode has cost and how the model behaved in it: the report in the episode's record."""

import hashlib
from collections import Counter
from typing import Any

from pydantic_core import to_json

from llm_worker.config import Limit
from llm_worker.exchange import Question, Reply, texts_of
from llm_worker.problems import LimitError
from llm_worker.spending import Price, Used

__all__ = ["Tally"]

_DECIMALS = 10


class Tally:
    """Sums over the replies of one agent in one episode. They are the same when the replies come from the cache."""

    def __init__(self, price: Price | None, limit: Limit) -> None:
        """Count nothing yet."""
        self._price = price
        self._limit = limit
        self._used = Used()
        self._cached = self._in = self._out = 0
        self._prompts = hashlib.sha256()
        self._models: set[str] = set()
        self._fingerprints: set[str] = set()
        self._finishes: Counter[str] = Counter()
        self._slowest = 0.0
        self._is_priced = price is not None
        self._failed = self._throttled = 0
        self.decisions = 0
        self.invalid = 0
        """Answers that were no legal action; refusals among them."""
        self.refusals = 0
        self.truncated = 0

    def require_room(self) -> None:
        """Raise LimitError if a limit of the episode is reached."""
        if reached := self._used.beyond(self._limit):
            raise LimitError(f"limits.episode: {reached}")

    def add(self, question: Question, reply: Reply) -> None:
        """Count a reply."""
        self._prompts.update(to_json(texts_of(question.messages)))
        self._used.add(reply, self._price.of(reply) if self._price else 0.0)
        self._is_priced = self._is_priced and reply.has_usage
        self._in += reply.tokens_in
        self._out += reply.tokens_out
        self._cached += reply.tokens_cached
        self._finishes[reply.finish or "unknown"] += 1
        self._slowest = max(self._slowest, reply.latency_s)
        self._failed += reply.failed_calls
        self._throttled += reply.throttled_calls
        self._models.add(reply.model)
        self._fingerprints.add(reply.fingerprint)
        self.refusals += bool(reply.refusal)
        self.truncated += reply.is_truncated

    def report(self) -> dict[str, Any]:
        """Write what stands in the record."""
        used = self._used
        return {
            "model": "+".join(sorted(filter(None, self._models))),
            "system_fingerprint": "+".join(sorted(filter(None, self._fingerprints))),
            "prompt_hash": self._prompts.hexdigest()[:16],
            "decisions": self.decisions,
            "answers": used.turns,
            "invalid": self.invalid,
            "refusals": self.refusals,
            "truncated": self.truncated,
            "tokens_in": self._in,
            "tokens_cached": self._cached,
            "tokens_out": self._out,
            "cost_usd": round(used.usd, _DECIMALS) if self._is_priced else None,
            "latency_s": round(used.seconds, 4),
            "latency_max_s": self._slowest,
            "failed_calls": self._failed,
            "throttled_calls": self._throttled,
            "finish": dict(sorted(self._finishes.items())),
        }
