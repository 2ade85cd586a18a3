"""The levels without Docker, each as the user that has it: an ordinary one, and root for Landlock with uids."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from sandbox import cgroup, probe
from sandbox.client import SandboxClient
from sandbox.config import Limits
from sandbox.image.server import landlock
from sandbox.outcome import Status
from tests.sandbox.ordinary import CHECKOUT, FIRST_SUBUID, SECRET, SUBUIDS, Served, served
from tests.sandbox.support import sandbox_at

LIMITS = Limits(cpu_s=4, wall_s=30)
SCENARIOS = [
    pytest.param(("userns", False), id="userns"),
    pytest.param(("landlock", False), id="landlock"),
    pytest.param(("landlock", True), id="landlock-root", marks=pytest.mark.slow),
]

# Every attempt must fail with an OSError; those that do not are printed.
ATTEMPTS = """
import ctypes, json, os, resource, signal, socket
home, owner, outside = {home!r}, {owner}, {outside}
libc = ctypes.CDLL(None, use_errno=True)
def system(name, *arguments):
    if getattr(libc, name)(*arguments) != 0:
        raise OSError(ctypes.get_errno(), name)
attempts = {{
    "read a file": lambda: open(home + "/notes").read(),
    "write a file": lambda: open(home + "/notes", "w"),
    "make a file": lambda: open(home + "/new", "w"),
    "list": lambda: os.listdir(home),
    "change a mode": lambda: os.chmod(home + "/notes", 0o777),
    "change a time": lambda: os.utime(home + "/notes", (1, 1)),
    "truncate": lambda: os.truncate(home + "/notes", 0),
    "remove": lambda: os.remove(home + "/notes"),
    "rename": lambda: os.rename(home + "/notes", home + "/other"),
    "link": lambda: os.link(home + "/notes", "notes"),
    "set an attribute": lambda: os.setxattr(home + "/notes", "user.x", b"1"),
    "write to /tmp": lambda: open("/tmp/rstar2-walls", "w"),
    "write to shared memory": lambda: open("/dev/shm/rstar2-walls", "w"),
    "read /etc/shadow": lambda: open("/etc/shadow"),
    "the owner's environment": lambda: open(f"/proc/{{owner}}/environ").read(),
    "the owner's memory": lambda: open(f"/proc/{{owner}}/mem", "rb"),
    "the zygote's environment": lambda: open(f"/proc/{{os.getppid()}}/environ").read(),
    "the zygote's memory": lambda: open(f"/proc/{{os.getppid()}}/mem", "rb"),
    "signal the owner": lambda: os.kill(owner, signal.SIGTERM),
    "signal the zygote": lambda: os.kill(os.getppid(), signal.SIGTERM),
    "signal a stranger": lambda: os.kill(outside, signal.SIGTERM),
    "limit a stranger": lambda: resource.prlimit(outside, resource.RLIMIT_CPU, (1, 1)),
    "slow a stranger": lambda: os.setpriority(os.PRIO_PROCESS, outside, 19),
    "move a stranger": lambda: os.sched_setaffinity(outside, [0]),
    "trace": lambda: system("ptrace", 16, os.getppid(), 0, 0),
    "a user namespace": lambda: system("unshare", 0x10000000),
    "mount": lambda: system("mount", b"tmpfs", b".", b"tmpfs", 0, 0),
    "chroot": lambda: system("chroot", b"."),
    "connect": lambda: socket.create_connection(("127.0.0.1", 22), 1),
    "a socket": lambda: socket.socket(socket.AF_UNIX),
    "a datagram pair": lambda: socket.socketpair(type=socket.SOCK_DGRAM),
}}
done = []
for name, attempt in attempts.items():
    try:
        attempt()
    except OSError:
        continue
    done.append(name)
done += [name for name, value in os.environ.items() if {secret!r} in value]
print(json.dumps(done))
"""
WORKS = """
import asyncio, concurrent.futures, json, os, subprocess, sys, tempfile, threading
import numpy, sympy
open("here", "w").write("x")
os.mkdir("d"); os.rename("here", "d/there"); os.symlink("d", "link"); os.remove("d/there")
with tempfile.NamedTemporaryFile() as file:
    file.write(b"x")
with concurrent.futures.ThreadPoolExecutor(4) as pool:
    total = sum(pool.map(int, "1234"))
