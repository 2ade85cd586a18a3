"""One Ray for all RL tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rl import cluster as rl_cluster
from rl.config import ClusterConfig


@pytest.fixture(scope="session")
def cluster() -> Iterator[ClusterConfig]:
    import ray

    config = ClusterConfig(device="cpu", object_store_mb=128)
    rl_cluster.start(config)
    yield config
    ray.shutdown()
