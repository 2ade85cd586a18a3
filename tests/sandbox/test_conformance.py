"""What every isolation level must do, seen from the caller and from inside a call."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from sandbox.client import SandboxClient
from sandbox.config import Limits
from sandbox.outcome import Status
from sandbox.service import Sandbox
from tests.sandbox.support import QUICK

DAEMON = """
import os, time
print(os.getpid(), flush=True)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        {close}
        time.sleep(600)
    os._exit(0)
os.wait()
"""
UID_ALIVE = """
import os
others = 0
for pid in filter(str.isdigit, os.listdir("/proc")):
    try:
        uids = open(f"/proc/{pid}/status").read().partition("Uid:")[2].split()[:4]
    except OSError:
        continue
    others += str(os.getuid()) in uids and int(pid) != os.getpid()
print(others)
"""


async def said(client: SandboxClient, code: str) -> Any:
    """What a program that must succeed prints, as JSON."""
    outcome = await client.run(code, limits=QUICK)
    assert outcome.status is Status.OK, outcome
    return json.loads(outcome.stdout)


@pytest.mark.parametrize(
    ("code", "status", "part"),
    [
        ("print(2 + 2)", Status.OK, "4\n"),
        ("import sys; print('note', file=sys.stderr)", Status.OK, "note"),
        ("import sys; sys.exit(0)", Status.OK, ""),
        ("1 / 0", Status.ERROR, "ZeroDivisionError"),
        ("x = = 1", Status.ERROR, "SyntaxError"),
        ("import sys; sys.exit('bye')", Status.ERROR, "bye"),
        ("print('a')\0", Status.ERROR, "null bytes"),
        ("print('\ud800')", Status.ERROR, "utf-8"),
        ("import ctypes; ctypes.string_at(0)", Status.SIGNAL, ""),
        ("import os; os.kill(os.getpid(), 9)", Status.SIGNAL, ""),
        ("b'x' * (8 << 30)", Status.MEMORY, "MemoryError"),
        ("import numpy; numpy.ones(4 * 10**9)", Status.MEMORY, "Unable to allocate"),
        ("while True: print('x' * 1000)", Status.OUTPUT_LIMIT, "bytes cut"),
        (
            "import numpy, scipy, sympy, mpmath, networkx, pandas; print(sympy.factorint(91))",
            Status.OK,
            "{7: 1",
        ),
    ],
)
async def test_status(
    client: SandboxClient, sandbox: Sandbox, code: str, status: Status, part: str
) -> None:
    outcome = await client.run(code, limits=QUICK)
    assert outcome.status is status, outcome
    assert part in outcome.stdout + outcome.stderr
    assert outcome.isolation == sandbox.isolation


async def test_cpu_limit_keeps_the_output_so_far(client: SandboxClient) -> None:
    outcome = await client.run(
        "print('before')\nwhile True: pass", limits=Limits(cpu_s=1, wall_s=60)
    )
    assert outcome.status is Status.CPU_LIMIT
    assert outcome.stdout == "before\n"


async def test_sleep_meets_the_wall_clock(client: SandboxClient) -> None:
    outcome = await client.run(
        "import time\nprint('before')\ntime.sleep(600)", limits=Limits(cpu_s=4, wall_s=1)
    )
    assert (outcome.status, outcome.stdout) == (Status.TIMEOUT, "before\n")
    assert outcome.wall_s >= 1


async def test_signals_cannot_be_refused(client: SandboxClient) -> None:
    code = (
        "import signal, time\nfor number in set(signal.valid_signals()) - {9, 19}:\n"
        "    signal.signal(number, signal.SIG_IGN)\nprint('deaf', flush=True)\ntime.sleep(600)"
    )
    outcome = await client.run(code, limits=Limits(wall_s=2))
    assert outcome.status in (Status.TIMEOUT, Status.ERROR)
    assert outcome.status is Status.TIMEOUT or "OSError" in outcome.stderr


async def test_exit_codes_and_signals_are_reported(client: SandboxClient) -> None:
    exited = await client.run("import os; os._exit(7)")
    assert (exited.status, exited.exit_code) == (Status.ERROR, 7)
    aborted = await client.run("import os; os.abort()")
    assert (aborted.status, aborted.signal) == (Status.SIGNAL, 6)


async def test_traceback_shows_the_users_lines_only(client: SandboxClient) -> None:
    outcome = await client.run("def f():\n    raise ValueError('no')\n\nf()")
    assert outcome.stderr.splitlines() == [
        "Traceback (most recent call last):",
        '  File "main.py", line 4, in <module>',
        "    f()",
        '  File "main.py", line 2, in f',
        "    raise ValueError('no')",
        "ValueError: no",
    ]


async def test_standard_input(client: SandboxClient) -> None:
    outcome = await client.run(
        "import sys\nprint(input(), len(sys.stdin.read()))", "first\n" + "x" * 3_000_000
    )
    assert outcome.stdout == "first 3000000\n"


async def test_large_output_keeps_both_ends(client: SandboxClient) -> None:
    outcome = await client.run("print('first'); print('x' * 300_000); print('last')")
    assert outcome.status is Status.OK
    assert outcome.truncated
    assert outcome.stdout.startswith("first")
    assert outcome.stdout.endswith("last\n")


async def test_call_is_nobody_with_no_rights(client: SandboxClient) -> None:
    code = "import json, os; print(json.dumps([os.getresuid(), os.getgroups(), open('/proc/self/status').read()]))"
    uids, groups, status = await said(client, code)
    assert len(set(uids)) == 1
    assert uids[0] != 0
    assert groups == []
    fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    assert {int(fields[name], 16) for name in ("CapInh", "CapPrm", "CapEff", "CapAmb")} == {0}
    assert fields["NoNewPrivs"] == "1"


async def test_no_network(client: SandboxClient) -> None:
    code = """
