"""How many tokens a text has, without tokenizing what was counted before.

Most byte-level tokenizers first part a text by a pattern, and no match of these patterns holds a space after something else.
So a text may be cut before each such space and its pieces tokenized apart: their tokens are the text's, whatever the
vocabulary. A text that grows, or whose words change places, is then counted by its new words alone.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from tokenizers import Tokenizer
from tokenizers.normalizers import NFC
from transformers import PreTrainedTokenizerBase

KEPT = 2**14  # words whose counts are kept beside those of the text at hand, some 2 MB; with more, counting begins anew
PATTERNS = {  # beside GPT-2's, which ByteLevel has built in
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
    + digits
    + r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    for digits in (r"\p{N}", r"\p{N}{1,3}")  # Qwen2, Llama 3
}
_CUT = re.compile(r"(?<=\S) ")


class WordCounter:
    """Counts the tokens of texts, given that ``parts_at_spaces`` holds."""

    def __init__(self, backend: Tokenizer) -> None:
        backend.no_truncation()  # as encode() does before each call
        backend.no_padding()
        self._backend = backend
        self._known: dict[str, int] = {}  # tokens of a word and the space before it

    def __call__(self, text: str) -> int:
        first, *others = words(text)
        self._learn(set(others))
        return len(self._backend.encode(first, add_special_tokens=False)) + sum(map(self._known.__getitem__, others))

    def _learn(self, asked: set[str]) -> None:
        new = asked - self._known.keys()
        if len(self._known) + len(new) > KEPT + len(asked):
            self._known.clear()
            new = asked
        encoded = self._backend.encode_batch_fast([f" {word}" for word in new], add_special_tokens=False)
        self._known.update(zip(new, map(len, encoded), strict=True))


def words(text: str) -> list[str]:
    """``text`` cut at each space after something that is not white space; these spaces are left out."""
    found = text.split(" ")
    odd = any(not word or word[-1].isspace() for word in set(found))  # there is white space before a space
    return _CUT.split(text) if odd else found


def parts_at_spaces(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Whether the tokens of any text are those of its pieces, if it is cut before a space after something else.

    What stands on one side must not be read differently for what stands on the other. So no added token may reach over the
    space, and the first stage that does more than part digits from the rest must be a known pattern.
    """
    if not tokenizer.is_fast:
        return False
    backend = tokenizer.backend_tokenizer
    plain = backend.normalizer is None or isinstance(backend.normalizer, NFC)
    added = backend.get_added_tokens_decoder().values()
    apart = not any(one.rstrip or one.single_word or re.search(r"\S ", one.content) for one in added)
    return plain and apart and _splits(_stages(backend))


def _stages(backend: Tokenizer) -> list[Mapping[str, Any]]:
    """The stages of the pre-tokenizer, in order."""
    if backend.pre_tokenizer is None:
        return []
    state = json.loads(backend.pre_tokenizer.__getstate__())
    return state["pretokenizers"] if state["type"] == "Sequence" else [state]


def _splits(stages: list[Mapping[str, Any]]) -> bool:
    match stages:
        case [{"type": "Digits"}, *others]:
            return _splits(others)
        case [{"type": "ByteLevel", "use_regex": True}]:
            return True
        case [
            {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False},
            {"type": "ByteLevel", "use_regex": False},
        ]:
            return pattern in PATTERNS
    return False
