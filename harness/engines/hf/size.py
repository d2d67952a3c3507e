"""How many parameters tokens are multiplied with, read from the headers of a model's files."""

from __future__ import annotations

import json
from math import prod
from pathlib import Path
from typing import Any


def parameters(folder: Path, config: Any) -> tuple[int, int] | None:
    """Those that every token is multiplied with, and those that make logits, by ``*.safetensors`` in ``folder``.

    An input embedding is looked up and counts only where it makes the logits too. None for other files, and for experts, of which
    a step uses some.
    """
    if any("expert" in name for name in config.to_dict()):
        return None
    shapes: dict[str, list[int]] = {}
    for file in folder.glob("*.safetensors"):
        with file.open("rb") as opened:
            header = json.loads(opened.read(int.from_bytes(opened.read(8), "little")))
        shapes |= {name: tensor["shape"] for name, tensor in header.items() if name != "__metadata__"}
    apart = ("embed_tokens", "lm_head")
    body = sum(prod(shape) for name, shape in shapes.items() if not any(one in name for one in apart))
    return (body, config.vocab_size * config.hidden_size) if body else None
