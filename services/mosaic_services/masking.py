"""Hides secrets in what leaves through the gateway: text under names such as `api_key` or `password`.

In documents and in lines of text they are found by their names. In files they are found by their values, which the
configuration of the run names.
"""

from __future__ import annotations

import html
import json
import re
import string
from functools import lru_cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

__all__ = ["MASK", "blank", "find_mask", "longest_form", "mask", "secrets_in"]

MASK = "•••"
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])|[^A-Za-z0-9]+")
_SECRET = frozenset(
    [
        "secret",
        "password",
        "passwd",
        "pwd",
        "passphrase",
        "credential",
        "credentials",
        "authorization",
        "apikey",
        "accesskey",
        "authkey",
        "secretkey",
        "privatekey",
    ]
)
_SECRET_KEY = frozenset(["api", "access", "auth", "secret", "private", "signing", "encryption", "ssh"])
# Tokens of text, in the vocabulary of a language model, are no secrets.
_OF_TEXT = frozenset(
    [
        "eos",
        "bos",
        "pad",
        "unk",
        "sep",
        "cls",
        "mask",
        "stop",
        "start",
        "end",
        "begin",
        "special",
        "image",
        "think",
        "prompt",
        "completion",
        "input",
        "output",
        "max",
        "min",
        "new",
        "first",
        "last",
        "next",
    ]
)
# A name may end in these; the rest of it is looked for before, in a few characters, so that long lines cost little.
_IN_TEXT = re.compile(
    r"(?:token|secret|password|passwd|pwd|passphrase|credential|authorization|key)s?"
    r"""(?P<between>\\*["']?[ \t]{0,4}[:=][ \t]{0,4})"""
    r"""(?:(?P<quote>\\*["'])(?P<quoted>(?:(?!(?P=quote))(?:\\.|[^\\]))*)"""
    r"|(?P<list>\[[^\][{}]*\])"
    r"""|(?P<bare>(?:(?:Bearer|Basic)[ ]+)?[^\s"'\\,;&(){}\[\]<>]+))""",
    re.IGNORECASE | re.DOTALL,
)
_ROOTS = ("token", "secret", "passw", "pwd", "passphrase", "credential", "authorization", "key")
_NAME_LETTERS = string.ascii_letters + string.digits + "_.-"
_LONGEST_NAME = 64
_OPTION = re.compile(r"--?([A-Za-z0-9_.-]+)")
_QUOTED = re.compile(r"""(\\*["'])((?:(?!\1)(?:\\.|[^\\]))+)\1""", re.DOTALL)
_NO_TEXT = re.compile(r"[-+]?[0-9.][0-9.eE+-]*|true|false|null|none", re.IGNORECASE)
# Types of values in which nothing can be hidden: most of what is sent.
_PLAIN = frozenset({int, float, bool, type(None)})
# A shorter value is looked for in files only with its quotes: it may be part of any word.
_SHORT = 8


def mask(value: Any) -> Any:
    """Return a document without secrets. Only text is hidden: `max_tokens: 100` is none."""
    return _walk(value, lambda _: MASK)


def secrets_in(document: Any) -> list[str]:
    """Return the texts that `mask` hides in a document, the longest first."""
    found: set[str] = set()

    def note(text: str) -> str:
        if text != MASK:
            found.add(text)
        return MASK

    _walk(document, note)
    return sorted(found, key=len, reverse=True)


def find_mask(document: Any, path: str = "") -> str | None:
    """Return the path of a text that holds the mask, and so stands for a secret that was not shown."""
    if isinstance(document, str):
        return path if MASK in document else None
    inside: Iterable[tuple[Any, Any]] = ()
    if isinstance(document, dict):
        inside = document.items()
    elif isinstance(document, list):
        inside = enumerate(document)
    found = (find_mask(each, f"{path}.{key}" if path else str(key)) for key, each in inside)
    return next((each for each in found if each is not None), None)