async def one():
    return 1
said = subprocess.run([sys.executable, "-c", "print(6 * 7)"], capture_output=True, text=True).stdout
shell = subprocess.run("echo $((1 + 1)) >/dev/null; ls | wc -l", shell=True, capture_output=True, text=True).stdout
import xml.dom.minidom  # not loaded yet
print(json.dumps([total, asyncio.run(one()), said, int(shell), os.path.exists("/dev/stdin"), sys.stdin.read()]))
"""
DAEMON = """
import ctypes, os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        ctypes.CDLL(None).prctl(36, 0)
        for _ in range(3):
            os.fork()
        while True:
            time.sleep(0.01)
    os._exit(0)
os.wait()
print("left")
"""


@pytest.fixture(scope="module", params=SCENARIOS)
def owned(request: pytest.FixtureRequest) -> Iterator[Served]:
    level, as_root = request.param
    if os.geteuid() != 0 and (reason := probe.obstacle(level)) is not None:
        pytest.skip(reason)
    if level == "landlock" and landlock.abi() < landlock.NEEDED_ABI:
        pytest.skip(f"Landlock ABI {landlock.abi()}")
    with served(level, as_root) as running:
        assert running.isolation == level
        yield running


@pytest.fixture
async def client(owned: Served) -> AsyncIterator[SandboxClient]:
    connected = SandboxClient(owned.endpoint)
    yield connected
    await connected.close()


async def said(client: SandboxClient, code: str, stdin: str = "") -> Any:
    outcome = await client.run(code, stdin, limits=LIMITS)
    assert outcome.status is Status.OK, outcome
    return json.loads(outcome.stdout)


def processes_of(uids: range) -> list[str]:
    """Command lines of the processes with such a uid."""
    found = []
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            if entry.name.isdigit() and uid_of(entry) in uids:
                found.append((entry / "cmdline").read_text())
    return found


def uid_of(entry: Path) -> int:
    return int((entry / "status").read_text().partition("\nUid:")[2].split()[0])


async def test_nothing_of_the_owner_is_within_reach(owned: Served, client: SandboxClient) -> None:
    notes = owned.home / "notes"
    notes.write_text("mine")
    if os.geteuid() == 0:
        os.chown(notes, owned.home.stat().st_uid, owned.home.stat().st_gid)
    notes.chmod(0o644)
    before = notes.stat()
    stranger = subprocess.Popen(
        ["sleep", "60"], user=owned.home.stat().st_uid if os.geteuid() == 0 else None
    )
    try:
        code = ATTEMPTS.format(
            home=str(owned.home), owner=owned.owner_pid, outside=stranger.pid, secret=SECRET
        )
        assert await said(client, code) == []
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()
    after = notes.stat()
    assert (before.st_mode, before.st_mtime, before.st_size) == (
        after.st_mode,
        after.st_mtime,
        after.st_size,
    )
    assert notes.read_text() == "mine"


async def test_ordinary_programs_work(client: SandboxClient) -> None:
    assert await said(client, WORKS, "input") == [10, 1, "42\n", 2, True, "input"]


async def test_a_call_has_no_rights(client: SandboxClient) -> None:
    status = await said(client, "import json; print(json.dumps(open('/proc/self/status').read()))")
    fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    assert {int(fields[name], 16) for name in ("CapInh", "CapPrm", "CapEff", "CapAmb")} == {0}
    assert (fields["NoNewPrivs"], fields["Seccomp"]) == ("1", "2")


async def test_calls_cannot_reach_each_other(client: SandboxClient) -> None:
    victim = "import os, sys, time\nprint(os.getpid(), flush=True)\nopen('mine', 'w').write('x')\ntime.sleep(1.5)"
    hunter = """
import json, os, time
time.sleep(0.5)
hits, own = [], {os.getpid(), os.getppid()}
for pid in set(range(1, 1 << 16)) - own:
    try:
        os.kill(pid, 9)
        hits.append(pid)
    except OSError:
        pass
top = os.path.dirname(os.environ["HOME"])
for number in range(3):
    if os.path.join(top, str(number)) != os.environ["HOME"]:
        try:
            hits += os.listdir(os.path.join(top, str(number)))
        except OSError:
            pass
