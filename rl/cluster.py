"""Starting Ray, and the resources that engines and learners ask it for."""

from __future__ import annotations

import logging
import os
from typing import Any

from rl.config import ClusterConfig
from sandbox.errors import UserError

QUIET_OMP = {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "0", "KMP_BLOCKTIME": "0"}


def start(config: ClusterConfig) -> None:
    """Attach to the configured Ray, or start one for this process alone (it ends with the process)."""
    import ray

    os.environ.setdefault("RAY_AUTH_MODE", "disabled" if config.ray_address is None else "token")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    # Ray would run its workers, which here are engines and learners, below everything else on the machine.
    os.environ.setdefault("RAY_worker_niceness", "0")
    own: dict[str, Any] = {}
    if config.ray_address is None:
        own = {
            "num_cpus": config.cpus or os.cpu_count(),
            "include_dashboard": False,
            "object_store_memory": config.object_store_mb << 20,
        }
    try:
        ray.init(
            address=config.ray_address,
            log_to_driver=True,
            logging_level=logging.WARNING,
            configure_logging=True,
            **own,
        )
    except ConnectionError as error:
        raise UserError(
            f"cluster.ray_address: no Ray answers at {config.ray_address} ({error}); "
            "start one with `ray start --head`, or leave the setting out"
        ) from error


def actor_options(config: ClusterConfig, gpus: int, threads: int) -> dict[str, Any]:
    """Ray options of an actor. On CPU nothing is reserved: engines and learners take turns on the cores."""
    if config.device == "cuda":
        return {"num_gpus": gpus, "num_cpus": 1}
    return {"num_cpus": 0, "runtime_env": {"env_vars": QUIET_OMP | {"OMP_NUM_THREADS": str(threads)}}}
