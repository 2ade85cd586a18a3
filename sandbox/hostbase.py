"""A base image made from this machine: its Python, the libraries that it loads, a shell and a few programs.

For machines that reach no registry. It takes a second or two and no network, and offers what the Dockerfile
needs of `python:3.12-slim`: `python3` with pip, and `sh`.
"""

from __future__ import annotations

import importlib.util
import io
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
from pathlib import Path

import docker

PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
LEFT_OUT = {
    "test",
    "tests",
    "idlelib",
    "tkinter",
    "turtledemo",
    "ensurepip",
    "lib2to3",
    "site-packages",
}
LEFT_OUT |= {"dist-packages", "EXTERNALLY-MANAGED"}
PROGRAMS = ("sh", "mkdir", "rm", "ls", "cat", "echo", "sleep", "env", "id", "true")
# Not loaded by Python itself, but by its packages' extension modules.
EXTRA_LIBRARIES = (
    "libstdc++.so.6",
    "libgcc_s.so.1",
    "libm.so.6",
    "libpthread.so.0",
    "libdl.so.2",
    "librt.so.1",
    "libutil.so.1",
)
TOP_LINKS = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
TEXT_FILES = {
    "etc/passwd": "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/nonexistent:/bin/false\n",
    "etc/group": "root:x:0:\nnogroup:x:65534:\n",
}


def image_name() -> str:
    return f"sandbox-base:host-{sys.version_info.major}.{sys.version_info.minor}.{sys.version_info.micro}"


def make(client: docker.DockerClient, name: str) -> None:
    """Import this machine's Python into the engine as image `name`."""
    with tempfile.TemporaryDirectory() as directory:
        archive = Path(directory) / "base.tar"
        with tarfile.open(archive, "w") as tar:
            fill(tar)
        repository, _, tag = name.partition(":")
        client.api.import_image_from_file(
            str(archive),
            repository=repository,
            tag=tag,
            changes=[
                "ENV PATH=/usr/local/bin:/usr/bin:/bin",
                "ENV LANG=C.UTF-8",
                'CMD ["python3"]',
            ],
        )


def fill(tar: tarfile.TarFile) -> None:
    for name in TOP_LINKS:
        link = Path("/", name)
        if link.is_symlink():
            _symlink(tar, name, str(link.readlink()))
    for name, mode in (
        ("tmp", 0o1777),
        ("root", 0o700),
        ("proc", 0o555),
        ("sys", 0o555),
        ("dev", 0o755),
        ("run", 0o755),
    ):
        directory = tarfile.TarInfo(name)
        directory.type, directory.mode = tarfile.DIRTYPE, mode
        tar.addfile(directory)
    for name, text in TEXT_FILES.items():
        file = tarfile.TarInfo(name)
        file.size = len(text)
        tar.addfile(file, io.BytesIO(text.encode()))
    # Debian's own interpreter knows its packages by the prefix /usr; any other finds them from where it lies.
    prefix = "usr" if sys.base_prefix == "/usr" else "usr/local"
    executable = Path(sys.base_prefix, "bin", f"python{PYTHON}").resolve()
    stdlib = Path(sysconfig.get_path("stdlib"))
    tar.add(executable, f"{prefix}/bin/python{PYTHON}", filter=_as_root)
    for name in ("python3", "python"):
        _symlink(tar, f"usr/local/bin/{name}", f"/{prefix}/bin/python{PYTHON}")
    tar.add(stdlib, f"{prefix}/lib/python{PYTHON}", filter=_keep)
    tar.add(_pip_directory(), f"{prefix}/lib/python{PYTHON}/pip", filter=_as_root)
    programs = [
        Path(found) for name in PROGRAMS if (found := shutil.which(name, path="/usr/bin:/bin"))
    ]
    for program in programs:
        tar.add(program.resolve(), f"usr/bin/{program.name}", filter=_as_root)
    for library in _libraries([executable, *programs, *stdlib.glob("lib-dynload/*.so")]):
        tar.add(library.resolve(), _library_place(library), filter=_as_root)


def _library_place(library: Path) -> str:
    """Where the loader of the image looks without being told."""
    text = str(library)
    if text.startswith("/usr/lib"):
        return text[1:]
    if text.startswith("/lib"):
        # The top directory may itself be a link, which is in the archive already.
        top = Path("/", library.parts[1])
        return str(top.resolve() / library.relative_to(top))[1:]
    return f"usr/lib/{library.name}"


def _libraries(binaries: list[Path]) -> list[Path]:
    """All that `ldd` names for these, and EXTRA_LIBRARIES from beside the C library."""
    listing = subprocess.run(
        ["ldd", *map(str, binaries)], capture_output=True, text=True, check=False
    ).stdout
    found: dict[str, Path] = {}
    for line in listing.splitlines():
        path = next(
            (word for word in line.split() if word.startswith("/") and not word.endswith(":")), None
        )
        if path is not None and line.startswith(("\t", " ")):
            found.setdefault(path, Path(path))
    system_dirs = {
        path.parent
        for path in found.values()
        if path.name.startswith(("libc.", "ld-linux", "libm."))
    }
    for name in EXTRA_LIBRARIES:
        for directory in (*system_dirs, Path("/usr/lib", f"{os.uname().machine}-linux-gnu")):
            if (directory / name).exists():
                found.setdefault(str(directory / name), directory / name)
                break
    return list(found.values())


def _pip_directory() -> Path:
    spec = importlib.util.find_spec("pip")
    if spec is None or not spec.submodule_search_locations:
        raise FileNotFoundError(f"no pip beside {sys.executable}; install it: python -m ensurepip")
    return Path(spec.submodule_search_locations[0])


def _keep(info: tarfile.TarInfo) -> tarfile.TarInfo | None:
    name = info.name.rsplit("/", 1)[-1]
    if name in LEFT_OUT or name.startswith("config-"):
        return None
    return _as_root(info)


def _as_root(info: tarfile.TarInfo) -> tarfile.TarInfo:
    info.uid = info.gid = 0
    info.uname = info.gname = "root"
    return info


def _symlink(tar: tarfile.TarFile, name: str, target: str) -> None:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = tarfile.SYMTYPE, target
    tar.addfile(info)
