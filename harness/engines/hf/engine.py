"""The reference engine on transformers: what it serves, what a model is to it, and how one is opened."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any, ClassVar

import torch
from transformers import AutoModelForCausalLM

from harness.engines.base import Compress, Demands, Engine, ModelFacts, Prefill, Start, Support
from harness.engines.hf import checkpoint, fetch, links
from harness.engines.hf.checkpoint import DTYPES
from harness.engines.hf.session import HFSession
from harness.types import BadInput
from strategies.base import KVShape, Layer, Offload
from strategies.stack import Stack

ACTS = {  # what this engine does with the layers of a slot
    "paging": "sets room aside in the stores that tokens are packed into",
    "prefix": "computes only the tokens that no earlier prompt began with",
    "structure": "acts on the real cache; memory is freed",
    "evict": "acts on the real cache; memory is freed",
    "quant": "acts on the real cache; memory is freed",
    "offload": "sends stored tokens to the tier and fetches them layer by layer",
}


@dataclass(frozen=True, kw_only=True)
class HFEngine(Engine):
    """The reference engine on transformers: shows what a method does to quality and to bytes, on any device.

    Args:
        prefill_chunk: tokens fed at once; bounds the memory of long prompts. With an exact prefill it changes no result beyond
            rounding; with a chunked one it is the chunk that reads the stored past.
        threads: CPU threads; 0 leaves torch's own choice.
        rows: rows that decode together, if several samples share a batch; those of one sample always do. Bounded by free memory
            too. It changes no result beyond rounding.
        silence_s: a worker that answers nothing for so long hangs, and is ended; None waits for ever.
        gpus_per_worker: GPUs that one model is spread over; None: all for a single worker, one each for several.
    """

    name: ClassVar[str] = "hf"
    version: ClassVar[int] = 4

    prefill_chunk: int = 1024
    threads: int = 0
    rows: int = 32
    silence_s: float | None = None
    gpus_per_worker: int | None = None

    def __post_init__(self) -> None:
        if self.prefill_chunk < 1:
            raise ValueError(f"engine.prefill_chunk must be 1 or more, got {self.prefill_chunk}")
        if self.threads < 0:
            raise ValueError(f"engine.threads must be 0 or more, got {self.threads}")
        if self.rows < 1:
            raise ValueError(f"engine.rows must be 1 or more, got {self.rows}")
        if self.silence_s is not None and self.silence_s <= 0:
            raise ValueError(f"engine.silence_s must be above 0, or null, got {self.silence_s}")
        if self.gpus_per_worker is not None and self.gpus_per_worker < 1:
            raise ValueError(f"engine.gpus_per_worker must be 1 or more, or null, got {self.gpus_per_worker}")

    def resolve(self, stack: Stack) -> Stack:
        return stack.settled(
            paging={"block": 16},
            prefix={"block": 16, "tokens": 65536},
            quant={"scale": "token_head", "scale_from": "prompt"},
        )

    def supports(self, layer: Layer) -> Support:
        if isinstance(layer, Offload) and layer.serving_only:
            return Support(False, layer.serving_only)
        speed = "; simulated: its numbers are the hardware's, no speed is" if layer.simulated else ""
        return Support(True, f"{ACTS[layer.slot]}{speed}")

    def prefills(self, stack: Stack, prefill: Prefill, shape: KVShape) -> Support:
        if prefill == "exact" or not stack.packs:
            return Support(True, "the prompt is computed exactly, then compressed")
        if stack.prefix:
            return Support(
                False, f"prefix/{stack.prefix.name} keeps exact blocks, and a chunked prefill reads packed ones"
            )
        if stack.evict:
            return Support(False, "an eviction ranks exact keys, and a chunked prefill of a packed cache has none")
        if stack.structure and not stack.structure.by_chunk:
            return Support(False, f"structure/{stack.structure.name} works on a whole prompt")
        if any(shape.windows):
            return Support(False, "a packed layer with a sliding window cannot drop the tokens that leave it")
        return Support(True, "each chunk is packed, and read back by the next")

    def compresses(self, compress: Compress, shape: KVShape) -> Support:
        if compress == "other" and (any(shape.windows) or shape.linear_layers):
            return Support(
                False, "layers with a sliding window or linear attention do not keep the beginning of a prompt"
            )
        return Support(True, "what is compressed is what was prefilled, or its beginning")

    def starts(self, start: Start, stack: Stack) -> Support:
        if start == "reloaded":
            return Support(False, "whatever it offloads comes back at every step, so start=cold is that already")
        return Support(True, "caches and tiers are brought into that state before each sample")

    def times(self, stack: Stack, demands: Demands, loads: int) -> Support:
        if stack.prefix or stack.offload:
            return Support(False, "it computes every prompt anew when it is timed, so there is nothing to come back to")
        if demands.arrives or demands.mixed:
            return Support(False, "it serves batches of requests of one length that are all there at the start")
        if demands.output_tokens < 2:
            return Support(False, "it times the gaps between tokens, and an answer of one has none")
        if any("future" in policy.needs for policy in stack.policies):
            return Support(False, "a bound that looks ahead has no speed of its own")
        return Support(True, "each setting alone, in this process")

    def rates(self, model: Mapping[str, Any]) -> dict[str, float]:
        if self.threads:
            torch.set_num_threads(self.threads)
        return links.rates(resolved_dtype(model))

    def load_key(self, stack: Stack) -> str:
        return "hf"  # every stack shares one load and one prefill

    def spec(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "version": self.version,
            "prefill_chunk": self.prefill_chunk,
            "attention": "sdpa",
            "torch": torch.__version__,
            "transformers": version("transformers"),
            "device": device_kind(),
        }

    def describe(self, model: Mapping[str, Any]) -> ModelFacts:
        return checkpoint.describe(model, resolved_dtype(model))

    @contextmanager
    def open(self, model: Mapping[str, Any], stack: Stack) -> Iterator[HFSession]:
        if self.threads:
            torch.set_num_threads(self.threads)
        facts = self.describe(model)
        loaded = AutoModelForCausalLM.from_pretrained(
            fetch.locate(model),
            dtype=resolved_dtype(model),
            device_map=model.get("device_map", "auto") if device_kind() != "cpu" else None,
            attn_implementation="sdpa",
            trust_remote_code=bool(model.get("trust_remote_code", False)),
        ).eval()
        session = HFSession(loaded, facts, self.spec(), self.rows)
        try:
            yield session
        finally:
            session.close()
            del loaded, session
            gc.collect()
            if torch.cuda.is_available():
                torch.cuda.empty_cache()


def device_kind() -> str:
    """The kind of device that results are valid for: ``cpu``, or the accelerator's name."""
    return torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"


def resolved_dtype(model: Mapping[str, Any]) -> torch.dtype:
    """``model.dtype``; ``auto`` is float32 on a CPU, where bfloat16 is many times slower, and bfloat16 on a GPU."""
    name = model.get("dtype", "auto")
    if name == "auto":
        name = "float32" if device_kind() == "cpu" else "bfloat16"
    if name not in DTYPES:
        raise BadInput(f"model.dtype must be auto, {', '.join(DTYPES)}, got {name!r}")
    return DTYPES[name]
