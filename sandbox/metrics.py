"""What the gateway counts, in Prometheus' terms; `health` reads the same numbers."""

from __future__ import annotations

from collections import Counter as Tally

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)

from sandbox.image.server import wire
from sandbox.outcome import Status

QUEUE_S = (0.001, 0.005, 0.02, 0.1, 0.3, 1, 3, 10, 30, 100, 300)
CALL_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 4, 9, 20, 60)
STARVED = (
    0.5  # a program that timed out with less CPU than this share of its time may have been starved
)


class Metrics:
    """One registry for one gateway."""

    def __init__(self) -> None:
        disable_created_metrics()
        self.registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        self.by_status: Tally[str] = Tally()
        calls = Counter("sandbox_calls", "calls answered", ["status"], registry=registry)
        self._calls = {status.value: calls.labels(status.value) for status in Status}
        self._queue_s = Histogram(
            "sandbox_queue_seconds",
            "from arrival to the start that was answered",
            buckets=QUEUE_S,
            registry=registry,
        )
        self._wall_s = Histogram(
            "sandbox_wall_seconds", "a program's wall clock", buckets=CALL_S, registry=registry
        )
        self._cpu_s = Histogram(
            "sandbox_cpu_seconds", "a program's CPU clock", buckets=CALL_S, registry=registry
        )
        self._truncated = Counter(
            "sandbox_truncated", "calls whose output was cut", registry=registry
        )
        self._retries = Counter(
            "sandbox_retries", "calls put back into the queue", ["cause"], registry=registry
        )
        self._oom_kills = Counter(
            "sandbox_oom_kills", "programs killed for the box's memory", registry=registry
        )
        self._starved = Counter(
            "sandbox_suspect_timeouts",
            f"timeouts with less than {STARVED:g} CPU seconds a wall second",
            registry=registry,
        )
        self._canaries = Counter(
            "sandbox_canaries", "calls with a known answer", ["result"], registry=registry
        )
        self._gauges = {
            name: Gauge(f"sandbox_{name}", text, registry=registry)
            for name, text in {
                "running": "calls inside the box",
                "queued": "calls that wait",
                "queued_characters": "code and input of the calls that wait",
                "slots": "calls that can run at once",
                "workers_ready": "dispatchers that take calls",
                "restarts": "boxes that were replaced",
                "lost_workers": "dispatchers that were replaced in a box that went on",
            }.items()
        }

    def answered(self, reply: wire.Message) -> None:
        """A reply on its way to the client."""
        status = Status(reply["status"])
        self.by_status[status.value] += 1
        self._calls[status.value].inc()
        if status.infrastructure:
            return
        wall_s, cpu_s = reply.get("wall_s", 0.0), reply.get("cpu_s", 0.0)
        self._queue_s.observe(reply["queue_s"])
        self._wall_s.observe(wall_s)
        self._cpu_s.observe(cpu_s)
        if reply.get("truncated"):
            self._truncated.inc()
        if status is Status.TIMEOUT and cpu_s < STARVED * wall_s:
            self._starved.inc()

    def retried(self, cause: str) -> None:
        self._retries.labels(cause).inc()

    def oom_killed(self) -> None:
        self._oom_kills.inc()

    def canary(self, result: str) -> None:
        self._canaries.labels(result).inc()

    def text(self, gauges: dict[str, float]) -> bytes:
        """The exposition format, with the values of `gauges` as they are."""
        for name, gauge in self._gauges.items():
            gauge.set(gauges[name])
        return generate_latest(self.registry)
