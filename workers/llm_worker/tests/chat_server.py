"""A chat-completions server for tests and the bench: it has no model, but every fault of a real endpoint.

It is a stand-in for what tests cannot have, a provider. The name of the model that is asked for chooses what it does.
`python chat_server.py --rate 100` prints its address as JSON, and ends when its input does.
"""

import argparse
import asyncio
import hashlib
import json
import sys
import time
from collections import Counter, deque

KEY = "test-key-7d1f6c0e5a9b"
_LONG = 4000
_MESSAGES_FIELDS = {"model", "system", "messages", "max_tokens", "temperature", "top_p", "tools", "tool_choice"}


class Bucket:
    """A rate limit as providers have it: so many calls a second, and a second's worth at once."""

    def __init__(self, rate):
        self._rate = rate
        self._tokens = rate
        self._at = time.monotonic()

    def take(self):
        """Return 0, or how long to wait."""
        now = time.monotonic()
        self._tokens = min(self._rate, self._tokens + (now - self._at) * self._rate)
        self._at = now
        if self._tokens >= 1:
            self._tokens -= 1
            return 0.0
        return (1 - self._tokens) / self._rate


class ChatServer:
    """Answers `/v1/chat/completions` and `/v1/messages`, and says at `/stats` what it has seen."""

    def __init__(self, rate=None, latency_s=0.0):
        self._bucket = Bucket(rate) if rate else None
        self._latency_s = latency_s
        self.counts = Counter()
        self._seen = Counter()
        self._billed = {}
        self.bodies = deque(maxlen=50)
        self._in_flight = 0

    async def serve(self, reader, writer):
        """Answer the requests of one connection."""
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                lines = head.decode().split("\r\n")
                fields = [line.split(": ", 1) for line in lines[1:] if ": " in line]
                headers = {name.lower(): value for name, value in fields}
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                path = lines[0].split(" ")[1]
                status, more, answer = await self._answer(path, headers, body)
                if status is None:
                    break
                payload = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
                extra = "".join(f"{name}: {value}\r\n" for name, value in more.items())
                length = f"Content-Length: {len(payload)}\r\n"
                writer.write(f"HTTP/1.1 {status} X\r\n{length}{extra}\r\n".encode() + payload)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _answer(self, path, headers, body):
        if path == "/stats":
            return 200, {}, {**self.counts, "billed": self._billed, "bodies": list(self.bodies)}
        self.counts["requests"] += 1
        anthropic = path.endswith("/messages")
        given = headers.get("x-api-key") if anthropic else headers.get("authorization", "").removeprefix("Bearer ")
        if given != KEY:
            return 401, {}, {"error": {"message": f"Incorrect API key provided: {given}"}}
        asked = json.loads(body)
        self.bodies.append(asked)
        if self._bucket is not None and (wait_s := self._bucket.take()):
            self.counts["throttled"] += 1
            return 429, {"Retry-After": str(max(1, round(wait_s)))}, {"error": {"message": "Rate limit reached"}}
        self._in_flight += 1
        self.counts["most_at_once"] = max(self.counts["most_at_once"], self._in_flight)
        try:
            if self._latency_s:
                await asyncio.sleep(self._latency_s)
            answer = await self._behave(asked, anthropic=anthropic)
        finally:
            self._in_flight -= 1
        if answer[0] == 200:
            self.counts["answered"] += 1
            self.counts["last_at_us"] = int(time.monotonic() * 1e6)
            self.counts.setdefault("first_at_us", int(time.monotonic() * 1e6))
        return answer

    async def _behave(self, asked, *, anthropic):
        model = asked["model"]
        self._seen[model] += 1
        nth = self._seen[model]
        error = lambda status, message, **more: (status, more, {"error": {"message": message}})  # noqa: E731
        if anthropic and (fault := _fault_of(asked)):
            return error(400, fault)
        if model == "storm" and nth % 4:
            return error(429, "Too many requests", **{"Retry-After": "0.05"})
        if model == "storm-now":
            return error(429, "Too many requests", **{"Retry-After": "0"})
        if model == "storm-past":
            return error(429, "Too many requests", **{"Retry-After": "Wed, 21 Oct 2015 07:28:00 GMT"})
        if model == "shaky" and nth % 2:
            return error(500, "The server had an error")
        if model == "down" or (model == "dying" and nth > 1):
            return error(503, "Overloaded")
        if model == "jammed" and nth > 1:
            return error(429, "Too many requests")
        if model == "resting":
            return error(429, "Too many requests", **{"Retry-After": "900"})
        if model == "prudish" and nth % 2 == 0:
            return error(400, "Output blocked by content filtering policy")
        if model == "slow" and nth % 2:
            await asyncio.sleep(60)
        if model == "garbled" and nth % 2:
            return 200, {}, b'{"choices": [{"mess'
        if model == "hanging-up" and nth % 2:
            return None, {}, b""
        if model == "garbled-always":
            return 200, {}, b"<html>bad gateway</html>"
        if model == "blind" and "image_url" in json.dumps(asked["messages"]):
            return error(400, "This model does not support image input")
        if model == "short-sighted" and len(json.dumps(asked["messages"])) > _LONG:
            return error(400, "This model's maximum context length is 1000 tokens")
        if model == "no-schema" and "response_format" in asked:
            return error(400, "response_format is not supported by this model")
        if model == "poor":
            return 429, {}, {"error": {"message": "You exceeded your quota", "code": "insufficient_quota"}}
        if model == "broke":
            return error(402, "Insufficient credits")
        if model == "spent-out":
            return error(400, "Your credit balance is too low to access the API")
        if model.startswith("unknown"):
            return error(404, f"The model `{model}` does not exist")
        return self._reply(asked, model, nth, anthropic=anthropic)

    def _reply(self, asked, model, nth, *, anthropic):
        text, calls, finish, refusal = "", [], "stop", None
        name = self._choose(asked)
        if asked.get("tools") and not (anthropic and asked["tool_choice"]["type"] == "tool"):
            calls, text = self._tools(model, _turn(asked), name), None
        elif model == "mute-at-first" and "no legal action" not in json.dumps(asked):
            text = ""
        elif model == "refusing":
            text, refusal = None, "I cannot help with that."
        elif model == "cut-off":
            text, finish = '{"action": "le', "length"
        elif model == "illegal" or (model == "illegal-at-first" and "no legal action" not in json.dumps(asked)):
            text = json.dumps({"action": "fly away"})
        elif "json_schema" in asked.get("response_format", {}) or anthropic:
            text = json.dumps({"thoughts": "I think.", "action": name})
        else:
            text = f"I think.\nACTION: {name}" if "last line" in json.dumps(asked["messages"]) else name
        sent = sum(len(json.dumps(message)) for message in asked["messages"]) // 4
        if anthropic:
            return 200, {}, self._anthropic(asked, text, calls, sent)
        message = {"role": "assistant", "content": text, "refusal": refusal}
        if calls:
            finish = "tool_calls"
            message["tool_calls"] = [
                {"id": f"call_{nth}_{place}", "type": "function", "function": {"name": tool, "arguments": arguments}}
                for place, (tool, arguments) in enumerate(calls)
            ]
        usage = {"prompt_tokens": sent, "completion_tokens": 10, "prompt_tokens_details": {"cached_tokens": sent // 2}}
        self._bill(model, sent + 10)
        if model == "secretive":
            usage = None
        choice = {"index": 0, "message": message, "finish_reason": finish}
        return 200, {}, {"model": f"{model}-2026", "system_fingerprint": "fp_1", "choices": [choice], "usage": usage}

    def _bill(self, model, tokens):
        """Count what a provider would ask money for."""
        bill = self._billed.setdefault(model, {"calls": 0, "tokens": 0, "most": 0})
        bill["calls"] += 1
        bill["tokens"] += tokens
        bill["most"] = max(bill["most"], tokens)

    @staticmethod
    def _anthropic(asked, text, calls, sent):
        used = {"type": "tool_use"}
        blocks = [
            {**used, "id": f"t{n}", "name": tool, "input": json.loads(given)} for n, (tool, given) in enumerate(calls)
        ]
        if text and asked.get("tools"):
            blocks = [{**used, "id": "t", "name": asked["tools"][0]["name"], "input": json.loads(text)}]
        elif text:
            blocks = [{"type": "text", "text": text}]
        usage = {"input_tokens": sent, "cache_read_input_tokens": 5, "output_tokens": 10}
        return {"model": asked["model"], "content": blocks, "stop_reason": "tool_use", "usage": usage}

    @staticmethod
    def _tools(model, turn, name):
        move = ("make_move", json.dumps({"action": name}))
        if model == "wrong-tools":
            return [("launch_rocket", "{}")]
        if model == "clumsy":
            turns = [
                [("launch_rocket", "{}")],
                [("make_move", '{"square": 1}'), ("get_current_board", "{}")],
                [("make_move", '{"action": "fly"}'), ("get_legal_moves", "{}")],
                [move],
            ]
            return turns[turn % 4]
        return [move] if turn % 2 else [("get_current_board", "{}"), ("get_legal_moves", "{}")]

    @staticmethod
    def _choose(asked):
        """Choose a legal action that depends on the messages alone."""
        schema = asked.get("response_format", {}).get("json_schema", {}).get("schema")
        for tool in asked.get("tools", []):
            known = tool.get("input_schema") or tool.get("function", {}).get("parameters", {})
            schema = known if "action" in known.get("properties", {}) else schema
        action = (schema or {}).get("properties", {}).get("action", {})
        said = asked["messages"][-1]["content"]
        said = said if isinstance(said, str) else "\n".join(part.get("text", "") for part in said)
        if "minItems" in action:
            return [0.0] * action["minItems"]
        listed = said.rpartition("Legal actions:")[2].splitlines()
        names = action.get("enum") or [line[2:] for line in listed if line.startswith("- ")]
        digest = hashlib.sha256(said.encode()).digest()
        return names[digest[0] % len(names)]


def _fault_of(asked):
    """Return what Anthropic's endpoint says about a request that it does not take; None if it is well."""
    unknown = asked.keys() - _MESSAGES_FIELDS
    if unknown or asked.get("temperature", 0) > 1:
        return f"{', '.join(unknown) or 'temperature'}: Extra inputs are not permitted"
    called = set()
    for place, message in enumerate(asked["messages"]):
        if message["role"] not in ({"user", "assistant"} if place else {"user"}) or not message["content"]:
            return f"messages.{place}: all messages must have a role and non-empty content"
        if any(block["type"] == "text" and not block["text"].strip() for block in message["content"]):
            return f"messages.{place}: text content blocks must contain non-whitespace text"
        results = {block["tool_use_id"] for block in message["content"] if block["type"] == "tool_result"}
        if results != called:
            return f"messages.{place}: each tool_use must have a tool_result in the next message"
        called = {block["id"] for block in message["content"] if block["type"] == "tool_use"}
    return None


def _turn(asked):
    """How often the model has called tools in this conversation."""
    return json.dumps(asked["messages"]).count('"role": "assistant", "content": [{"type": "tool_use"') + sum(
        bool(message.get("tool_calls")) for message in asked["messages"]
    )


async def _main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rate", type=float)
    parser.add_argument("--latency", type=float, default=0.0)
    arguments = parser.parse_args()
    server = ChatServer(arguments.rate, arguments.latency)
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0, limit=1 << 24)
    port = listening.sockets[0].getsockname()[1]
    print(json.dumps({"address": f"http://127.0.0.1:{port}/v1", "stats": f"http://127.0.0.1:{port}/stats"}), flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.buffer.read)


if __name__ == "__main__":
    asyncio.run(_main())
