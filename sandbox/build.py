"""Builds the sandbox's image when it is missing.

Always offline inside the build: the wheels are downloaded outside with the user's own pip settings, so that
proxies, mirrors and certificates never matter to Docker. Where no registry gives the base image, one is made
from this machine's interpreter (sandbox/hostbase.py); the Dockerfile is the same.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import docker
from docker.errors import DockerException, ImageNotFound

from sandbox import hostbase
from sandbox.errors import InfrastructureError

IMAGE_DIR = Path(__file__).parent / "image"
REQUIREMENTS = IMAGE_DIR / "requirements.txt"
LABEL = "rstar2.sandbox.sources"
REGISTRY_BASE = "python:3.12-slim"
PULL_TIMEOUT_S = 30.0  # without a byte from the engine
BUILD_TIMEOUT_S = 900.0


class BuildError(InfrastructureError):
    """The image could not be built; the message says why and what to do."""


def ensure_image(client: docker.DockerClient, image: str) -> str:
    """The name of an image that the engine has. One without a tag is ours: its tag is the digest of its sources,
    so that checkouts share an engine without disturbing each other, and it is built if it is missing. One with
    a tag is the user's, and must be there.
    """
    name = image_name(image)
    if _present(client, name):
        return name
    if name == image:
        raise BuildError(
            f"sandbox.image: the Docker engine has no image {image!r}; pull or build it, or give a name without "
            "a tag to have one built from this checkout"
        )
    with _build_lock():
        if _present(client, name):
            return name
        started_at = time.monotonic()
        _say(f"building {name} (once; about a minute)")
        try:
            base, python = _base_image()
            wheels = download_wheels(python)
            _build(name, base, wheels)
        except DockerException as error:
            raise BuildError(f"building {name} failed: {error}") from error
        _say(f"{name} built on {base} in {time.monotonic() - started_at:.0f} s")
    return name


def image_name(image: str) -> str:
    """`image` with its tag."""
    tagged = ":" in image.rpartition("/")[2] or "@" in image
    return image if tagged else f"{image}:{source_digest()[:12]}"


def source_digest() -> str:
    """Of everything that goes into the image."""
    digest = hashlib.sha256()
    for path in _sources():
        digest.update(str(path.relative_to(IMAGE_DIR)).encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def download_wheels(python: str) -> Path:
    """The packages of requirements.txt for that Python, kept in the user's cache directory."""
    key = hashlib.sha256(REQUIREMENTS.read_bytes() + python.encode()).hexdigest()[:16]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rstar2"
    wheels = cache / f"wheels-{python}-{key}"
    if wheels.is_dir():
        return wheels
    cache.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(dir=cache))
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--only-binary=:all:",
        "--python-version",
        python,
    ]
    result = subprocess.run(
        [*command, "--dest", str(partial), "-r", str(REQUIREMENTS)], capture_output=True, text=True
    )
    if result.returncode != 0:
        shutil.rmtree(partial)
        raise BuildError(
            f"pip could not download {REQUIREMENTS.name} for Python {python}:\n{result.stderr.strip()}"
        )
    partial.rename(wheels)
    return wheels


def _present(client: docker.DockerClient, name: str) -> bool:
    try:
        client.images.get(name)
    except ImageNotFound:
        return False
    return True


def _base_image() -> tuple[str, str]:
    """Name of the base image, present in the engine, and its Python's version."""
    client = docker.from_env(timeout=PULL_TIMEOUT_S)
    with contextlib.suppress(ImageNotFound):
        client.images.get(REGISTRY_BASE)
        return REGISTRY_BASE, "3.12"
    try:
        client.images.pull(REGISTRY_BASE)
        return REGISTRY_BASE, "3.12"
    except (DockerException, OSError) as error:
        _say(
            f"{REGISTRY_BASE} cannot be pulled ({str(error)[:120]}); using this machine's Python instead"
        )
    name = hostbase.image_name()
    with contextlib.suppress(ImageNotFound):
        client.images.get(name)
        return name, hostbase.PYTHON
    hostbase.make(docker.from_env(timeout=BUILD_TIMEOUT_S), name)
    return name, hostbase.PYTHON


def _build(tag: str, base: str, wheels: Path) -> None:
    client = docker.from_env(timeout=BUILD_TIMEOUT_S)
    with tempfile.TemporaryFile() as context:
        with tarfile.open(fileobj=context, mode="w") as tar:
            for path in _sources():
                _add(tar, path, str(path.relative_to(IMAGE_DIR)))
            for wheel in sorted(wheels.iterdir()):
                _add(tar, wheel, f"wheelhouse/{wheel.name}")
        context.seek(0)
        stream = client.api.build(
            fileobj=context,
            custom_context=True,
            tag=tag,
            buildargs={"BASE_IMAGE": base, "PIP_ARGS": "--no-index --find-links /opt/wheels"},
            labels={LABEL: source_digest()},
            network_mode="none",
            rm=True,
            forcerm=True,
            decode=True,
        )
        said: list[str] = []
        for event in stream:
            said.append(event.get("stream", ""))
            if "error" in event:
                raise BuildError(
                    f"building {tag} failed: {event['error']}\n{''.join(said)[-2000:]}"
                )


def _add(tar: tarfile.TarFile, path: Path, name: str) -> None:
    """Without owner and time, so that the engine's layer cache sees equal content as equal."""
    info = tarfile.TarInfo(name)
    info.size = path.stat().st_size
    info.mode = 0o644
    with path.open("rb") as file:
        tar.addfile(info, file)


def _sources() -> list[Path]:
    return [IMAGE_DIR / "Dockerfile", REQUIREMENTS, *sorted((IMAGE_DIR / "server").glob("*.py"))]


@contextlib.contextmanager
def _build_lock() -> Iterator[None]:
    """One build at a time; the second finds the first one's image."""
    with open(
        Path(tempfile.gettempdir()) / f"rstar2-sandbox-build-{os.getuid()}.lock", "w"
    ) as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _say(text: str) -> None:
    print(f"sandbox: {text}", file=sys.stderr, flush=True)
