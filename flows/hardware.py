"""What a configuration needs and this machine lacks, found before anything starts.

Looks at files, devices and addresses only: no torch, no Ray, no network beyond one TCP connect.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from pathlib import Path

from flows.config import PipelineConfig
from sandbox.errors import UserError

HINT = "pass what is missing (--set KEY=VALUE, or overrides in Prefect), or profile demo, which needs none of it"


def check(config: PipelineConfig, profile: str | None) -> None:
    """Raise a `UserError` that lists everything that is missing."""
    missing = [*_devices(config), *_files(config)]
    if missing:
        listed = "\n".join(f"  - {line}" for line in missing)
        raise UserError(f"profile '{profile or 'default'}' cannot run here:\n{listed}\n{HINT}")


def _devices(config: PipelineConfig) -> list[str]:
    cluster = config.cluster
    engines, ranks = config.engine.count * config.engine.tensor_parallel, config.learner.ranks
    needed = engines + ranks
    if cluster.device == "cpu":
        return []
    if cluster.ray_address is not None:
        return _ray(cluster.ray_address, needed)
    found = gpu_count()
    if found >= needed:
        return []
    return [
        f"GPUs: {found} found, {needed} needed ({engines} for engine.count × engine.tensor_parallel, "
        f"{ranks} for learner.ranks)"
    ]


def _ray(address: str, gpus: int) -> list[str]:
    if address == "auto":
        if os.environ.get("RAY_ADDRESS") or Path("/tmp/ray/ray_current_cluster").is_file():
            return []
        return [
            f"a Ray cluster with {gpus} GPUs: cluster.ray_address is 'auto' and this machine is in none "
            "(ray start --head on one machine, ray start --address on the others)"
        ]
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdigit():
        return [f"cluster.ray_address: expected auto or host:port, got '{address}'"]
    try:
        socket.create_connection((host, int(port)), timeout=5).close()
    except OSError as error:
        return [f"a Ray cluster with {gpus} GPUs at {address} (cluster.ray_address): {error}"]
    return []


def gpu_count() -> int:
    """CUDA devices that this process may use."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return len([item for item in visible.split(",") if item.strip() not in ("", "-1")])
    if shutil.which("nvidia-smi") is None:
        return 0
    listing = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=30, check=False)
    return sum(line.startswith("GPU ") for line in listing.stdout.splitlines())


def _files(config: PipelineConfig) -> list[str]:
    missing = []
    if config.curate.source == "files":
        for name in ("sft_file", "pool_file", "held_out_file"):
            file = getattr(config.curate, name)
            if file is None:
                missing.append(f"curate.{name}: unset, but curate.source is 'files' (a JSONL file)")
            elif not Path(file).is_file():
                missing.append(f"curate.{name}: {file} is not there")
    for benchmark in config.evaluate.benchmarks:
        if benchmark.endswith((".jsonl", ".json")) and not Path(benchmark).is_file():
            missing.append(f"evaluate.benchmarks: {benchmark} is not there")
    base = config.model.base
    if base.startswith(("/", "./", "../", "~")) and not Path(base).expanduser().is_dir():
        missing.append(f"model.base: {base} is not there (a directory, a Hub id or tiny)")
    return missing