import json, os, socket
def attempt(address):
    try:
        socket.create_connection(address, 5)
    except OSError as error:
        return type(error).__name__
print(json.dumps([attempt(("1.1.1.1", 53)), attempt(("example.org", 80)), os.listdir("/sys/class/net")
                  if os.path.isdir("/sys/class/net") else ["lo"]]))
"""
    by_address, by_name, interfaces = await said(client, code)
    assert by_address == "PermissionError"
    assert by_name == "gaierror"
    assert [name for name in interfaces if name not in ("lo", "tunl0", "sit0", "ip6tnl0")] == []


async def test_only_scratch_can_be_written(client: SandboxClient) -> None:
    code = """
import json, os, tempfile
tempfile.TemporaryFile().close()
open("here", "w").write("x")
done = []
for path in ("/x", "/etc/x", "/tmp/x", "/usr/x", "/opt/sandbox/x", "/opt/sandbox/server/x", "/dev/shm/x", "/run/x",
             "/box/x", os.__file__, "/proc/sys/kernel/hostname"):
    try:
        open(path, "w")
        done.append(path)
    except OSError:
        pass
print(json.dumps(done))
"""
    assert await said(client, code) == []


async def test_other_processes_are_closed(client: SandboxClient) -> None:
    code = """
import json, os
readable, killed = [], []
for pid in filter(str.isdigit, os.listdir("/proc")):
    if int(pid) == os.getpid():
        continue
    for name in ("environ", "mem", "maps"):
        try:
            open(f"/proc/{pid}/{name}", "rb").read(1)
            readable.append(f"{pid}/{name}")
        except OSError:
            pass
    try:
        os.kill(int(pid), 9)
        killed.append(pid)
    except OSError:
        pass
for path in ("/run/private", "/run/private/sock"):
    try:
        readable += os.listdir(path)
    except OSError:
        pass
print(json.dumps([readable, killed, sorted(k for k in os.environ if "KEY" in k or "TOKEN" in k)]))
"""
    assert await said(client, code) == [[], [], []]


async def test_child_owns_no_file_but_its_streams(client: SandboxClient) -> None:
    code = """
import json, os
found = []
for fd in range(3, 1024):
    try:
        os.fstat(fd)
        found.append(fd)
    except OSError:
        pass