print(json.dumps(hits))
"""
    outcome, hits = await asyncio.gather(client.run(victim, limits=LIMITS), said(client, hunter))
    assert hits == []
    assert outcome.status is Status.OK


async def test_nothing_is_left_running(owned: Served, client: SandboxClient) -> None:
    if owned.isolation == "userns" and os.geteuid() != 0:
        pytest.skip("which uids the calls have outside is not known here")
    uid = await said(client, "import os; print(os.getuid())")
    subuids = range(FIRST_SUBUID, FIRST_SUBUID + SUBUIDS)
    uids = subuids if owned.isolation == "userns" else range(uid, uid + 1)
    before = len(processes_of(uids))  # the service itself, where calls share its uid
    daemon = await client.run(DAEMON, limits=LIMITS)
    assert (daemon.status, daemon.stdout) == (Status.OK, "left\n")
    for _ in range(3):  # whichever slot serves them, it is empty
        assert await said(client, "import json, os; print(json.dumps(os.listdir('.')))") == []
    assert len(processes_of(uids)) == before


async def test_fork_bomb_ends_and_others_live(client: SandboxClient) -> None:
    bomb = "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass"
    bombed, other = await asyncio.gather(
        client.run(bomb, limits=Limits(cpu_s=1, wall_s=2, tasks=8)),
        client.run("print(1)", limits=Limits(wall_s=60)),
    )
    assert bombed.status in (Status.TIMEOUT, Status.CPU_LIMIT)
    assert other.stdout == "1\n"
    assert await said(client, "print(2)") == 2


async def test_limits_hold(client: SandboxClient) -> None:
    slow, greedy, hoarder, endless = await asyncio.gather(
        client.run("import time; time.sleep(600)", limits=Limits(wall_s=1)),
        client.run("x = []\nwhile True: x.append(bytes(1 << 20))", limits=LIMITS),
        client.run("open('f', 'wb').truncate(1 << 40)", limits=LIMITS),
        client.run("while True: pass", limits=Limits(cpu_s=1, wall_s=60)),
    )
    assert slow.status is Status.TIMEOUT
    assert greedy.status is Status.MEMORY
    assert hoarder.status is Status.ERROR
    assert endless.status is Status.CPU_LIMIT


def test_strays_are_ended_with_all_below_them() -> None:
    code = """
import os, sys, time
from sandbox.image.server import linux, strays
linux.prctl(linux.PR_SET_CHILD_SUBREAPER, 1)
kept = os.fork()
if kept == 0:
    time.sleep(600)
for _ in range(2):
    if os.fork() == 0:
        for _ in range(3):
            if os.fork() == 0:
                os.setsid()
        time.sleep(600)
time.sleep(0.2)
before = len(strays.children(os.getpid()))
strays.end(keep={kept})
print(before, strays.children(os.getpid()) == [kept])
os.kill(kept, 9)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=CHECKOUT
    )
    assert (done.stdout, done.stderr) == ("3 True\n", "")


@pytest.mark.parametrize("name", ["memory", "pids"])
async def test_root_bounds_all_calls_together(name: str) -> None:
    if os.geteuid() != 0 or (reason := cgroup.obstacle()) is not None:
        pytest.skip("needs root and control groups" if os.geteuid() != 0 else str(reason))
    with sandbox_at("ns-root", workers=1, slots=1) as running:
        groups = list(Path("/sys/fs/cgroup").rglob(f"{cgroup.PREFIX}*_{running.gateway_pid}_*"))
        kinds = {group for group in groups if list(group.glob(f"{name}.*"))}
        assert kinds
        members = [Path(group, "cgroup.procs").read_text().split() for group in kinds]
        assert all(len(pids) >= 4 for pids in members)  # pid 1, a dispatcher, two zygotes
    assert not any(group.exists() for group in groups)


def test_landlock_needs_its_scopes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sandbox.image.server.landlock.abi", lambda: 5)
    assert "ABI 5" in str(probe.obstacle("landlock"))


def test_probe_says_what_each_level_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")
    findings = probe.survey()
    assert [one.level for one in findings] == ["docker", "ns-root", "userns", "landlock", "none"]
    assert findings[0].obstacle is not None
    text = probe.table(findings)
    assert "no Docker engine answers" in text
    assert text.count("not promised:") == len(findings)
    assert all(one.level in text for one in findings)
