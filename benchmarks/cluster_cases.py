"""The cases of the cluster benchmark: hardware, lengths, rollouts an engine.

Hardware constants are chosen, not measured: a decode step reads the weights (`step_s`, overheads included) and
the KV of its sequences (`kv_s`, bytes a token over an attainable bandwidth); prefill is bound by compute.
`TUNED` are the cases on which, and on variants of which, the rules with `saturation` were fitted. `FRESH` are others:
they test what was fitted (docs/placement.md says how far they were seen before).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from benchmarks.simulation import Hardware
from benchmarks.workload import Lengths


@dataclass(frozen=True)
class Case:
    """A step on a number of equal engines."""

    name: str
    hardware: Hardware
    rollouts_per_engine: int
    lengths: Lengths = field(default_factory=Lengths)
    engines: int = 16


def tokens(gib: float, kib_per_token: int) -> int:
    return int(gib * 2**20 / kib_per_token)


MI300X = Hardware("MI300X, 14B", tokens(140, 160), 12e-3, 56.5e-9, 20e-6, 75e-6)
MI300X_HALF = Hardware("MI300X, 14B, half the KV", tokens(70, 160), 12e-3, 56.5e-9, 20e-6, 75e-6)
H100 = Hardware("H100, 14B", tokens(40, 160), 14e-3, 68e-9, 20e-6, 65e-6)
MI355X = Hardware("MI355X, 14B", tokens(220, 160), 9e-3, 34e-9, 15e-6, 35e-6)
A100 = Hardware("A100, 8B", tokens(50, 128), 10e-3, 82e-9, 25e-6, 55e-6)
H100_PAIR = Hardware("2 x H100, 32B", tokens(70, 256), 16e-3, 55e-9, 25e-6, 80e-6)
L40S = Hardware("L40S, 14B in 8 bits", tokens(20, 80), 20e-3, 117e-9, 30e-6, 150e-6)

HEADLINE = Case("140 GiB of KV, 256 an engine", MI300X, 256, engines=64)

TUNED = [
    Case("64 an engine", MI300X, 64),
    Case("128 an engine", MI300X, 128),
    Case("256, mean 4K", MI300X, 256, Lengths(mean=4000)),
    Case("256, mean 8K, cap 32K, sigma 1.2", MI300X, 256, Lengths(sigma=1.2, cap=32_000)),
    Case("256 an engine", MI300X, 256),
    Case("256 an engine", MI300X_HALF, 256),
    Case("64 an engine", H100, 64),
    Case("256 an engine", H100, 256),
]

FRESH = [
    Case("256 an engine", MI355X, 256),
    Case("384 an engine", MI355X, 384),
    Case("512 an engine", MI355X, 512),
    Case("64, mean 4K, cap 16K, sigma 1", A100, 64, Lengths(4000, 1.0, 16_000)),
    Case("128, mean 4K, cap 16K, sigma 1", A100, 128, Lengths(4000, 1.0, 16_000)),
    Case("256, mean 4K, cap 16K, sigma 1", A100, 256, Lengths(4000, 1.0, 16_000)),
    Case("64, mean 10K, cap 14K, sigma 0.5", H100_PAIR, 64, Lengths(10_000, 0.5, 14_000)),
    Case("160, mean 10K, cap 14K, sigma 0.5", H100_PAIR, 160, Lengths(10_000, 0.5, 14_000)),
    Case("48, mean 6K, cap 10K, sigma 0.7", L40S, 48, Lengths(6000, 0.7, 10_000)),
    Case("96, mean 6K, cap 10K, sigma 0.7", L40S, 96, Lengths(6000, 0.7, 10_000)),
    Case("192, mean 6K, cap 10K, sigma 0.7", L40S, 192, Lengths(6000, 0.7, 10_000)),
    Case("256, mean 9K, prompts 2K, 10 calls", MI300X, 256, Lengths(9000, prompt=2000, calls=10.0)),
    Case(
        "256, mean 9K, no group effect, no calls",
        MI300X,
        256,
        Lengths(9000, calls=0.0, group_share=0.0),
    ),
]
