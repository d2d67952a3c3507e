"""Requests to one server: tried again while that may help, and an answer only where it is whole."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from typing import Any, NamedTuple

import openai

ASIDE_S = 30.0  # for what is asked beside completions
NO_KEY = "none"  # sent where the environment has no key; servers without keys take any


class Failed(Exception):
    """A request has no usable answer; the message says why."""


class Completion(NamedTuple):
    """One whole answer."""

    text: str
    token_ids: list[int] | None  # None where the server does not tell
    finish: str  # stop or length
    prompt_tokens: int
    answer_tokens: int
    cached_tokens: int | None  # of the prompt, not computed; None where the server does not tell
    fingerprint: str | None


class Client:
    """A server at ``url``, with or without the ``/v1`` at its end.

    Args:
        key_env: The environment variable that has the key, if the server wants one. The key goes nowhere but to the server.
        timeout_s: For a completion, each time it is tried.
        retries: How often it is tried again after a lost connection or status 408, 409, 429 or 5xx, waiting longer each time.
    """

    def __init__(self, url: str, key_env: str, timeout_s: float, retries: int) -> None:
        self.root = url.rstrip("/").removesuffix("/v1")
        self._key = os.environ.get(key_env) or NO_KEY
        self._timeout_s = timeout_s
        self._api = openai.OpenAI(base_url=f"{self.root}/v1", api_key=self._key, timeout=timeout_s, max_retries=retries)

    def close(self) -> None:
        self._api.close()

    def backend(self) -> dict[str, Any]:
        """The same server for another client: address, patience, and the key if there is one."""
        key = {} if self._key == NO_KEY else {"api_key": self._key}
        return {"target": self.root, "timeout": self._timeout_s, **key}

    def get(self, path: str) -> str:
        """The text at ``path`` below the root. Raises Failed."""
        try:
            return self._api.get(f"{self.root}{path}", cast_to=str, options={"timeout": ASIDE_S, "max_retries": 1})
        except openai.OpenAIError as error:
            raise Failed(self._told(error)) from error

    def complete(self, path: str, body: dict[str, Any]) -> Completion:
        """The answer to ``body``. Raises Failed."""
        try:
            text = self._api.post(path, body=body, cast_to=str)
        except openai.OpenAIError as error:
            raise Failed(self._told(error)) from error
        try:
            return _whole(json.loads(text))
        except ValueError as error:  # no JSON
            raise Failed(f"the answer is no JSON ({error}): {self._hidden(text[:200])!r}") from error

    def _told(self, error: Exception) -> str:
        """The error with its cause, which is the one that says what happened to a connection."""
        cause = f" ({type(error.__cause__).__name__}: {error.__cause__})" if error.__cause__ else ""
        return self._hidden(f"{type(error).__name__}: {error}{cause}")

    def _hidden(self, text: str) -> str:
        return text if self._key == NO_KEY else text.replace(self._key, "***")


def _whole(said: Any) -> Completion:
    """What was said, if it is all there: a finished choice, and how many tokens it took. Raises Failed."""
    if not isinstance(said, dict) or said.get("error"):
        raise Failed(f"the server answered with an error: {said.get('error') if isinstance(said, dict) else said!r}")
    choice = next(iter(said.get("choices") or []), {})
    usage = said.get("usage") or {}
    finish = choice.get("finish_reason")
    if finish not in ("stop", "length"):
        raise Failed(f"the answer is not finished: finish_reason is {finish!r}, and must be stop or length")
    counts = usage.get("prompt_tokens"), usage.get("completion_tokens")
    if not all(isinstance(count, int) for count in counts):
        raise Failed(f"the answer does not say how many tokens it took: usage is {said.get('usage')!r}")
    text = choice["message"].get("content") if choice.get("message") else choice.get("text")
    if text is None and counts[1]:
        raise Failed(f"the answer has no text, though it took {counts[1]} tokens")
    details = usage.get("prompt_tokens_details") or {}
    fingerprint = said.get("system_fingerprint")
    return Completion(text or "", choice.get("token_ids"), finish, *counts, details.get("cached_tokens"), fingerprint)


def served(client: Client) -> list[dict[str, Any]]:
    """The models that a server lists, without adapters. Raises Failed."""
    text = client.get("/v1/models")
    with suppress(ValueError, KeyError, TypeError, AttributeError):
        return [{**model, "id": model["id"]} for model in json.loads(text)["data"] if not model.get("parent")]
    raise Failed(f"/v1/models is no list of models: {text[:200]!r}")
