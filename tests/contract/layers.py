"""One row a layer: what every layer must keep, whoever wrote it. A new layer adds its row here."""

from __future__ import annotations

from strategies.base import Stack
from strategies.evict.keydiff import KeyDiff
from strategies.evict.random import Random
from strategies.evict.snapkv import SnapKV
from strategies.evict.window import Window
from strategies.quant.fp8 import FP8
from strategies.quant.int8 import INT8
from strategies.quant.kivi import KIVI

EVICTIONS = {
    "window": Window(keep=0.5),
    "window_tokens": Window(keep_tokens=40, sinks=2),
    "snapkv": SnapKV(keep=0.25, window=8, kernel=3),
    "keydiff": KeyDiff(keep=0.5),
    "random": Random(keep=0.25, first=2, last=8),
}
FORMATS = {
    "fp8": FP8(),
    "fp8_head": FP8(scale="head"),
    "fp8_tensor": FP8(scale="tensor"),
    "int8": INT8(),
    "int8_head": INT8(scale="head"),
    "int8_tensor": INT8(scale="tensor"),
    "kivi4": KIVI(bits=4, group=8, residual=16),
    "kivi2": KIVI(bits=2, group=16, residual=32),
}
STACKS = [
    Stack("full"),
    *(Stack(name, evict=layer) for name, layer in EVICTIONS.items()),
    *(Stack(name, quant=layer) for name, layer in FORMATS.items()),
    *(
        Stack(f"{evict}+{quant}", evict=EVICTIONS[evict], quant=FORMATS[quant])
        for evict in EVICTIONS
        for quant in ("fp8", "int8_tensor", "kivi4", "kivi2")
    ),
]
