"""RULER's question answering: the paragraphs that answer a question among many that do not.

    Document 1: ...
    Document 2: Mira Picket was born in Quiet Harbor. ...

    In which town was Mira Picket born?  ->  Mira Picket was born in [Quiet Harbor]

``path`` names a file of SQuAD v2 (qa_1) or HotpotQA with distractors (qa_2); the most distracting paragraphs come first, those of
other questions next. Without a file, question and paragraphs are of an invented world, one sample one world.

Source: https://arxiv.org/abs/2404.06654, with own wording.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Any, NamedTuple

from harness.types import Response, Sample, Score
from tasks import corpus
from tasks.base import Tokenizer
from tasks.retrieval import paragraphs, ruler
from tasks.retrieval.facts import World
from tasks.sizing import Draft, SizedTask, first_of, shuffled, tokens

INSTRUCTION = "Read these documents. One question about them will be asked; answer it in as few words as you can."


class Asked(NamedTuple):
    """A question with what must be read for it and, as far as needed, what distracts."""

    question: str
    begun: str
    answers: tuple[str, ...]
    gold: list[str]
    others: Iterator[str]  # paragraphs that distract, the most distracting first
    cluster: str


@dataclass(frozen=True, kw_only=True)
class RulerQA(SizedTask):
    """A sample is right when the answer holds one of the references.

    Attributes:
        hops: Paragraphs that a question of the invented world needs: 1 or 2. A file decides for itself.
        path: A SQuAD v2 or HotpotQA distractor JSON file; null: the invented world.
    """

    hops: int = 1
    path: str | None = None

    def draft(self, tokenizer: Tokenizer, seed: int, index: int) -> Draft:
        order = self.rng(seed, index).getrandbits(64)
        asked = self._of_file(self.path, seed, index) if self.path else self._of_world(seed, index)
        others = first_of(_sentences(asked.others))
        longest = max(len(tokenizer.encode(f" {answer}.")) for answer in asked.answers)

        def build(units: int) -> Sample:
            documents = shuffled([*asked.gold, *_joined(others(units))], order)
            text = "\n\n".join(f"Document {number}: {document}" for number, document in enumerate(documents, 1))
            return Sample(
                id="",
                context=f"{INSTRUCTION}\n\n{text}",
                question=asked.question,
                answers=asked.answers,
                max_new_tokens=longest + 8,
                answer_prefix=asked.begun,
                cluster=asked.cluster,
                meta={"documents": len(documents), "gold": len(asked.gold)},
            )

        return build

    def score(self, sample: Sample, response: Response) -> Score:
        return ruler.match_part(sample, response)

    def spec(self) -> dict[str, Any]:
        """As of any task, but a file is what it holds, wherever it lies."""
        spec = super().spec()
        del spec["options"]["path"]
        return spec

    def sources(self) -> dict[str, str]:
        if self.path:
            return {**corpus.sources(), "path": paragraphs.read(self.path).digest}
        return corpus.sources("words")

    def broken(self) -> list[str]:
        if self.hops not in (1, 2):
            return [f"task.hops must be 1 or 2, got {self.hops!r}"]
        try:
            self.sources()
        except ValueError as error:
            return [str(error)]
        return []

    def problems(self, tokenizer: Tokenizer) -> list[str]:
        """Also a file or a world that is too small: its samples would not be as long as they say."""
        found = super().problems(tokenizer)
        if found:
            return found
        longest = max(self.lengths)
        held = tokens(
            self.draft(tokenizer, 0, 0)(longest), tokenizer
        )  # so many sentences are longer, if there are so many
        if held < longest:
            place = "task.path" if self.path else "the invented world"
            return [f"task.lengths must be at most {held}, all that {place} holds, got {longest}"]
        return []

    def _of_world(self, seed: int, index: int) -> Asked:
        world = World(self.rng(seed, index))
        item = world.item(self.hops)
        return Asked(item.question, item.begun, (item.answer,), item.gold, world.paragraphs(), "")

    def _of_file(self, path: str, seed: int, index: int) -> Asked:
        """Questions take turns in an order drawn once, so none comes twice before all were asked."""
        source = paragraphs.read(path)
        questions = list(source.questions)
        self.rng(seed, -1).shuffle(questions)
        question = questions[index % len(questions)]
        rng = self.rng(seed, index)
        near = rng.sample(question.near, len(question.near))
        far = sorted(set(range(len(source.paragraphs))) - set(question.gold) - set(near))
        others = (source.paragraphs[place] for place in near + rng.sample(far, len(far)))
        gold = [source.paragraphs[place] for place in question.gold]
        return Asked(question.text, "Answer:", question.answers, gold, others, question.cluster)


def _sentences(paragraphs: Iterator[str]) -> Iterator[tuple[int, str]]:
    """Sentence after sentence, each with the number of its paragraph."""
    for number, paragraph in enumerate(paragraphs):
        yield from ((number, sentence) for sentence in corpus.sentences(paragraph))


def _joined(numbered: list[tuple[int, str]]) -> list[str]:
    """The paragraphs that ``numbered`` sentences make; the last may be cut short."""
    return [" ".join(sentence for _, sentence in group) for _, group in groupby(numbered, key=lambda pair: pair[0])]
