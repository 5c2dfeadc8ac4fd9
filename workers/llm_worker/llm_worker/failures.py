"""What an endpoint's refusal means, and what a user can do about it."""

import email.utils
import json
import re
import time
from collections.abc import Mapping

from llm_worker.config import LlmConfig
from llm_worker.exchange import Question
from llm_worker.problems import DecisionError, EndpointError, NoSchemaError, RefusedError, TransientError

__all__ = ["ContextError", "explain", "seconds_to_wait"]

_BUSY = frozenset({408, 409, 425, 500, 502, 503, 504, 529})
_TOO_MANY, _UNKNOWN, _NO_KEY, _FORBIDDEN, _PAY, _BAD = 429, 404, 401, 403, 402, 400
_CONTEXT = re.compile(r"context|too long|too many tokens|maximum.{0,20}(length|tokens)", re.IGNORECASE)
_EMPTY = re.compile(r"insufficient_quota|credit balance", re.IGNORECASE)
_PICTURE = re.compile(r"image|vision|picture|multimodal|mmproj", re.IGNORECASE)
_SCHEMA = re.compile(r"response_format|json_schema|schema|grammar", re.IGNORECASE)
_SAID = 300


class ContextError(DecisionError):
    """The messages are longer than the model can read."""

    kind = "context"


def explain(config: LlmConfig, question: Question, status: int, text: str) -> Exception:
    """Return the error that a status other than 200 stands for.

    RefusedError if no question will ever be answered; EndpointError or ContextError if it may be due to this one.
    """
    said = _message(text)
    where = f"{config.address} answered {status} for model {config.model_name}: {said}"
    if status == _PAY or (status in {_TOO_MANY, _BAD} and _EMPTY.search(text)):
        return RefusedError(f"{where}; the account has nothing left: add credit, or use another key")
    if status == _TOO_MANY:
        return TransientError(where, throttled=True)
    if status in _BUSY and not (question.has_pictures and _PICTURE.search(said)):
        return TransientError(where)
    if status in {_NO_KEY, _FORBIDDEN}:
        name = config.key_env or config.preset.key_env
        fix = (
            f"check the key in {name} (or in the file that {name}_FILE names)" if name else "name its variable: key_env"
        )
        # Some providers forbid a single question that their filter dislikes.
        return (RefusedError if status == _NO_KEY else EndpointError)(f"{where}; {fix}")
    if status == _UNKNOWN:
        return RefusedError(f"{where}; check model ({config.model_name!r}) and base_url ({config.address})")
    if _CONTEXT.search(said):
        return ContextError(f"{where}; set a shorter history, fewer examples, or use a model that reads more")
    if question.has_pictures and _PICTURE.search(said):
        return EndpointError(f"{where}; this model takes no pictures: set vision: false, or name a model that sees")
    if question.schema is not None and _SCHEMA.search(said):
        kind = NoSchemaError if config.structured == "auto" else EndpointError
        return kind(f"{where}; this endpoint cannot enforce a schema: set structured: text")
    return EndpointError(f"{where}; the request does not fit this endpoint: see temperature, max_tokens and extra")


def seconds_to_wait(headers: Mapping[str, str]) -> float | None:
    """Return how long an endpoint asks to be left alone; None if it does not say."""
    if (found := headers.get("retry-after-ms")) is not None:
        try:
            return max(0.0, float(found) / 1000)
        except ValueError:
            pass
    found = headers.get("retry-after")
    if found is None:
        return None
    try:
        return max(0.0, float(found))
    except ValueError:
        pass
    try:
        return max(0.0, email.utils.parsedate_to_datetime(found).timestamp() - time.time())
    except ValueError:
        return None


def _message(text: str) -> str:
    """Return the endpoint's own words, in one line."""
    try:
        found = json.loads(text)
        inner = found.get("error", found)
        text = inner.get("message", text) if isinstance(inner, dict) else str(inner)
    except (ValueError, AttributeError):
        pass
    return " ".join(str(text).split())[:_SAID] or "(nothing)"
