"""A second vLLM that only prefills, in a process of its own: ``python -m harness.engines.vllm.prefiller``.

Reads JSON lines: first the engine's arguments, then the tokens of one prompt after another. Says ``ready`` and, after each prompt
whose tokens lie in the shared store, ``done``. Ends when its input does.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

READY, DONE = "kvgate prefiller ready", "kvgate prefiller done"


class Prefiller:
    """The process, as the decoding engine sees it."""

    def __init__(self, arguments: Mapping[str, Any]) -> None:
        command = [sys.executable, "-P", "-m", "harness.engines.vllm.prefiller"]
        self.process = subprocess.Popen(command, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._tell(dict(arguments))
        self._wait_for(READY)

    def prefill(self, tokens: Sequence[int]) -> None:
        """Returns when the tokens' keys and values are in the store. Raises RuntimeError if the process has died."""
        self._tell(list(tokens))
        self._wait_for(DONE)

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            self.process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def _tell(self, what: Any) -> None:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps(what) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError as error:
            raise RuntimeError("the prefilling engine has died; its last words are above") from error

    def _wait_for(self, word: str) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.strip() == word:
                return
        raise RuntimeError("the prefilling engine has died; its last words are above")


def main() -> None:
    from vllm import SamplingParams

    from harness.engines.vllm.loading import load

    engine = load(json.loads(sys.stdin.readline()))
    print(READY, flush=True)
    for number, line in enumerate(sys.stdin):
        engine.add_request(
            str(number), {"prompt_token_ids": json.loads(line)}, SamplingParams(max_tokens=1, temperature=0.0)
        )
        while engine.has_unfinished_requests():
            engine.step()
        engine.reset_prefix_cache()
        print(DONE, flush=True)
    engine.engine_core.shutdown()


if __name__ == "__main__":
    main()
