"""GPUs and links as processes of a discrete-event simulation; ``disaggregated`` says what they stand for."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import Any

import simpy

from harness.sizing.disaggregated import Replay, Speeds
from harness.sizing.traces import Request
from harness.types import Request as Timed

Process = Generator[simpy.Event, Any, None]


@dataclass(eq=False)
class Job:
    """A request on its way."""

    request: Request
    unread: int  # prompt tokens that are not prefilled
    prefill_began_s: float = 0.0
    prefill_ended_s: float = 0.0
    link_wait_s: float = 0.0
    token_s: list[float] = field(default_factory=list)

    @property
    def wanted(self) -> int:
        return max(self.request.output_tokens, 1)

    @property
    def context(self) -> int:
        """Tokens that its next step looks at."""
        return self.request.input_tokens + len(self.token_s)


class Deployment(ABC):
    """Something that serves requests."""

    def __init__(self, speeds: Speeds) -> None:
        self.speeds = speeds
        self.env = simpy.Environment()
        self.busy_s = 0.0

    @abstractmethod
    def serve(self, job: Job) -> Process:
        """From its arrival until it needs no more of this."""

    def replay(self, requests: Sequence[Request]) -> Replay:
        """Serve every request, from when it arrived."""
        jobs = [Job(request, request.input_tokens) for request in requests]
        self.env.process(self._arrivals(jobs))
        self.env.run()
        return Replay(
            tuple(_timed(number, job) for number, job in enumerate(jobs)),
            tuple(max(job.prefill_began_s - job.request.timestamp_s, 0.0) for job in jobs),  # the clock rounds
            tuple(job.link_wait_s for job in jobs),
            tuple(max(job.token_s[0] - job.prefill_ended_s, 0.0) for job in jobs),
            self.busy_s,
        )

    def _arrivals(self, jobs: Sequence[Job]) -> Process:
        for job in jobs:
            later_s = job.request.timestamp_s - self.env.now
            if later_s > 0:  # those of one moment are all there before anything happens in it
                yield self.env.timeout(later_s)
            self.env.process(self.serve(job))

    def works(self, seconds: float) -> simpy.Event:
        """A GPU is busy for so long."""
        self.busy_s += seconds
        return self.env.timeout(seconds)


class Gpu:
    """Decodes in steps, and prefills in chunks where ``chunk_tokens`` is above 0."""

    def __init__(self, at: Deployment, chunk_tokens: int) -> None:
        self._at, self._chunk_tokens = at, chunk_tokens
        self._waiting: deque[Job] = deque()  # to join the next step
        self._batch: list[Job] = []
        self._called = at.env.event()
        at.env.process(self._steps())

    @property
    def jobs(self) -> int:
        return len(self._waiting) + len(self._batch)

    def take(self, job: Job) -> None:
        self._waiting.append(job)
        if not self._called.triggered:
            self._called.succeed()

    def _steps(self) -> Process:
        env, speeds = self._at.env, self._at.speeds
        while True:
            if not self.jobs:
                self._called = env.event()
                yield self._called
            while self._waiting and len(self._batch) < speeds.max_batch:
                self._batch.append(self._waiting.popleft())
            decoding = [job for job in self._batch if not job.unread]
            chunks = self._chunks(len(decoding))
            yield self._at.works(
                speeds.decode_s(len(decoding), sum(job.context for job in decoding))
                + speeds.prefill_s(sum(tokens for _, tokens in chunks))
            )
            for job in decoding:
                job.token_s.append(env.now)
            for job, tokens in chunks:
                job.unread -= tokens
                if not job.unread:
                    job.prefill_ended_s = env.now
                    job.token_s.append(env.now)
            self._batch = [job for job in self._batch if len(job.token_s) < job.wanted]

    def _chunks(self, decoding: int) -> list[tuple[Job, int]]:
        """Tokens of each prompt that the step takes, in the order of arrival."""
        left, chunks = max(self._chunk_tokens - decoding, 0), []
        for job in self._batch:
            if job.unread and left:
                if job.unread == job.request.input_tokens:
                    job.prefill_began_s = self._at.env.now
                tokens = min(job.unread, left)
                left -= tokens
                chunks.append((job, tokens))
        return chunks


class Aggregated(Deployment):
    """Every GPU prefills and decodes."""

    def __init__(self, speeds: Speeds, gpus: int, chunk_tokens: int) -> None:
        super().__init__(speeds)
        self._gpus = [Gpu(self, chunk_tokens) for _ in range(gpus)]

    def serve(self, job: Job) -> Process:
        min(self._gpus, key=lambda gpu: gpu.jobs).take(job)
        yield self.env.timeout(0)


class Disaggregated(Deployment):
    """Some GPUs prefill, the others decode."""

    def __init__(self, speeds: Speeds, prefills: int, decodes: int, link_bytes_s: float, layerwise: bool) -> None:
        super().__init__(speeds)
        self._link_bytes_s, self._layerwise = link_bytes_s, layerwise
        self._idle = simpy.Store(self.env)  # links of prefill GPUs that have nothing to do
        for _ in range(prefills):
            self._idle.put(simpy.Resource(self.env))
        self._decodes = [Gpu(self, chunk_tokens=0) for _ in range(decodes)]

    def serve(self, job: Job) -> Process:
        link: simpy.Resource = yield self._idle.get()
        job.prefill_began_s = self.env.now
        job.prefill_ended_s = self.env.now + self.speeds.prefill_s(job.unread)
        sent = self.env.process(self._send(job, link))
        yield self.works(self.speeds.prefill_s(job.unread))
        job.unread = 0
        self._idle.put(link)
        yield sent
        job.token_s.append(self.env.now)
        if job.wanted > 1:
            min(self._decodes, key=lambda gpu: gpu.jobs).take(job)

    def _send(self, job: Job, link: simpy.Resource) -> Process:
        """All layers are alike: they become ready, and are sent, at even distances."""
        layers, prefill_s = self.speeds.layers, job.prefill_ended_s - job.prefill_began_s
        all_s = job.request.input_tokens * self.speeds.kv_bytes_per_token / self._link_bytes_s
        yield self.env.timeout(prefill_s / layers if self._layerwise else prefill_s)
        ready_s = self.env.now
        with link.request() as free:
            yield free
            job.link_wait_s = self.env.now - ready_s
            ends_s = self.env.now + all_s
            if self._layerwise:  # the last layer is sent when it is ready and those before it are gone
                ends_s = max(ends_s, job.prefill_ended_s + all_s / layers)
            yield self.env.timeout(ends_s - self.env.now)


def _timed(number: int, job: Job) -> Timed:
    """What a client would have seen."""
    arrived_s, last_s = job.request.timestamp_s, job.token_s[-1]
    return Timed(
        str(number),
        job.request.input_tokens,
        len(job.token_s),
        queued_s=arrived_s,
        sent_s=arrived_s,
        first_token_s=job.token_s[0],
        last_token_s=last_s,
        end_s=last_s,
        token_s=tuple(job.token_s),
    )
