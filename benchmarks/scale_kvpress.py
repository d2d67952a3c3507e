"""kvpress's side of ``scale.py``, run by it in an environment that has kvpress and not kvgate.

Reads one JSON object on standard input: the model's folder, threads, prompts and, by name, presses with their options. Under each
press, one after another, every prompt is prefilled and answered greedily, as kvpress's own pipeline does: the press compresses
when the prompt has been read, what follows keeps its positions. Writes one JSON object: seconds and answers by press.
"""

from __future__ import annotations

import json
import sys
import time
from importlib.metadata import version
from typing import Any

import kvpress
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache


@torch.inference_mode()
def answer(model: Any, tokenizer: Any, press: Any, prompt: dict[str, Any]) -> list[int]:
    """The tokens that the model says to one prompt, without the one that ends the text."""
    cache, position = DynamicCache(), len(prompt["ids"])
    with press(model):
        out = model(torch.tensor([prompt["ids"]]), past_key_values=cache, logits_to_keep=1)
    said: list[int] = []
    while (token := int(out.logits[0, -1].argmax())) not in prompt["stop_ids"]:
        said.append(token)
        text = tokenizer.decode(said, skip_special_tokens=True)
        if len(said) == prompt["max_new_tokens"] or any(mark in text for mark in prompt["stop"]):
            break
        place = torch.tensor([[position]])
        out = model(torch.tensor([[token]]), past_key_values=cache, position_ids=place, logits_to_keep=1)
        position += 1
    return said


def main() -> None:
    asked = json.load(sys.stdin)
    torch.set_num_threads(asked["threads"])
    start = time.perf_counter()
    model = AutoModelForCausalLM.from_pretrained(asked["model"], dtype=torch.float32, attn_implementation="sdpa").eval()
    tokenizer = AutoTokenizer.from_pretrained(asked["model"])
    load_s = time.perf_counter() - start
    seconds, answers = {}, {}
    for name, options in asked["presses"].items():
        press = getattr(kvpress, options.pop("class"))(**options)
        start = time.perf_counter()
        answers[name] = [answer(model, tokenizer, press, prompt) for prompt in asked["prompts"]]
        seconds[name] = round(time.perf_counter() - start, 1)
    versions = {package: version(package) for package in ("kvpress", "transformers", "torch")}
    print(json.dumps({"load_s": round(load_s, 1), "press_s": seconds, "versions": versions, "answers": answers}))


if __name__ == "__main__":
    main()
