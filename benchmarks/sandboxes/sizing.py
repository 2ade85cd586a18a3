"""How many cores a given load needs: arrival rate x CPU-seconds a call / 0.7."""

from __future__ import annotations

BUSY = 0.7  # of the cores; above it queues grow out of all proportion
STEP_CALLS = 45_000  # tool calls of one training step in the rStar2-Agent report
REPORT_LATENCY_S = 0.3  # its mean


def cores(rate: float, cpu_s: float) -> float:
    return rate * cpu_s / BUSY


def cores_of_burst(calls: int, mean_s: float, cpu_s: float) -> float:
    """All calls at once, served evenly: the mean wait is half of the whole, and no core is ever idle."""
    return calls * cpu_s / (2 * mean_s)


def table(cpu_ms: float) -> list[tuple[str, float]]:
    """Cores for one step's calls, by how they arrive."""
    cpu_s = cpu_ms / 1000
    spread = [
        (f"spread over {minutes} min", cores(STEP_CALLS / 60 / minutes, cpu_s))
        for minutes in (10, 5, 2, 1)
    ]
    bursts = [
        (f"all at once, mean latency {mean_s:g} s", cores_of_burst(STEP_CALLS, mean_s, cpu_s))
        for mean_s in (10.0, 1.0, REPORT_LATENCY_S)
    ]
    return spread + bursts


def lines(cpu_ms: float) -> list[str]:
    head = [
        f"cores = arrivals per second x CPU-seconds a call / {BUSY}   (here {cpu_ms:.1f} CPU-ms a call of the mix)",
        f"{STEP_CALLS:,} calls a step, as in the report:",
    ]
    return head + [f"  {name:34}{count:10,.1f} cores" for name, count in table(cpu_ms)]
