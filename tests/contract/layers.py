"""One row a layer: what every layer must keep, whoever wrote it. A new layer adds its row here."""

from __future__ import annotations

import torch

from strategies.base import Calibration, LayerView
from strategies.evict.adakv import AdaKV
from strategies.evict.delayed import Delayed
from strategies.evict.expected_attention import ExpectedAttention
from strategies.evict.h2o import H2O
from strategies.evict.hybrid import Hybrid
from strategies.evict.keydiff import KeyDiff
from strategies.evict.knorm import Knorm
from strategies.evict.kvzip import KVzip
from strategies.evict.oracle import Oracle
from strategies.evict.pyramidkv import PyramidKV
from strategies.evict.random import Random
from strategies.evict.rkv import RKV
from strategies.evict.snapkv import SnapKV
from strategies.evict.tova import TOVA
from strategies.evict.two_phase import TwoPhase
from strategies.evict.window import Window
from strategies.paging.dynamic import Dynamic
from strategies.paging.paged import Paged
from strategies.paging.static import Static
from strategies.quant.flexgen import FlexGen4
from strategies.quant.fp8 import FP8, FP8E5M2
from strategies.quant.int8 import INT8
from strategies.quant.kivi import KIVI
from strategies.quant.nvfp4 import NVFP4
from strategies.quant.per_layer import PerLayer
from strategies.quant.turboquant import PRESETS, TurboQuant
from strategies.stack import Stack
from strategies.structure.lowrank import LowRank

EVICTIONS = {
    "window": Window(keep=0.5),
    "window_tokens": Window(keep_tokens=40, sinks=2),
    "snapkv": SnapKV(keep=0.25, window=8, kernel=3),
    "keydiff": KeyDiff(keep=0.5),
    "random": Random(keep=0.25, first=2, last=8),
    "h2o": H2O(keep=0.5, every=4),
    "tova": TOVA(keep=0.5),
    "knorm": Knorm(keep=0.5),
    "adakv": AdaKV(keep=0.25, window=8),
    "pyramidkv": PyramidKV(keep=0.25, window=8),
    "expected_attention": ExpectedAttention(keep=0.5, future=16),
    "kvzip": KVzip(keep=0.5),
    "rkv": RKV(keep=0.25, every=8),
    "oracle": Oracle(keep=0.25),
    "delayed": Delayed(keep=0.25, late=3),
    "hybrid": Hybrid(keep=0.25, parts=(SnapKV(window=8), KeyDiff()), weights=(0.7, 0.3)),
    "two_phase": TwoPhase(prefill=SnapKV(keep=0.25, window=8), decode=Window(keep=0.25, every=4)),
}
FORMATS = {
    "fp8": FP8(),
    "fp8_head": FP8(scale="head"),
    "fp8_tensor": FP8(scale="tensor"),
    "fp8_text": FP8(scale="head", scale_from="text"),
    "fp8_one": FP8(scale="tensor", scale_from="one"),
    "fp8_head_one": FP8(scale="head", scale_from="one"),
    "fp8_e5m2": FP8E5M2(scale="tensor", scale_from="one"),
    "int8": INT8(),
    "int8_head": INT8(scale="head"),
    "int8_tensor": INT8(scale="tensor"),
    "kivi4": KIVI(bits=4, group=8, residual=16),
    "kivi2": KIVI(bits=2, group=16, residual=32),
    "per_layer": PerLayer(pairs=("K4V2",), group=8, residual=16),
    "per_layer_budget": PerLayer(budget=7.5, group=8, residual=16),
    "flexgen4": FlexGen4(group=16),
    "nvfp4": NVFP4(),
    "nvfp4_4over6": NVFP4(four_over_six=True),
    **{f"turboquant_{preset}": TurboQuant(preset=preset, skip=()) for preset in PRESETS},
}
STRUCTURES = {"lowrank": LowRank(rank=64)}
PAGINGS = {"static": Static(tokens=512), "dynamic": Dynamic(), "paged": Paged(), "paged_7": Paged(block=7)}
BY_TOKEN = {name: layer for name, layer in FORMATS.items() if layer.by_token}
STACKS = [
    Stack("full"),
    *(Stack(name, evict=layer) for name, layer in EVICTIONS.items()),
    *(Stack(name, quant=layer) for name, layer in FORMATS.items()),
    *(
        Stack(f"{evict}+{quant}", evict=EVICTIONS[evict], quant=FORMATS[quant])
        for evict in EVICTIONS
        for quant in ("fp8", "int8_tensor", "kivi4", "kivi2")
    ),
    *(Stack(name, structure=layer) for name, layer in STRUCTURES.items()),
    *(Stack(f"lowrank+{quant}", structure=STRUCTURES["lowrank"], quant=FORMATS[quant]) for quant in FORMATS),
    *(Stack(name, paging=layer) for name, layer in PAGINGS.items()),
    *(Stack(f"paged+{quant}", quant=BY_TOKEN[quant], paging=PAGINGS["paged"]) for quant in BY_TOKEN),
    *(
        Stack(f"{paging}+{quant}", quant=FORMATS[quant], paging=PAGINGS[paging])
        for paging, quant in (("static", "int8"), ("static", "nvfp4"), ("paged_7", "fp8_head"), ("dynamic", "kivi4"))
    ),
    Stack("paged_7+lowrank", STRUCTURES["lowrank"], paging=PAGINGS["paged_7"]),
    Stack("paged+lowrank+int8", STRUCTURES["lowrank"], quant=FORMATS["int8"], paging=PAGINGS["paged"]),
    Stack("paged+snapkv+fp8", evict=EVICTIONS["snapkv"], quant=FORMATS["fp8"], paging=PAGINGS["paged"]),
    Stack("static+window", evict=EVICTIONS["window"], paging=PAGINGS["static"]),
    Stack("lowrank+window+kivi4", STRUCTURES["lowrank"], EVICTIONS["window"], FORMATS["kivi4"]),
]


def text(layers: int = 1, heads: int = 2, dim: int = 32, pieces: int = 2) -> Calibration:
    """A made-up calibration text: ``pieces`` times 80 tokens."""
    chance = torch.Generator().manual_seed(5)

    def layer(index: int) -> LayerView:
        keys, values = (torch.randn(heads, 80, dim, generator=chance) for _ in range(2))
        return LayerView(keys, values, torch.randn(3 * heads, 16, dim, generator=chance), dim**-0.5, index, 0)

    return tuple(tuple(layer(index) for index in range(layers)) for _ in range(pieces))


def fitted(stack: Stack, layers: int = 1) -> Stack:
    """``stack`` with what it learns from that text, if it learns."""
    return stack.fit(layers, text(layers)) if stack.calibrates else stack
