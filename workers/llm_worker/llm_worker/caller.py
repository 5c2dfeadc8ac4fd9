"""Gets a reply to a question: from the cache, or from the endpoint, with every wait bounded."""

import asyncio
import hashlib
import random
import re
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import httpx2
from pydantic_core import from_json, to_json

from llm_worker.apis import api_of
from llm_worker.cache import ReplyCache, key_of, schema_key_of
from llm_worker.config import LlmConfig
from llm_worker.exchange import Question, Reply
from llm_worker.failures import ContextError, explain, seconds_to_wait
from llm_worker.gate import Gate
from llm_worker.keys import Key, is_loopback
from llm_worker.problems import EndpointError, NoSchemaError, RefusedError, TransientError
from llm_worker.spending import Ledger, Price, read_price

__all__ = ["Caller"]

_OK = 200
_CONNECTIONS = 8
_FIRST_WAIT_S, _MOST_WAIT_S = 0.5, 20.0
Serve = Callable[[], Awaitable[str]]


class Caller:
    """One endpoint, one model, one operator."""

    def __init__(
        self, config: LlmConfig, key: Key | None, shared: Path, serve: Serve | None = None, own: Path | None = None
    ) -> None:
        """Use `shared` for what the processes of a host share.

        `serve` starts a model in this process and returns its address; calls to it are counted in the process's `own`
        folder, and shown with the others'.
        """
        self._config = config
        self._key = key
        self._api = api_of(config)
        self._serve = serve
        self.price: Price | None = read_price(config)
        self._shared = shared
        most = 1 if serve is not None else config.concurrency.most
        self._gate = Gate(shared, _gate_name(config), min(config.concurrency.start, most), most, own)
        self._cache = None if config.cache == "off" else ReplyCache(shared / "llm" / "replies.db")
        self._ledger: Ledger | None = None
        self._clients: dict[int, httpx2.AsyncClient] = {}
        self._address = ""
        self._context = httpx2.create_ssl_context()
        self._starting = asyncio.Lock()
        self.calls = 0
        self._has_succeeded = False
        self._has_replied = False
        """Whether a question was answered, now or for the cache: then a refusal may be due to one question alone."""
        self._schemas: bool | None = None
        """Whether the endpoint takes schemas, as far as that is known."""
        if config.structured == "auto" and self._cache is not None and self._cache.get(schema_key_of(config)):
            self._refuse_schemas()
        # Only spreads retries in time, and no decision depends on it.
        self._jitter = random.Random()

    def join(self, experiment: str, fingerprint: str) -> None:
        """Keep the books of an experiment."""
        if self._ledger is None:
            path = self._shared / "llm" / "spending" / f"{experiment}-{fingerprint}.json"
            self._ledger = Ledger(path, self._config.limits.experiment)

    async def ask(self, question: Question, deadline: float) -> Reply:
        """Return the reply to a question; DecisionError if there is none. The deadline is of the monotonic clock."""
        key = key_of(self._config, question)
        if self._cache is not None:
            found = self._cache.get(key)
            if found is not None:
                self._learn_from(question)
                self._require_usage(found)
                return found
            if self._config.cache == "only":
                raise RefusedError("cache: only: the cache has no reply to this question; play once with cache: use")
        reply = await self._insist(question, deadline)
        self._learn_from(question)
        if self._ledger is not None:
            self._ledger.add(reply, self.price.of(reply) if self.price else 0.0)
        if self._cache is not None:
            reply = self._cache.put(key, reply)
        self._require_usage(reply)
        return reply

    @property
    def takes_schemas(self) -> bool:
        """Whether questions are to have a schema."""
        return self._config.structured == "schema" or (self._config.structured == "auto" and self._schemas is not False)

    def _learn_from(self, question: Question) -> None:
        """Remember what an answered question says about the endpoint."""
        self._has_replied = True
        if question.schema is not None:
            self._schemas = True

    def _require_usage(self, reply: Reply) -> None:
        """Refuse to play on where a limit would never be reached."""
        if self._config.counts_tokens and not reply.has_usage:
            raise RefusedError(
                f"{self._config.address} does not say how many tokens it used, so limits of tokens and usd cannot "
                "hold: limit turns or seconds instead, or use an endpoint that sends `usage`"
            )

    def _refuse_schemas(self) -> None:
        """Ask without schemas from now on, also when the experiment is played again; say so once."""
        if self._schemas is None:
            config = self._config
            print(
                f"structured: auto: {config.address} takes no schema for model {config.model_name}; "
                "answers are read as text",
                file=sys.stderr,
                flush=True,
            )
            if self._cache is not None:
                self._cache.put(schema_key_of(config), Reply(""))
        self._schemas = False

    async def close(self) -> None:
        """Close connections and files."""
        for client in self._clients.values():
            await client.aclose()
        self._gate.close()
        for each in (self._cache, self._ledger):
            if each is not None:
                each.close()

    async def _insist(self, question: Question, deadline: float) -> Reply:
        """Call until a reply comes, the tries are used up, or the deadline has passed."""
        failed = throttled = 0
        wait_s, last = _FIRST_WAIT_S, "no call was made"
        while True:
            try:
                slot = await self._gate.enter(deadline, first=failed + throttled > 0)
            except TimeoutError:
                raise EndpointError(
                    f"{self._config.address} gave no answer within patience_s ({self._config.patience_s:g} s): {last}"
                ) from None
            began, started = time.time(), time.monotonic()
            outcome, asked_for = "unused", None
            try:
                if self._ledger is not None:
                    self._ledger.require_room()  # only now: what others spent while this waited counts, too
                outcome = "failed"
                reply = await self._call(question, deadline, await self._connect(slot))
                outcome = "good"
            except TransientError as error:
                outcome, last = "throttled" if error.throttled else "failed", str(error)
                asked_for = None if error.wait_s is None else min(error.wait_s, self._config.patience_s)
            except (RefusedError, ContextError, EndpointError) as error:
                outcome = "good"  # the endpoint is well
                if isinstance(error, NoSchemaError):
                    if not self._schemas:
                        self._refuse_schemas()
                    raise
                if self._has_replied or isinstance(error, RefusedError):
                    raise
                raise RefusedError(str(error)) from error
            finally:
                self._gate.leave(slot, began, outcome, asked_for)
            if outcome == "good":
                self._has_succeeded = True
                return reply.timed(time.monotonic() - started, failed, throttled)
            if outcome == "throttled":
                throttled += 1
                if not asked_for:  # 0, or a date that has passed, would be a loop without a pause
                    await self._rest(wait_s, deadline)
                    wait_s = min(2 * wait_s, _MOST_WAIT_S)
                continue
            failed += 1
            if failed >= self._config.tries:
                kind = EndpointError if self._has_succeeded else RefusedError
                raise kind(f"{last} (tried {failed} times); is the endpoint running, and its address right?")
            await self._rest(asked_for or wait_s, deadline)
            wait_s = min(2 * wait_s, _MOST_WAIT_S)

    async def _rest(self, wait_s: float, deadline: float) -> None:
        """Wait before the next try; not for long after the deadline, which the gate notices."""
        left = deadline - time.monotonic()
        await asyncio.sleep(max(0.0, min(wait_s * (0.75 + 0.5 * self._jitter.random()), left)))

    async def _call(self, question: Question, deadline: float, client: httpx2.AsyncClient) -> Reply:
        """Make one call."""
        config = self._config
        body = to_json(self._api.body(config, question))
        timeout_s = max(0.001, min(config.timeout_s, deadline - time.monotonic()))
        self.calls += 1
        try:
            async with asyncio.timeout(timeout_s):
                response = await client.post(self._api.path, content=body)
        except TimeoutError:
            raise TransientError(f"{config.address} did not answer within {timeout_s:g} s (timeout_s)") from None
        except httpx2.HTTPError as error:
            why = str(error) or type(error).__name__
            raise TransientError(f"{config.address} cannot be reached: {why}") from error
        if response.status_code != _OK:
            text = response.text if self._key is None else self._key.hide(response.text)
            problem = explain(config, question, response.status_code, text)
            if isinstance(problem, TransientError):
                problem.wait_s = seconds_to_wait(response.headers)
            raise problem
        try:
            return self._api.read(from_json(response.content))
        except (ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
            shown = response.text[:80] if self._key is None else self._key.hide(response.text)[:80]
            raise TransientError(f"{config.address} answered with what is no reply: {shown!r} ({error!r})") from error

    async def _connect(self, slot: int) -> httpx2.AsyncClient:
        """Return the client of a slot. A client looks at all its connections for each call, so each has few of them."""
        number = slot // _CONNECTIONS
        async with self._starting:
            if not self._address:
                self._address = self._config.address if self._serve is None else await self._serve()
            if number not in self._clients:
                self._clients[number] = httpx2.AsyncClient(
                    base_url=self._address,
                    headers={"Content-Type": "application/json", **self._api.headers(self._key)},
                    limits=httpx2.Limits(max_connections=_CONNECTIONS, max_keepalive_connections=_CONNECTIONS),
                    timeout=None,
                    verify=self._context,
                    follow_redirects=False,
                    trust_env=not is_loopback(self._address),  # a proxy of the user's leads elsewhere
                )
        return self._clients[number]


def _gate_name(config: LlmConfig) -> str:
    """Name an endpoint and model such that it can be the name of a file."""
    readable = re.sub(
        r"[^a-zA-Z0-9]+", "-", f"{config.address.partition('//')[2] or config.endpoint}-{config.model_name}"
    )
    digest = hashlib.sha256(f"{config.address} {config.model_name}".encode()).hexdigest()[:6]
    return f"{readable.strip('-')[:40]}-{digest}"
