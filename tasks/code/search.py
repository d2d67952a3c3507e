"""Find a function by what it does: many functions of Python's own library, none with its docstring, and one docstring's words.

    def splitroot(p): ...

    def normcase(s): ...

    Which function does this? "Normalize case of pathname."  ->  normcase

The description never has all parts of the name, so the name has to come from the code. The others are functions alike: short,
real and with their names.

After RepoQA (arXiv 2406.06025), with own texts and wording; the descriptions are the authors' own first sentences.
"""

from __future__ import annotations

import ast
import re
import textwrap
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

from harness.types import Response, Sample, Score, State
from tasks import checks, corpus, scorers
from tasks.base import Tokenizer
from tasks.code import library
from tasks.sizing import Draft, SizedTask, depth_level, insert

_FEWEST_LINES, _MOST_CHARACTERS = 3, 600  # one-liners say nothing; long ones do not fit into a short prompt
_NAME = re.compile(r"[A-Za-z_]\w*")


class Function(NamedTuple):
    """A function or method, and the first sentence of its docstring ("" if there is none that can be asked with)."""

    file: str
    name: str
    code: str
    description: str


@dataclass(frozen=True, kw_only=True)
class FunctionSearch(SizedTask):
    """A sample is right when the first name in the answer is the function's.

    Attributes:
        depths: Number of depth levels of the function asked for, from the start (0) to the end (1) of the code.
    """

    depths: int = 10

    def draft(self, tokenizer: Tokenizer, seed: int, index: int) -> Draft:
        rng = self.rng(seed, index)
        target, stranger = self._targets(seed, index)
        others = rng.sample([each for each in functions() if each.name != target.name], len(functions()) // 2)
        depth = depth_level(index // len(self.lengths), self.depths)
        budget = len(tokenizer.encode(f" `{target.name}`.\n")) + 8

        def build(units: int) -> Sample:
            shown = insert([each.code for each in others[:units]], [(depth, target.code)])
            return Sample(
                id="",
                context="Read these Python functions.\n\n```python\n" + "\n\n\n".join(shown) + "\n```",
                question=_question(target),
                answers=(target.name,),
                max_new_tokens=budget,
                answer_prefix="The name of the function is",
                stop=("\n",),
                cluster=target.file,
                meta={"depth": depth, "file": target.file, "functions": len(shown)},
                other=_question(stranger),
            )

        return build

    def score(self, sample: Sample, response: Response) -> Score:
        found = _NAME.search(re.sub(r"\bdef\b", "", response.text))
        name = found[0] if found else ""
        parts = {"contained": float(scorers.contains(response.text, sample.answers[0]))}
        return Score(State.SCORED, float(name == sample.answers[0]), name, parts)

    def sources(self) -> dict[str, str]:
        return corpus.sources("code")

    def broken(self) -> list[str]:
        return checks.whole("task.depths", self.depths)

    def _targets(self, seed: int, index: int) -> tuple[Function, Function]:
        """The function asked for, and another one. They take turns in an order drawn once, so none comes twice early."""
        described = [each for each in functions() if each.description]
        self.rng(seed, -1).shuffle(described)
        return described[index % len(described)], described[(index + 1) % len(described)]


def _question(function: Function) -> str:
    return f'Which of these functions does the following? "{function.description}" Answer with its name.'


@cache
def functions() -> tuple[Function, ...]:
    """All functions that may be shown. Those with a description have a name and a description that no other one has."""
    found = list(_functions())
    names = Counter(each.name for each in found)
    descriptions = Counter(each.description for each in found)
    return tuple(
        each._replace(description="")
        if names[each.name] > 1 or descriptions[each.description] > 1 or _tells(each)
        else each
        for each in found
    )


def _functions() -> Iterator[Function]:
    for file in library.files():
        for node in ast.walk(file.tree):
            if isinstance(node, ast.FunctionDef) and not node.name.startswith("__"):
                code = _without_docstring(file, node)
                if code.count("\n") + 1 >= _FEWEST_LINES and len(code) <= _MOST_CHARACTERS:
                    yield Function(file.name, node.name, code, _first_sentence(ast.get_docstring(node) or ""))


def _without_docstring(file: library.File, node: ast.FunctionDef) -> str:
    """The function's own lines; "" if they cannot be taken out of the file by lines."""
    start = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
    lines = file.lines[start - 1 : node.end_lineno]
    if ast.get_docstring(node, clean=False) is not None:
        said, after = node.body[0], node.body[1:]
        if not after or said.lineno == node.lineno or after[0].lineno == said.end_lineno:
            return ""
        lines = file.lines[start - 1 : said.lineno - 1] + file.lines[(said.end_lineno or 0) : node.end_lineno]
    code = textwrap.dedent("\n".join(line for line in lines if line.strip()))
    return "" if code.startswith(" ") else code  # a text within goes further left than the function


def _first_sentence(docstring: str) -> str:
    """The first sentence, if it is one of five words or more in plain English."""
    first = corpus.sentences(" ".join(docstring.split("\n\n")[0].split()))[:1]
    plain = first and re.fullmatch(r"[A-Z][\w ,;:'()/-]{15,180}\.", first[0]) and len(first[0].split()) >= 5
    return first[0] if plain else ""


def _tells(function: Function) -> bool:
    """Whether the description holds the name, or all the parts that it could be put together from."""
    parts = re.findall(r"[A-Z]?[a-z]+|[A-Z]+", function.name)
    told = function.description.lower()
    return all(part.lower() in told for part in parts)
