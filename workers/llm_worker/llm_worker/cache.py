"""Replies that were given before: the same question is not paid for twice, and a rerun gives the same episodes."""

import hashlib
import sqlite3
from pathlib import Path

from pydantic_core import from_json, to_json

from llm_worker.config import LlmConfig
from llm_worker.exchange import Question, Reply, texts_of

__all__ = ["ReplyCache", "key_of", "schema_key_of"]

_BUSY_S = 30.0


def key_of(config: LlmConfig, question: Question) -> str:
    """Return the key of a question: everything that the answer may depend on, and nothing else."""
    about = {
        "endpoint": config.address,
        "model": config.model_name,
        "messages": texts_of(question.messages),
        "schema": question.schema,
        "tools": [[tool.name, tool.description, tool.parameters] for tool in question.tools],
        "parameters": [config.temperature, config.top_p, config.answer_tokens, config.sends_seed, config.extra],
        "seed": question.seed,
        "attempt": question.attempt,
    }
    if config.endpoint == "local":
        about["context"] = config.context
    return hashlib.sha256(to_json(about)).hexdigest()


def schema_key_of(config: LlmConfig) -> str:
    """Return the key under which it is kept that an endpoint refuses schemas."""
    return hashlib.sha256(to_json([config.address, config.model_name, "takes no schemas"])).hexdigest()


class ReplyCache:
    """A file of replies that all processes of a host share. Of two replies to a question, the first one counts."""

    def __init__(self, path: Path) -> None:
        """Open or make the file; only its owner may read it."""
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.touch(mode=0o600)
        # The calls come one after the other, from the thread of the event loop.
        self._store = sqlite3.connect(path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False)
        self._store.execute("PRAGMA journal_mode=WAL")
        self._store.execute("PRAGMA synchronous=NORMAL")
        self._store.execute("CREATE TABLE IF NOT EXISTS replies (key TEXT PRIMARY KEY, reply BLOB) WITHOUT ROWID")

    def get(self, key: str) -> Reply | None:
        """Return a reply, if there is one."""
        row = self._store.execute("SELECT reply FROM replies WHERE key = ?", (key,)).fetchone()
        return None if row is None else Reply.from_json(from_json(row[0]))

    def put(self, key: str, reply: Reply) -> Reply:
        """Keep a reply; return the one that counts."""
        self._store.execute("INSERT OR IGNORE INTO replies VALUES (?, ?)", (key, to_json(reply.to_json())))
        return self.get(key) or reply

    def close(self) -> None:
        """Close the file."""
        self._store.close()
