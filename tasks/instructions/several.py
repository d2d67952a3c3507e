"""Several instructions in one prompt, each of which can be checked on the answer alone.

    Rule 1: Begin your answer with the word lemon. ... prose ... Rule 2: Use no comma. ...

    Tell me about the sea, and keep all the rules.  ->  Lemon boats cross the sea.

A compressed cache loses instructions one by one: some kinds before others, and some places before others. So the score is
the share of instructions that were followed, and its parts tell it by kind and by place.

After "The Pitfalls of KV Cache Compression" (arXiv 2510.00231) and IFEval (arXiv 2311.07911), with own kinds and
wording.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

from harness.types import Response, Sample, Score, State
from tasks import checks, corpus, scorers
from tasks.base import Knob, Tokenizer
from tasks.sizing import Draft, SizedTask, insert

TOPICS = (
    "bread",
    "rain",
    "horses",
    "bridges",
    "winter",
    "music",
    "trains",
    "gardens",
    "glass",
    "islands",
    "honey",
    "maps",
)
PLACES = ("system", "start", "spread")
_AROUND = "\"'“”‘’ \n\t"
_FULL_STOP = re.compile(r"[.!?]+[\"'”’*)]*(?:\s+|$)")
_STRESSED = re.compile(r"(?<!\*)\*[^*\s](?:[^*\n]*[^*\s])?\*(?!\*)")


class Kind(NamedTuple):
    """A kind of instruction: how it is said with its object, what that is, and whether an answer keeps to it.

    Of the kinds of one ``aspect`` a sample has one at most. Kinds of different aspects never contradict each other.
    """

    aspect: str
    says: str
    object: Literal["nothing", "word", "phrase", "number", "topic"]
    kept: Callable[[str, str], bool]


def sentence_count(text: str) -> int:
    """Number of sentences: what ends with . ! or ?, and what stands after the last of these."""
    return sum(any(map(str.isalnum, part)) for part in _FULL_STOP.split(text))


def bullet_count(text: str) -> int:
    """Number of lines that begin with a hyphen; 0 if any other line does not."""
    lines = [line for line in text.strip(_AROUND).splitlines() if line.strip()]
    return len(lines) if all(re.match(r"\s*- *\S", line) for line in lines) else 0


def _ends(text: str, phrase: str) -> bool:
    words, wanted = re.findall(r"\w+", text.casefold()), phrase.split()
    return words[-len(wanted) :] == wanted


KINDS: dict[str, Kind] = {
    "begins": Kind("begin", "Begin your answer with the word {}.", "word", scorers.first_word_is),
    "ends": Kind("end", "End your answer with the words {}.", "phrase", _ends),
    "includes": Kind("include", "Use the word {} in your answer.", "word", scorers.contains),
    "excludes": Kind(
        "exclude", "Never use the word {} in your answer.", "topic", lambda text, word: not scorers.contains(text, word)
    ),
    "bullets": Kind(
        "form",
        "Write your answer as exactly {} lines, each of which begins with a hyphen and a space.",
        "number",
        lambda text, number: bullet_count(text) == int(number),
    ),
    "sentences": Kind(
        "form",
        "Write exactly {} sentences.",
        "number",
        lambda text, number: sentence_count(text) == int(number),
    ),
    "lower": Kind("case", "Write without any capital letter.", "nothing", lambda text, _: text == text.lower()),
    "upper": Kind("case", "Write in capital letters only.", "nothing", lambda text, _: text == text.upper()),
    "quoted": Kind(
        "quotes",
        "Put double quotation marks around your whole answer.",
        "nothing",
        lambda text, _: re.fullmatch(r"\s*[\"“].+[\"”]\s*", text, re.DOTALL) is not None,
    ),
    "no_comma": Kind("comma", "Use no comma.", "nothing", lambda text, _: "," not in text),
    "stressed": Kind(
        "stress",
        "Put one word of your answer between asterisks, *like* this.",
        "nothing",
        lambda text, _: _STRESSED.search(text) is not None,
    ),
    "asks": Kind("ask", "Ask the reader a question in your answer.", "nothing", lambda text, _: "?" in text),
}
ASPECTS = tuple(dict.fromkeys(kind.aspect for kind in KINDS.values()))


class Rule(NamedTuple):
    """An instruction of one kind with its object ("" if it has none)."""

    kind: str
    object: str

    @property
    def text(self) -> str:
        return KINDS[self.kind].says.format(self.object)

    def kept(self, text: str) -> bool:
        """Whether the answer ``text`` keeps to this rule; an answer without a word keeps to none."""
        return any(map(str.isalnum, text)) and KINDS[self.kind].kept(text, self.object)


@dataclass(frozen=True, kw_only=True)
class Instructions(SizedTask):
    """The score is the share of instructions followed. Its parts have it by kind and by place in the prompt, and "all".

    Attributes:
        count: Instructions of a sample, of so many aspects.
        where: Where they stand: system (its words), start (before the prose) or spread (anywhere in it).
        answer_tokens: Room for the answer.
    """

    graded: ClassVar[bool] = True
    chance: ClassVar[float] = 0.1  # a plain answer has no comma, often, and the right number of sentences, at times

    count: int = 4
    where: Literal["system", "start", "spread"] = "spread"
    answer_tokens: int = 96

    def draft(self, tokenizer: Tokenizer, seed: int, index: int) -> Draft:
        rng = self.rng(seed, index)
        topic, other = rng.sample(TOPICS, 2)
        rules = _rules(rng, self.count, topic)
        texts = [f"Rule {number}: {rule.text}" for number, rule in enumerate(rules, 1)]
        places = sorted(round(rng.random(), 4) for _ in rules)
        filler = corpus.passage(corpus.prose(), rng)
        told = "\n".join(texts)
        spread = self.where == "spread"
        before = f"{told}\n\nHere is a text to read before you answer." if self.where == "start" else "Here is a text."
        about = "The text below holds rules for your answer. Keep all of them." if spread else before

        def build(units: int) -> Sample:
            text = insert(filler(units), zip(places, texts, strict=True)) if spread else filler(units)
            return Sample(
                id="",
                context=f"{about}\n\n{' '.join(text)}",
                question=_question(topic),
                answers=tuple(f"{rule.kind} {rule.object}".strip() for rule in rules),
                max_new_tokens=self.answer_tokens,
                meta={"kinds": [rule.kind for rule in rules], "where": self.where, "depths": places if spread else []},
                instructions=tuple(texts),
                other=_question(other),
                system=f"Keep these rules in your answer.\n{told}" if self.where == "system" else "",
            )

        return build

    def score(self, sample: Sample, response: Response) -> Score:
        rules = [Rule(kind, object) for kind, _, object in (answer.partition(" ") for answer in sample.answers)]
        kept = [float(rule.kept(response.text)) for rule in rules]
        by_kind = {f"kind: {rule.kind}": value for rule, value in zip(rules, kept, strict=True)}
        parts = {**by_kind, **scorers.by_position(kept), "all": min(kept)}
        return Score(State.SCORED, sum(kept) / len(kept), response.text.strip(), parts)

    def knob(self, tokenizer: Tokenizer) -> Knob:
        return Knob("count", (1, 2, 3, 4, 6, 8, 10))

    def sources(self) -> dict[str, str]:
        return corpus.sources("words", "prose")

    def broken(self) -> list[str]:
        found = checks.whole("task.count", self.count) + checks.whole("task.answer_tokens", self.answer_tokens)
        if not found and self.count > len(ASPECTS):
            found.append(f"task.count must be at most {len(ASPECTS)}, got {self.count}")
        return found + checks.one_of("task.where", self.where, PLACES)


def _question(topic: str) -> str:
    return f"Tell me briefly about {topic}, and keep all the rules."


def _rules(rng: random.Random, count: int, topic: str) -> list[Rule]:
    """``count`` rules of different aspects. No object is in another one, and only an exclusion is about the topic."""
    words = [word for word in rng.sample(corpus.words("noun"), 3 + len(TOPICS)) if word not in TOPICS]
    objects: dict[str, Callable[[], str]] = {
        "nothing": lambda: "",
        "word": words.pop,
        "phrase": lambda: f"{rng.choice(corpus.words('adjective'))} {words.pop()}",
        "number": lambda: str(rng.randrange(2, 5)),
        "topic": lambda: topic,
    }
    kinds = [
        rng.choice([name for name, kind in KINDS.items() if kind.aspect == aspect])
        for aspect in rng.sample(ASPECTS, count)
    ]
    return [Rule(kind, objects[KINDS[kind].object]()) for kind in kinds]
