"""The Docker box: one locked-down, long-lived container in which all calls run.

No network, no shared memory, read-only root, no capabilities but the two that give each call a uid of its
own (and that no call has), no new privileges, bounded memory and process count; each slot's scratch is a
tmpfs bounded in bytes and files. Docker's default seccomp profile stays on. The container is removed when
its PID 1 ends, which it does by itself once its owner is gone; a label lets the next start remove what a
dead owner left half made.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets

import docker
from docker.errors import APIError, DockerException, ImageNotFound, NotFound
from docker.models.containers import Container

from sandbox import owner
from sandbox.box import (
    INNER_BOX,
    INNER_CODE,
    INNER_DIR,
    SERVER,
    BoxError,
    Place,
    choose_uid_base,
    server_settings,
    total_memory_mb,
    total_tasks,
)
from sandbox.build import image_name
from sandbox.config import SandboxConfig
from sandbox.say import say

LABEL = "rstar2.sandbox.owner"
MIB = 1 << 20


class DockerBox:
    """See the module's text."""

    isolation = "docker"

    def __init__(self, config: SandboxConfig, place: Place) -> None:
        self._config = config
        self._place = place
        self._client = connect()
        self._container: Container | None = None

    def start(self) -> None:
        remove_strays(self._client)
        self._place.prepare()
        config, slots = self._config, self._config.all_slots
        uid_base = choose_uid_base(config, few_uids=_few_uids(self._client))
        settings = server_settings(config, uid_base, INNER_DIR, INNER_BOX)
        memory_mb = total_memory_mb(config)
        image = image_name(config.image)
        try:
            self._container = self._client.containers.run(
                image,
                ["python3", *SERVER, json.dumps(settings)],
                name=f"rstar2-sandbox-{secrets.token_hex(6)}",
                labels={LABEL: owner.label(os.getpid())},
                working_dir=INNER_CODE,
                runtime=config.runtime,
                detach=True,
                auto_remove=True,
                network_mode="none",
                ipc_mode="none",
                read_only=True,
                cap_drop=["ALL"],
                cap_add=["SETUID", "SETGID"],
                security_opt=["no-new-privileges"],
                user="0:0",
                pids_limit=total_tasks(config),
                mem_limit=memory_mb * MIB,
                memswap_limit=memory_mb * MIB,
                cpu_shares=1024 * slots,  # as much as that many ordinary processes
                cgroup_parent=_cgroup_parent(self._client),
                tmpfs=dict(_scratch(config, uid_base, i) for i in range(slots)),
                volumes={str(self._place.directory): {"bind": INNER_DIR, "mode": "rw,z"}},
            )
        except ImageNotFound:
            raise BoxError(
                f"sandbox.image: no image {image!r} in the Docker engine; "
                "build it with: python -m sandbox image"
            ) from None
        except DockerException as error:
            raise BoxError(f"Docker could not start the sandbox container: {error}") from error

    def running(self) -> bool:
        if self._container is None:
            return False
        try:
            self._container.reload()
        except NotFound:
            return False
        return bool(self._container.status == "running")

    def stop(self) -> None:
        container, self._container = self._container, None
        if container is None:
            return
        try:
            remove(container)
        except OSError as error:  # what the engine's client raises when nobody answers
            say(f"no engine removes the container, its lease ends it: {error}")


def connect(timeout_s: float = 60.0) -> docker.DockerClient:
    """A client of an engine that answers; BoxError where none does."""
    try:
        client = docker.from_env(timeout=timeout_s)
        client.ping()
    except DockerException as error:
        raise BoxError(
            f"no Docker engine answers ({error}); start one (sandbox/engine.sh does where it may), "
            "or set sandbox.isolation to auto or ns-root"
        ) from error
    return client


def remove(container: Container) -> None:
    """Kill and remove; one that is gone or going already is as good."""
    with contextlib.suppress(NotFound):
        try:
            container.remove(force=True)
        except APIError as error:
            if error.status_code != 409:  # 409: its own removal is in progress
                raise


def remove_strays(client: docker.DockerClient) -> int:
    """Remove our containers whose owner process is dead; how many there were."""
    strays = [
        c
        for c in client.containers.list(all=True, filters={"label": LABEL})
        if owner.dead(c.labels[LABEL])
    ]
    for container in strays:
        remove(container)
    return len(strays)


def _scratch(config: SandboxConfig, uid_base: int, index: int) -> tuple[str, str]:
    limits, uid = config.limits, uid_base + index
    options = (
        f"size={limits.scratch_mb}m,nr_inodes={limits.scratch_inodes},mode=0700,uid={uid},gid={uid}"
    )
    return f"{INNER_BOX}/{index}", f"rw,nosuid,nodev,{options}"


def _few_uids(client: docker.DockerClient) -> bool:
    options = client.info().get("SecurityOptions") or []
    return any("rootless" in option or "userns" in option for option in options)


def _cgroup_parent(client: docker.DockerClient) -> str | None:
    """Where the container's CPU weight counts against the machine's processes. The engine's own parent group
    weighs as one process, so that all of its containers together would starve beside a busy trainer.
    """
    return "/" if client.info().get("CgroupDriver") == "cgroupfs" else None
