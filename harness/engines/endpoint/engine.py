"""Any OpenAI-compatible server as an engine: one that serves the baseline, and one that was started with the strategy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from typing import Any, ClassVar
from urllib.parse import urlsplit

from harness.engines.base import CONTROL, Demands, ModelFacts, Start, Support
from harness.engines.hf import checkpoint
from harness.engines.serving import ServingEngine
from harness.engines.vllm.serving import scales
from harness.types import BadInput, Generation, digest
from strategies.base import KVShape, Layer
from strategies.stack import Stack

APIS = ("completions", "chat")
BLOCK = 16  # tokens of a block where nobody says: what vLLM has on a GPU
SHOWN = {  # what shows that a server has a layer, by slot
    "paging": "its block_size shows paged, nothing the others (engine.claimed=true)",
    "prefix": "cached tokens of each answer show it",
    "structure": "nothing shows it (engine.claimed=true)",
    "evict": "nothing shows it (engine.claimed=true)",
    "quant": "its cache_dtype shows it",
    "offload": "its counters of tokens that came back show it",
}


@dataclass(frozen=True, kw_only=True)
class EndpointEngine(ServingEngine):
    """Servers that run already. A strategy is a claim about how the candidate was started.

    Args:
        baseline: URL of a server with a full-precision cache; it serves the baseline and the control.
        candidate: URL of a server that was started with the strategy; None: the baseline's serves both.
        api: ``completions``, with our own rendering of the prompt, or ``chat``, with the server's.
        model: the name under which it is served; None: the only one that is.
        key_env: environment variable that holds the key, if the servers want one.
        claimed: whether a layer that nothing shows counts as acting, on the user's word.
        concurrency: requests in flight.
        timeout_s: of one try of a request.
        retries: tries after the first, after lost connections and status 408, 409, 429 and 5xx.
        guidellm: interpreter of an environment that has GuideLLM, which sends the requests of a load; None for this one.
        silence_s: a worker that answers nothing for so long hangs, and is ended.
    """

    name: ClassVar[str] = "endpoint"
    version: ClassVar[int] = 1
    unseen: ClassVar[frozenset[str]] = frozenset(
        {"itl", "peak"}
    )  # GuideLLM tells no single tokens, and no server its peak

    baseline: str | None = None
    candidate: str | None = None
    api: str = "completions"
    model: str | None = None
    key_env: str = "OPENAI_API_KEY"
    claimed: bool = False
    concurrency: int = 8
    timeout_s: float = 300.0
    retries: int = 4
    guidellm: str | None = None
    silence_s: float | None = 1800.0

    def __post_init__(self) -> None:
        problems = []
        for field in ("baseline", "candidate"):
            if (url := getattr(self, field)) is not None and (wrong := _wrong(url)):
                problems.append(f"engine.{field} must be http(s)://host[:port][/path], got {wrong}")
        if self.api not in APIS:
            problems.append(f"engine.api must be one of {', '.join(APIS)}, got {self.api!r}")
        if self.concurrency < 1:
            problems.append(f"engine.concurrency must be 1 or more, got {self.concurrency}")
        if self.retries < 0:
            problems.append(f"engine.retries must be 0 or more, got {self.retries}")
        if self.timeout_s <= 0:
            problems.append(f"engine.timeout_s must be above 0, got {self.timeout_s}")
        tried_s = self.timeout_s * (1 + self.retries)
        if self.silence_s is not None and self.silence_s <= tried_s:
            rule = f"must be above {tried_s:g} s, which all tries of a request may take"
            problems.append(f"engine.silence_s {rule}, got {self.silence_s}")
        if problems:
            raise ValueError("; ".join(problems))

    @property
    def urls(self) -> dict[str, str]:
        """URLs by field."""
        known = {"baseline": self.baseline, "candidate": self.candidate}
        return {field: url for field, url in known.items() if url is not None}

    def _field(self, stack: Stack) -> str:
        """Which server answers for ``stack``."""
        mine = stack.layers() and stack.name != CONTROL
        return "candidate" if mine and self.candidate is not None else "baseline"

    @cached_property
    def servers(self) -> dict[str, Any]:
        """What is known of each server, by field. Raises BadInput where one cannot be asked."""
        if command := self.missing():
            raise BadInput(f"engine: openai is not installed ({command}); kvgate doctor tells what is")
        if self.baseline is None:
            raise BadInput("engine.baseline must be the URL of a server with a full-precision cache, got null")
        from harness.engines.endpoint import server
        from harness.engines.endpoint.client import Failed

        found, problems = {}, []
        for field, url in self.urls.items():
            with closing(self._client(field)) as client:
                try:
                    found[field] = server.read(client, self.model)
                except Failed as error:
                    problems.append(f"engine.{field} must be a server that answers, got {url} ({error})")
                except ValueError as error:
                    problems.append(f"engine.model {error} ({url})")
        if problems:
            raise BadInput(*problems)
        return found

    @property
    def gpus(self) -> int:
        return 0  # the servers have them

    def missing(self) -> str | None:
        return None if find_spec("openai") else "pip install 'kvgate[endpoint]'"

    def _client(self, field: str) -> Any:
        from harness.engines.endpoint.client import Client

        return Client(self.urls[field], self.key_env, self.timeout_s, self.retries)

    def describe(self, model: Mapping[str, Any]) -> ModelFacts:
        """``model.dtype=auto`` is the dtype that it is deployed in: a server does not tell its own."""
        servers = self.servers
        field = "deploy_dtype" if model.get("dtype", "auto") == "auto" else "dtype"
        dtype = model.get(field, "bfloat16")
        if dtype not in checkpoint.DTYPES:
            raise BadInput(f"model.{field} must be one of {', '.join(checkpoint.DTYPES)}, got {dtype!r}")
        facts = checkpoint.describe(model, checkpoint.DTYPES[dtype])
        room = min([facts.max_tokens, *(one.max_tokens for one in servers.values() if one.max_tokens)])
        if not (exact := self.serves(Stack("full"), facts.shape)).yes:
            raise BadInput(f"engine.baseline: {exact.why}")
        facts.tokenizer.max_tokens = room
        return ModelFacts(**{**vars(facts), "max_tokens": room})

    def resolve(self, stack: Stack) -> Stack:
        return stack.settled(paging={"block": BLOCK}, quant=scales(stack))

    def supports(self, layer: Layer) -> Support:
        if layer.calibrates:
            return Support(False, "what a server learned from a text of its own is not known here, nor what it weighs")
        return Support(True, f"the server's to do; {SHOWN[layer.slot]}")

    def controls(self, stack: Stack) -> Support:
        if stack.evict is None or len(stack.layers()) > 1:
            return Support(False, "a server has one setting, the strategy's: a control is an eviction and nothing else")
        return super().controls(stack)

    def generates(self, generation: Generation) -> Support:
        if generation.thinking:
            return Support(False, "servers are asked for answers, given at once: gen.think_tokens=0")
        return Support(True, "with the run's temperature and stop strings, and a seed for each draw")

    def starts(self, start: Start, stack: Stack) -> Support:
        if start in ("reloaded", "restarted"):
            return Support(False, "no request makes a server lose what its device holds: start=cold or start=warm")
        return Support(True, "requests before the one that counts bring its caches into that state")

    def times(self, stack: Stack, demands: Demands, loads: int) -> Support:
        if self.guidellm is None and find_spec("guidellm") is None:
            return Support(
                False,
                "GuideLLM sends the requests of a load, and is not installed: pip install 'kvgate[bench]', or name with "
                "engine.guidellm the interpreter of an environment that has it",
            )
        return Support(True, "GuideLLM sends the requests, and tells when the first and the last token of each came")

    def serves(self, stack: Stack, shape: KVShape) -> Support:
        """Whether no setting that the server tells contradicts the strategy."""
        from harness.engines.endpoint import proof

        field = self._field(stack)
        problems = proof.problems(stack, self.servers[field], shape.layers)
        where = f"the server at {self.urls[field]} was started with "
        return Support(not problems, where + "; ".join(problems) if problems else "nothing it tells says otherwise")

    def load_key(self, stack: Stack) -> str:
        """Stacks claim different things of a server, so each is checked by itself."""
        return "baseline" if stack.name == CONTROL or not stack.layers() else digest(stack.spec())

    def spec(self) -> dict[str, Any]:
        return {"name": self.name, "version": self.version, "api": self.api, "concurrency": self.concurrency}

    def spec_for(self, stack: Stack) -> dict[str, Any]:
        """The server that answers; a control is the baseline's server, asked less."""
        served = {"server": self.servers[self._field(stack)].facts()}
        if stack.name == CONTROL:
            return {**served, "control": "thinned"}
        return {**served, "claimed": self.claimed} if stack.layers() else served

    @contextmanager
    def open(self, model: Mapping[str, Any], stack: Stack) -> Iterator[Any]:
        facts = self.describe(model)
        from harness.engines.endpoint.guide import Driver
        from harness.engines.endpoint.session import EndpointSession

        field = self._field(stack)
        with closing(self._client(field)) as client, Driver(self.guidellm) as driver:
            yield EndpointSession(facts, client, self.servers[field], self.api, self.claimed, self.concurrency, driver)


def _wrong(url: str) -> str:
    """What of ``url`` is not as it must be, without the secrets it may hold; nothing if all is well."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        return url.rpartition("@")[2]
    if parts.username or parts.query:
        return "one with a user or a query, where secrets would be stored: engine.key_env names the key"
    return ""
