"""Keys of endpoints: read from a variable, or from a file that a variable names, and shown to nobody."""

from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

from llm_worker.config import LlmConfig
from mosaic_worker.errors import ConfigError

__all__ = ["Key", "is_loopback", "read_key"]

_LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})


class Key:
    """A secret that no text of the process shows by accident."""

    def __init__(self, secret: str) -> None:
        """Keep the secret."""
        self._secret = secret

    def reveal(self) -> str:
        """Return the secret, for the header of a call."""
        return self._secret

    def hide(self, text: str) -> str:
        """Take the secret out of a text, such as the endpoint's own words about a wrong key."""
        return text.replace(self._secret, "[key]")

    def __repr__(self) -> str:
        return "Key(hidden)"


def is_loopback(address: str) -> bool:
    """Whether an address is on this machine."""
    return urlsplit(address).hostname in _LOOPBACK


def read_key(config: LlmConfig, environ: Mapping[str, str]) -> Key | None:
    """Return the key of the config's endpoint; ConfigError says which variable is missing."""
    name = config.key_env or config.preset.key_env
    if name is None:
        return None
    file = environ.get(f"{name}_FILE")
    secret = environ.get(name, "")
    if not secret and file:
        try:
            secret = Path(file).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"key_env: the file that {name}_FILE names cannot be read: {error}") from error
    secret = secret.strip()
    if not secret:
        raise ConfigError(
            f"key_env: the variable {name} is not set on this host, and {name}_FILE names no file; "
            "set one of them before `mosaic up`"
        )
    if not secret.isascii() or not secret.isprintable():
        raise ConfigError(f"key_env: what {name} holds is no key: it has characters that a header cannot have")
    if urlsplit(config.address).scheme == "http" and not is_loopback(config.address):
        raise ConfigError(f"base_url: {config.address} is not encrypted, so the key is not sent there; use https")
    return Key(secret)
