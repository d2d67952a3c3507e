"""Servers for the tests: a small one that is told how to fail, and real vLLM servers, on free ports of this machine."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests.conftest import tiny_tokenizer
from tests.s3server import free_ports

READY_S = 300.0
CONFIG = {
    "block_size": "16",
    "cache_dtype": "auto",
    "enable_prefix_caching": "True",
    "kv_cache_dtype_skip_layers": "[]",
    "num_gpu_blocks": "50",
    "kv_cache_size_tokens": "800",
}


class FakeServer:
    """An OpenAI-compatible server in a thread, with a byte tokenizer. It answers with the first long number of a prompt.

    Args:
        owner: What it says it is.
        config: Labels of its cache, as vLLM's metrics have them; None: it has no metrics.
        takes_ids: Whether a prompt may be token ids.
        fault: Gets the request's number among those for completions, and its body; gives None for a proper answer, an HTTP
            status, the raw text of a body, or raises ``Hang`` to close the connection without a word.
    """

    def __init__(
        self,
        owner: str = "vllm",
        config: dict[str, str] | None = None,
        takes_ids: bool = True,
        fault: Callable[[int, dict[str, Any]], Any] = lambda number, body: None,
    ) -> None:
        self.owner, self.config, self.takes_ids, self.fault = owner, config, takes_ids, fault
        self.tokenizer = tiny_tokenizer()
        self.bodies: list[dict[str, Any]] = []  # of completions
        self.headers: list[dict[str, str]] = []
        self.counters: dict[str, float] = {}  # by source
        self.extra_tokens = 0  # that it counts in every prompt beyond those there are
        self.tells_cached = True
        self.fingerprint = "fake-1"
        self._asked: dict[str, set[str]] = {}  # prompts, by salt
        self._lock = threading.Lock()
        self.port = free_ports(1)[0]
        self.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def start(self) -> None:
        handler = type("Handler", (_Handler,), {"fake": self})
        self._http = ThreadingHTTPServer(("127.0.0.1", self.port), handler)
        self._http.daemon_threads = True
        threading.Thread(target=self._http.serve_forever, args=(0.02,), daemon=True).start()

    def stop(self) -> None:
        self._http.shutdown()
        self._http.server_close()

    def metrics(self) -> str:
        labels = ",".join(f'{name}="{value}"' for name, value in (self.config or {}).items())
        sources = [
            f'vllm:prompt_tokens_cached_by_source_total{{source="{name}"}} {n}' for name, n in self.counters.items()
        ]
        return "\n".join(["# HELP vllm:cache_config_info x", f"vllm:cache_config_info{{{labels}}} 1.0", *sources, ""])

    def answer(self, body: dict[str, Any]) -> dict[str, Any]:
        """A whole answer, as vLLM gives it."""
        with self._lock:
            return self._answer(body)

    def _answer(self, body: dict[str, Any]) -> dict[str, Any]:
        chat = "messages" in body
        text = "<s>" + "".join(map(_said, body["messages"])) if chat else body["prompt"]
        ids = text if isinstance(text, list) else self.tokenizer.encode(text, add_special_tokens=False)
        text = self.tokenizer.decode(ids)
        numbers = re.findall(r"\d{4,}", text)
        said = f" {numbers[0]}." if numbers else " none."
        seen = self._asked.setdefault(str(body.get("cache_salt")), set())
        cached = len(ids) // 16 * 16 if text in seen else 0
        seen.add(text)
        details = {"cached_tokens": cached} if self.tells_cached else None
        out = {"message": {"role": "assistant", "content": said}} if chat else {"text": said}
        tokens = self.tokenizer.encode(said, add_special_tokens=False)
        out |= {"token_ids": [*tokens, 1]} if body.get("return_token_ids") else {}
        usage = {"prompt_tokens": len(ids) + self.extra_tokens, "completion_tokens": len(tokens) + 1}
        return {
            "object": "text_completion",
            "system_fingerprint": self.fingerprint,
            "choices": [{"index": 0, "finish_reason": "stop", **out}],
            "usage": {**usage, "prompt_tokens_details": details},
        }


def _said(message: dict[str, str]) -> str:
    return message["content"] + ("\n" if message["role"] == "user" else "")


class Hang(Exception):
    """The connection is closed without an answer."""


class _Handler(BaseHTTPRequestHandler):
    fake: FakeServer

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        fake = self.fake
        models = {"data": [{"id": "fake", "owned_by": fake.owner, "max_model_len": 4096}]}
        pages = {"/v1/models": json.dumps(models), "/version": json.dumps({"version": "1.2"})}
        if fake.config is not None:
            pages["/metrics"] = fake.metrics()
        self._send(200 if self.path in pages else 404, pages.get(self.path, "{}"))

    def do_POST(self) -> None:
        fake = self.fake
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        with fake._lock:
            number = len(fake.bodies)
            fake.bodies.append(body)
            fake.headers.append({name.lower(): value for name, value in self.headers.items()})
        try:
            fault = fake.fault(number, body)
        except Hang:
            self.close_connection = True
            return
        if isinstance(fault, int):  # and, as some do, it quotes what it was sent
            told = f"status {fault} for {self.headers['authorization']}"
            self._send(fault, json.dumps({"error": {"message": told}}))
        elif isinstance(fault, str):
            self._send(200, fault)
        elif isinstance(body.get("prompt"), list) and not fake.takes_ids:
            self._send(400, json.dumps({"error": {"message": "prompt must be a string"}}))
        else:
            self._send(200, json.dumps(fake.answer(body)))

    def _send(self, status: int, text: str) -> None:
        data = text.encode()
        with suppress(OSError):  # who asked may have gone
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)


class VLLMServer:
    """A real vLLM server with its processes in a session of their own."""

    def __init__(self, model: Path, log: Path, *flags: str) -> None:
        self.model, self.log, self.flags = model, log, flags
        self.port = free_ports(1)[0]
        self.url = f"http://127.0.0.1:{self.port}/v1"
        self.start()

    def start(self) -> None:
        words = ["--model", str(self.model), "--served-model-name", "smollm2", "--host", "127.0.0.1"]
        words += ["--port", str(self.port), "--dtype", "float32", "--max-model-len", "2048", "--max-num-seqs", "8"]
        words += [
            "--kv-cache-memory-bytes",
            str(2**28),
            "--enforce-eager",
            "--enable-prompt-tokens-details",
            *self.flags,
        ]
        quiet = {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1", "VLLM_NO_USAGE_STATS": "1"}
        command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", *words]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                command,
                stdout=log,
                stderr=log,
                env={**os.environ, **quiet, "HF_HUB_OFFLINE": "1"},
                start_new_session=True,
            )

    def wait(self) -> None:
        """Return when it answers."""
        end = time.monotonic() + READY_S
        while time.monotonic() < end and self.process.poll() is None:
            with suppress(OSError), urllib.request.urlopen(f"{self.url}/models", timeout=5):
                return
            time.sleep(0.5)
        raise RuntimeError(f"no vLLM server:\n{self.log.read_text(errors='replace')[-3000:]}")

    def kill(self) -> None:
        """As if the machine had lost it: all its processes at once, and what they leave in shared memory."""
        left = self._shared()
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        for segment in left:
            segment.unlink(missing_ok=True)

    def _shared(self) -> set[Path]:
        """Segments of shared memory that its processes hold or have named."""
        found = set[str]()
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if os.getpgid(int(process.name)) == self.process.pid:
                    found |= set(re.findall(r"/dev/shm/\S+", (process / "maps").read_text()))
                    found |= set(map(str, Path("/dev/shm").glob(f"sem.loky-{process.name}-*")))
        return set(map(Path, found))


@contextmanager
def vllm_servers(model: Path, folder: Path, *flags: tuple[str, ...]) -> Iterator[list[VLLMServer]]:
    """A server for each tuple of flags, started side by side; all killed at the end."""
    servers = [VLLMServer(model, folder / f"server{at}.log", *more) for at, more in enumerate(flags)]
    try:
        for server in servers:
            server.wait()
        yield servers
    finally:
        for server in servers:
            server.kill()
