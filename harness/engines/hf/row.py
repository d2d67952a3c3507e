"""What one row says, token by token: it may think, is then told how its thinking ends, and answers."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, auto

from harness.engines.hf.tokenizer import PromptTokenizer
from harness.types import Response, Sample, until


class Phase(Enum):
    THINKING = auto()  # what is drawn is its own, until it ends that or has no tokens left
    TOLD = auto()  # what is drawn is passed over: it is fed what ends the thinking and begins the answer
    ANSWERING = auto()


@dataclass
class RowState:
    """What one row has said so far."""

    phase: Phase = Phase.ANSWERING
    thought: list[int] = field(default_factory=list)
    cut: bool = False  # its thinking used its budget up
    due: list[int] = field(default_factory=list)  # what it is still told before it answers
    tokens: list[int] = field(default_factory=list)  # of the answer
    text: str = ""
    finish: str | None = None
    error: str = ""
    stored_bytes_end: int | None = None
    working_bytes: int = 0
    facts: dict[str, float] = field(default_factory=dict)
    seen: int = 0  # tokens fed, the prompt's and the question's among them

    @property
    def running(self) -> bool:
        return self.finish is None and not self.error

    def response(self, fidelity: dict[str, float] | None = None) -> Response | None:
        if self.error or self.finish is None:
            return None
        return Response(self.text, tuple(self.tokens), self.finish, fidelity, len(self.thought), self.cut)  # type: ignore[arg-type]

    def go_on(self, token: int, finite: bool, sample: Sample, tokenizer: PromptTokenizer) -> int:
        """Take in the token that was drawn for this row; returns the one to feed."""
        if not finite:
            said = f"{len(self.thought)} thinking and " if sample.think else ""
            self.error = f"logits are not finite after {said}{len(self.tokens)} answer tokens"
        elif self.phase is Phase.THINKING:
            return self._think(token, sample, tokenizer)
        elif self.phase is Phase.TOLD:
            return self._listen()
        else:
            self._answer(token, sample, tokenizer)
        return token

    def _think(self, token: int, sample: Sample, tokenizer: PromptTokenizer) -> int:
        assert sample.think is not None
        if token in tokenizer.stop_ids:  # ended without a word: it is fed the word instead
            self._tell(tokenizer.closing(sample))
            return self._listen()
        self.thought.append(token)
        mark = sample.think.mark
        recent = tokenizer.verbatim(self.thought[-len(mark.encode()) :])  # no token is shorter than a byte
        _, closed, more = recent.rpartition(mark)
        if closed:
            self._tell(tokenizer.resuming(sample, more))
        elif len(self.thought) == sample.think.tokens:
            self.cut = True
            self._tell(tokenizer.closing(sample))
        return token

    def _tell(self, tokens: list[int]) -> None:
        self.due = list(tokens)
        self.phase = Phase.TOLD if tokens else Phase.ANSWERING

    def _listen(self) -> int:
        token = self.due.pop(0)
        if not self.due:
            self.phase = Phase.ANSWERING
        return token

    def _answer(self, token: int, sample: Sample, tokenizer: PromptTokenizer) -> None:
        if token in tokenizer.stop_ids:
            self.finish = "stop"
            return
        self.tokens.append(token)
        whole = tokenizer.decode(self.tokens)
        self.text = until(whole, sample.stop)
        if self.text != whole:
            self.finish = "stop"
        elif len(self.tokens) >= sample.max_new_tokens:
            self.finish = "length"
