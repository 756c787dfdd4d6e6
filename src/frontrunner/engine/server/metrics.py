"""Prometheus metrics: what the engine counts, and times as clients see them."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric

SECONDS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)


class ServerMetrics:
    """One registry per server, so that two in a process do not collide."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._engine: Mapping[str, float] = {}
        self.registry.register(self)
        self.responses = Counter(
            "frontrunner_responses",
            "By path and status.",
            ("path", "status"),
            registry=self.registry,
        )
        self.tokens = Counter("frontrunner_tokens", "By kind.", ("kind",), registry=self.registry)
        self.first_token = Histogram(
            "frontrunner_first_token_seconds",
            "Until the first token of a streamed answer.",
            registry=self.registry,
            buckets=SECONDS,
        )
        self.answer = Histogram(
            "frontrunner_answer_seconds",
            "Until an answer is finished.",
            registry=self.registry,
            buckets=SECONDS,
        )

    def collect(self) -> Iterator[Metric]:
        """The engine's own numbers, as of the last `text`."""
        for name, value in sorted(self._engine.items()):
            yield GaugeMetricFamily(f"frontrunner_{name.replace('/', '_')}", name, value=value)

    def text(self, engine: Mapping[str, float]) -> bytes:
        """The exposition format, with the engine's numbers."""
        self._engine = engine
        return generate_latest(self.registry)


class Stopwatch:
    """Times one answer from the moment it was asked for."""

    def __init__(self, metrics: ServerMetrics) -> None:
        self._metrics, self._start = metrics, time.perf_counter()
        self._first = True

    def token(self) -> None:
        if self._first:
            self._metrics.first_token.observe(time.perf_counter() - self._start)
        self._first = False

    def finished(self, prompt: int, cached: int, output: int) -> None:
        """`prompt` tokens, of which `cached` were at hand, and `output` sampled ones."""
        self._metrics.answer.observe(time.perf_counter() - self._start)
        for kind, number in (("prompt", prompt), ("cached", cached), ("output", output)):
            self._metrics.tokens.labels(kind).inc(number)