def blank(data: bytes, secrets: Iterable[str]) -> bytes:
    """Return the same number of bytes, with `*` in the place of secrets."""
    for form in _forms(secrets):
        data = data.replace(form, b"*" * len(form))
    return data


def longest_form(secrets: Iterable[str]) -> int:
    """Return how many bytes a secret takes at most, however it is written."""
    return max(map(len, _forms(secrets)), default=0)


def _forms(secrets: Iterable[str]) -> list[bytes]:
    """Return how secrets are written in files: plain, in HTML, and as strings of JSON and Python."""
    found: dict[bytes, None] = {}
    for secret in secrets:
        quoted = [json.dumps(secret), json.dumps(secret, ensure_ascii=False), f"'{secret}'"]
        plain = [html.escape(secret), *(each[1:-1] for each in quoted)] if len(secret) >= _SHORT else []
        for each in (*plain, *quoted):
            found[each.encode("utf-8", "surrogatepass")] = None
    return list(found)


def _walk(value: Any, hide: Callable[[str], str], *, is_secret: bool = False) -> Any:
    if isinstance(value, str):
        if is_secret and value:
            return hide(value)
        return _hide_in_text(value, hide) if "=" in value or ":" in value else value
    if isinstance(value, dict):
        # A map under such a name is looked into: it may be the schema of a field.
        return {
            key: item
            if type(item) in _PLAIN
            else _walk(item, hide, is_secret=isinstance(item, str | list) and _names_secret(str(key)))
            for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        return _walk_list(value, hide, is_secret=is_secret)
    return value


def _walk_list(values: list[Any] | tuple[Any, ...], hide: Callable[[str], str], *, is_secret: bool) -> list[Any]:
    """Walk a list; in one of arguments, such as `["--api-key", "…"]`, the value follows its name."""
    if _PLAIN.issuperset(map(type, values)):  # such as the points of a curve
        return list(values)
    made = []
    follows = False
    for each in values:
        made.append(
            _walk(each, hide, is_secret=is_secret or follows) if isinstance(each, str | dict | list | tuple) else each
        )
        option = _OPTION.fullmatch(each) if isinstance(each, str) else None
        follows = option is not None and _names_secret(option[1])
    return made


def _hide_in_text(text: str, hide: Callable[[str], str]) -> str:
    """Hide what follows a name in a line: of JSON, YAML, Python, a command or an address."""
    lowered = text.lower()
    if not any(root in lowered for root in _ROOTS):
        return text

    def replace(match: re.Match[str]) -> str:
        begin = match.start()
        name = match[0][: match.start("between") - begin]
        before = text[max(0, begin - _LONGEST_NAME) : begin]
        if not _names_secret(before[len(before.rstrip(_NAME_LETTERS)) :] + name):
            return match[0]
        head = name + match["between"]
        if match["quote"] is not None:
            return head + match["quote"] + (hide(match["quoted"]) if match["quoted"] else "")
        if match["list"] is not None:
            return head + _QUOTED.sub(lambda item: item[1] + hide(item[2]) + item[1], match["list"])
        return match[0] if _NO_TEXT.fullmatch(match["bare"]) else head + hide(match["bare"])

    return _IN_TEXT.sub(replace, text)


@lru_cache(maxsize=4096)
def _names_secret(name: str) -> bool:
    """Whether a name is that of a secret: `OPENAI_API_KEY` and `accessToken` are, `eos_token` and `key_env` are not."""
    words = [word.lower() for word in _HUMP.split(name) if word]
    if not words:
        return False
    last, before = words[-1], words[-2] if len(words) > 1 else ""
    if last in _SECRET or last.removesuffix("s") in _SECRET:
        return True
    if last in {"key", "keys"}:
        return before in _SECRET_KEY
    if last == "token":
        return before not in _OF_TEXT
    return last == "tokens" and before != "" and before not in _OF_TEXT
