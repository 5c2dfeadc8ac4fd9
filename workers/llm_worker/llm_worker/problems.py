"""What goes wrong with a model: at the endpoint, with its answer, or with what it may use up."""

from mosaic_worker.errors import WorkerError

__all__ = [
    "DecisionError",
    "EndpointError",
    "InvalidAnswerError",
    "LimitError",
    "NoSchemaError",
    "RefusedError",
    "SpentError",
    "TransientError",
]


class DecisionError(WorkerError):
    """No action came of a decision; `kind` stands in the episode's record."""

    kind = "raised"


class RefusedError(DecisionError):
    """The endpoint will never answer: its address, the key, the model or the request does not fit."""

    kind = "refused"


class EndpointError(DecisionError):
    """The endpoint failed as often as it may, or for too long, or does not take this request."""

    kind = "endpoint"


class NoSchemaError(EndpointError):
    """The endpoint does not take a question with a schema; it may take the same one without."""


class LimitError(DecisionError):
    """The episode has used up what it may."""

    kind = "limit"


class SpentError(DecisionError):
    """The experiment has used up what it may."""

    kind = "spent"


class InvalidAnswerError(DecisionError):
    """The model's answer is no legal action; `kind` is invalid, truncated or refusal."""

    def __init__(self, message: str, kind: str = "invalid") -> None:
        """Keep the kind."""
        self.kind = kind
        super().__init__(message)


class TransientError(Exception):
    """A call failed, and may succeed later; `wait_s` is what the endpoint asks for."""

    def __init__(self, message: str, wait_s: float | None = None, *, throttled: bool = False) -> None:
        """Keep what the endpoint said."""
        self.wait_s = wait_s
        self.throttled = throttled
        super().__init__(message)
