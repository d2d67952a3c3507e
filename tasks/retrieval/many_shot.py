"""A rule learned from many examples: which invented label does a sentence get?

    Sentence: They spoke of the violin and the drum.
    Label: dax
    ...
    Sentence: At last somebody mentioned the trumpet and the harp.  ->  Label: [dax]

The label follows the topic; which label stands for which topic is drawn anew for each sample, so it can only be learned from
the text. No single example is needed: this shows what is left when a cache keeps a few of many.

After the many-shot tasks of HELMET (https://arxiv.org/abs/2410.02694), with an own rule and own sentences.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

from harness.types import Response, Sample, Score, State
from tasks import checks, corpus, scorers
from tasks.base import Knob, Tokenizer
from tasks.sizing import Draft, SizedTask, first_of

TOPICS = tuple(
    tuple(words.split())
    for words in (
        "violin drum trumpet flute piano harp cello guitar organ clarinet choir banjo",
        "salmon trout herring shark whale dolphin crab lobster squid seal oyster eel",
        "oak birch willow maple pine cedar elm beech poplar ash spruce larch",
        "shirt coat trousers scarf glove sock skirt jacket sweater hat blouse belt",
        "hammer saw drill chisel wrench pliers screwdriver axe spade rake shovel file",
        "soup bread cheese butter sausage omelette noodles pancake stew salad pie porridge",
        "train bicycle lorry tram bus tractor ferry taxi scooter airplane van canoe",
        "rain snow hail fog thunder lightning drizzle frost breeze storm sleet mist",
    )
)
LABELS = ("dax", "blick", "wug", "fep", "toma", "zorp", "kiki", "lorp")
FORMS = (
    "They spoke of the {} and the {}.",
    "She dreamt of the {} and the {}.",
    "He made a drawing of the {} next to the {}.",
    "Nobody had expected the {} or the {}.",
    "First came the {}, then the {}.",
    "The story begins with the {} and ends with the {}.",
    "Between the {} and the {} there was little to choose.",
    "The children asked about the {} and about the {}.",
)
ASKED = (
    "At last somebody mentioned the {} and the {}."  # a form of its own, so that no example is the sentence asked for
)


@dataclass(frozen=True, kw_only=True)
class ManyShot(SizedTask):
    """A sample is right when the first word of the answer is the label.

    Attributes:
        labels: Number of labels, each for a topic.
    """

    labels: int = 4

    @property
    def chance(self) -> float:  # type: ignore[override]
        """Of a model that knows the labels and guesses among them."""
        return 1 / self.labels

    def draft(self, tokenizer: Tokenizer, seed: int, index: int) -> Draft:
        rng = self.rng(seed, index)
        rule = list(zip(rng.sample(LABELS, self.labels), rng.sample(TOPICS, self.labels), strict=True))
        label, topic = rng.choice(rule)
        asked = _sentence(ASKED, topic, rng)
        examples = first_of(_examples(rule, rng))
        budget = len(tokenizer.encode(f" {label}")) + 4

        def build(units: int) -> Sample:
            shown = "\n\n".join(examples(self.labels + units))
            return Sample(
                id="",
                context=f"One rule gives each of these sentences its label.\n\n{shown}",
                question=f"Which label does the rule give this sentence?\n\nSentence: {asked}",
                answers=(label,),
                max_new_tokens=budget,
                answer_prefix="Label:",
                stop=("\n",),
                meta={"examples": self.labels + units},
            )

        return build

    def score(self, sample: Sample, response: Response) -> Score:
        word = scorers.first_word(response.text)
        return Score(State.SCORED, float(scorers.first_word_is(response.text, sample.answers[0])), word)

    def knob(self, tokenizer: Tokenizer) -> Knob:
        return Knob("labels", (2, 3, 4, 5, 6, 7, 8))

    def sources(self) -> dict[str, str]:
        return corpus.sources()

    def broken(self) -> list[str]:
        found = checks.whole("task.labels", self.labels, least=2)
        if not found and self.labels > len(LABELS):
            found.append(f"task.labels must be at most {len(LABELS)}, got {self.labels}")
        return found


def _examples(rule: list[tuple[str, tuple[str, ...]]], rng: random.Random) -> Iterator[str]:
    """Examples without end, every label once before any comes again."""
    while True:
        for label, topic in rng.sample(rule, len(rule)):
            yield f"Sentence: {_sentence(rng.choice(FORMS), topic, rng)}\nLabel: {label}"


def _sentence(form: str, topic: tuple[str, ...], rng: random.Random) -> str:
    return form.format(*rng.sample(topic, 2))