print(json.dumps(found))
"""
    assert await said(client, code) == []


@pytest.mark.parametrize("close", ["os.closerange(0, 100)", "pass"])
async def test_daemon_left_behind_is_killed(client: SandboxClient, close: str) -> None:
    outcome = await client.run(DAEMON.format(close=close), limits=QUICK)
    assert outcome.status is Status.OK
    for _ in range(12):  # whichever slot serves these, no process of its uid but the call's own
        assert await said(client, UID_ALIVE) == 0


async def test_scratch_is_empty_for_the_next_call(client: SandboxClient) -> None:
    litter = """
import os
for _ in range(300):
    os.mkdir("d"); os.chdir("d")
os.chmod(".", 0)
os.chdir(os.environ["HOME"])
open("file", "w").write("x"); os.symlink("/etc", "link"); os.chmod("d", 0); os.chmod(".", 0)
"""
    assert (await client.run(litter, limits=QUICK)).status is Status.OK
    for _ in range(12):
        assert await said(client, "import json, os; print(json.dumps(os.listdir('.')))") == []


async def test_scratch_is_bounded(client: SandboxClient) -> None:
    code = """
import json
errors = []
try:
    with open("big", "wb") as file:
        for _ in range(40):
            file.write(bytes(1 << 20))
except OSError as error:
    errors.append(error.errno)
try:
    for number in range(5000):
        open(f"f{number}", "w").close()
except OSError as error:
    errors.append(error.errno)
print(json.dumps(errors))
"""
    assert await said(client, code) == [28, 28]


async def test_fork_bomb_ends_and_others_live(client: SandboxClient) -> None:
    bomb = "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass"
    bombed, *others = await asyncio.gather(
        client.run(bomb, limits=Limits(cpu_s=1, wall_s=2)),
        *(client.run(f"print({i})", limits=Limits(cpu_s=4, wall_s=60)) for i in range(4)),
    )
    assert bombed.status in (Status.TIMEOUT, Status.CPU_LIMIT)
    assert [other.stdout for other in others] == [f"{i}\n" for i in range(4)]


async def test_nothing_passes_from_call_to_call(client: SandboxClient) -> None:
    spoil = "import builtins, sys, os, random\nbuiltins.print = None\nos._exit = None\nsys.modules.clear()"
    await client.run(spoil)
    draws = {
        await said(client, "import numpy; print(int(numpy.random.randint(1 << 30)))")
        for _ in range(8)
    }
    assert len(draws) == 8


async def test_two_hundred_at_once_are_all_right(client: SandboxClient) -> None:
    outcomes = await asyncio.gather(
        *(client.run(f"print({i} * 7 + int(input()))", str(i)) for i in range(200))
    )
    assert [outcome.stdout for outcome in outcomes] == [f"{i * 8}\n" for i in range(200)]
    assert {outcome.status for outcome in outcomes} == {Status.OK}


async def test_cancelled_call_frees_its_slot(client: SandboxClient) -> None:
    sleepers = [
        asyncio.create_task(client.run("import time; time.sleep(600)", limits=Limits(wall_s=900)))
        for _ in range(6)
    ]
    while (await client.health())["running"] < 6:
        await asyncio.sleep(0.05)
    for sleeper in sleepers:
        sleeper.cancel()
    await asyncio.gather(*sleepers, return_exceptions=True)
    assert await said(client, "print(1)") == 1


def test_one_client_serves_several_event_loops(sandbox: Sandbox) -> None:
    client = SandboxClient(sandbox.endpoint)

    async def once() -> str:
        outcome = await client.run("print('hello')")
        await client.close()
        return outcome.stdout

    assert [asyncio.run(once()) for _ in range(2)] == ["hello\n", "hello\n"]


async def test_health_counts_calls_by_status(client: SandboxClient, sandbox: Sandbox) -> None:
    before = await client.health()
    await client.run("1 / 0")
    after = await client.health()
    assert after["calls"]["error"] == before["calls"].get("error", 0) + 1
    assert after["isolation"] == sandbox.isolation
    assert after["missing_packages"] == []
