"""A question to a model and its reply, in no endpoint's dialect."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

__all__ = ["Message", "Question", "Reply", "Talk", "Tool", "ToolCall", "texts_of"]


@dataclass(frozen=True)
class ToolCall:
    """A tool that the model calls; `arguments` is the JSON text that it wrote."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True)
class Message:
    """One message; `role` is system, user, assistant or tool."""

    role: str
    text: str
    picture: str | None = None
    """A PNG in base64."""
    calls: tuple[ToolCall, ...] = ()
    call_id: str | None = None
    """Of a tool's result: the call that it answers."""


@dataclass(frozen=True)
class Tool:
    """A tool that is offered."""

    name: str
    description: str
    parameters: dict[str, Any]


@dataclass(frozen=True)
class Question:
    """What a model is asked."""

    messages: tuple[Message, ...]
    schema: dict[str, Any] | None = None
    """JSON Schema of the answer, if the endpoint is to enforce one."""
    tools: tuple[Tool, ...] = ()
    seed: int = 0
    attempt: int = 0
    """Grows when the same thing is asked again, so that the cache does not give the same answer again."""

    @property
    def has_pictures(self) -> bool:
        """Whether the model has to see."""
        return any(message.picture is not None for message in self.messages)


@dataclass(frozen=True)
class Reply:
    """What a model answered, and what it cost. A reply from the cache is equal to the one that was stored."""

    text: str
    calls: tuple[ToolCall, ...] = ()
    finish: str = "stop"
    refusal: str = ""
    model: str = ""
    fingerprint: str = ""
    tokens_in: int = 0
    tokens_out: int = 0
    tokens_cached: int = 0
    latency_s: float = 0.0
    failed_calls: int = 0
    throttled_calls: int = 0

    @property
    def has_usage(self) -> bool:
        """Whether the endpoint said how many tokens were used: no question has none."""
        return self.tokens_in + self.tokens_out > 0

    @property
    def is_truncated(self) -> bool:
        """Whether the answer was cut off at the number of tokens that it may have."""
        return self.finish in {"length", "max_tokens"}

    @property
    def words(self) -> str:
        """What the model said: its text, or why there is none, and the tools that it called."""
        calls = [f"{call.name}({call.arguments})" for call in self.calls]
        return "\n".join(part for part in (self.text or self.refusal, *calls) if part)

    def timed(self, latency_s: float, failed: int, throttled: int) -> "Reply":
        """Add how it came."""
        return replace(self, latency_s=round(latency_s, 4), failed_calls=failed, throttled_calls=throttled)

    def to_json(self) -> dict[str, Any]:
        """Write it for the cache."""
        return asdict(self)

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> "Reply":
        """Read it from the cache."""
        calls = tuple(ToolCall(**call) for call in document.pop("calls"))
        return cls(**document, calls=calls)


@dataclass
class Talk:
    """The messages of one decision, which grow while it is made."""

    messages: list[Message] = field(default_factory=list)

    def said(self, reply: Reply) -> None:
        """Keep the model's answer."""
        self.messages.append(Message("assistant", reply.text, calls=reply.calls))

    def tell(self, text: str, call_id: str | None = None) -> None:
        """Answer the model."""
        self.messages.append(Message("user" if call_id is None else "tool", text, call_id=call_id))


def texts_of(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Write messages such that equal ones give equal JSON."""
    found = []
    for message in messages:
        entry: dict[str, Any] = {"role": message.role, "text": message.text}
        if message.picture is not None:
            entry["picture"] = message.picture
        if message.calls:
            entry["calls"] = [[call.id, call.name, call.arguments] for call in message.calls]
        if message.call_id is not None:
            entry["call_id"] = message.call_id
        found.append(entry)
    return found
