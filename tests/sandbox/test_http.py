"""HTTP as its users see it: shapes, errors, streaming, refusals, tokens."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families
from pydantic import ValidationError

from sandbox.config import SandboxConfig, split_address
from sandbox.http import HttpServer
from sandbox.service import Sandbox
from tests.sandbox.support import need, sandbox_at
from tests.sandbox.test_gateway import boxless

ROOT = Path(__file__).parents[2]
FOREVER = {"code": "import time; time.sleep(600)", "limits": {"wall_s": 1200}}
Session = aiohttp.ClientSession


@pytest.fixture
async def http(web: Sandbox) -> AsyncIterator[Session]:
    async with Session(web.http_url) as session:
        yield session


async def post(http: Session, path: str, body: object) -> tuple[int, dict]:
    async with http.post(path, json=body) as response:
        return response.status, await response.json()


async def health_with(http: Session, **values: int) -> None:
    while True:
        async with http.get("/health") as response:
            health = await response.json()
        if all(health[name] == value for name, value in values.items()):
            return
        await asyncio.sleep(0.02)


async def test_run_gives_the_whole_outcome(http: Session) -> None:
    body = {"code": "print(input())", "stdin": "hi", "limits": {"cpu_s": 1}, "tag": "a"}
    status, reply = await post(http, "/run", body)
    assert status == 200
    times = {name: reply.pop(name) for name in ("queue_s", "wall_s", "cpu_s", "max_rss_mb")}
    assert all(value >= 0 for value in times.values())
    assert reply == {
        "status": "ok",
        "exit_code": 0,
        "stdout": "hi\n",
        "stderr": "",
        "truncated": False,
        "isolation": "ns-root",
        "attempt": 1,
        "tag": "a",
    }


@pytest.mark.parametrize(
    ("fields", "status", "field"),
    [
        ({"code": "1 / 0"}, "error", {"exit_code": 1}),
        ({"code": "import os; os.kill(os.getpid(), 11)"}, "signal", {"signal": 11}),
        ({**FOREVER, "limits": {"wall_s": 0.3}}, "timeout", {"stdout": ""}),
        ({"code": "while True: pass", "limits": {"cpu_s": 0.2}}, "cpu_limit", {"stdout": ""}),
        ({"code": "while True: print('x' * 9999)"}, "output_limit", {"truncated": True}),
        ({"code": "x + 1", "mode": "cell", "history": ["x = 1"]}, "ok", {"stdout": "2\n"}),
        ({"code": "print('\ud800')"}, "error", {}),
    ],
)
async def test_failures_of_the_program_are_answers(
    http: Session, fields: dict, status: str, field: dict
) -> None:
    code, reply = await post(http, "/run", fields)
    assert (code, reply["status"]) == (200, status)
    assert reply.items() >= field.items()


@pytest.mark.parametrize(
    ("path", "body", "status", "part"),
    [
        ("/run", {"code": 1}, 422, "code: expected a string, got 1"),
        ("/run", {"code": "1", "limits": {"cpu_s": 0}}, 422, "limits.cpu_s: "),
        ("/run", {"code": "1", "colour": "red"}, 422, "colour: "),
        ("/run", [1], 400, "expected a JSON object, got list"),
        ("/batch", {"calls": [{"code": "1"}, {"cod": "1"}]}, 422, "calls.1.code: Field required"),
        ("/batch", {"calls": [{"code": "1", "limits": {"scratch_mb": 1}}]}, 422, "scratch_mb"),
        ("/batch", {"calls": []}, 422, "calls: "),
        ("/batch", {"call": []}, 422, "calls: "),
        (
            "/run",
            {"type": "cpp", "solution": "int main(){}"},
            422,
            "type: Input should be 'python'",
        ),
        ("/run/batch", {"submissions": []}, 422, "submissions: "),
        (
            "/run/batch",
            {"submissions": [{"type": "python", "solution": "#" * (17 << 20)}]},
            422,
            "at most 16777216",
        ),
        ("/nowhere", {}, 404, "Not Found"),
        ("/health", {}, 405, "Method Not Allowed"),
    ],
)
async def test_bad_requests_name_the_field(
    http: Session, path: str, body: object, status: int, part: str
) -> None:
    code, reply = await post(http, path, body)
    assert code == status
    assert part in reply["error"]


async def test_bodies_that_are_not_json(http: Session) -> None:
    json_type = {"Content-Type": "application/json"}
    for data, headers, status in (
        (b"{", json_type, 400),
        (b"\xff", json_type, 400),
        (b'{"code": "1"}', {"Content-Type": "text/plain"}, 415),
        (b" " * (65 << 20), json_type, 413),
    ):
        async with http.post("/run", data=data, headers=headers) as response:
            assert response.status == status
            assert "error" in await response.json()


async def test_batch_streams_each_outcome_as_it_finishes(http: Session) -> None:
    quick = [{"code": f"print({i})", "tag": str(i)} for i in range(1, 20)]
    async with http.post("/batch", json={"calls": [FOREVER, *quick]}) as response:
        assert response.status == 200
        assert response.content_type == "application/x-ndjson"
        lines = [json.loads(await response.content.readline()) for _ in quick]
        # The slow one holds nobody up: it runs still.
        await health_with(http, running=1)
    assert {line["index"]: line["stdout"] for line in lines} == {i: f"{i}\n" for i in range(1, 20)}
    assert all(line["tag"] == str(line["index"]) for line in lines)
    await health_with(http, running=0)


async def test_batch_ends_by_itself(http: Session) -> None:
    async with http.post("/batch", json={"calls": [{"code": "print(1)"}] * 40}) as response:
        lines = (await response.text()).splitlines()
    assert sorted(json.loads(line)["index"] for line in lines) == list(range(40))


@pytest.mark.parametrize(
    ("path", "body"), [("/run", FOREVER), ("/batch", {"calls": [FOREVER] * 9})]
)
async def test_lost_connection_ends_its_calls(
    web: Sandbox, http: Session, path: str, body: object
) -> None:
    async with Session(web.http_url) as leaving:
        request = asyncio.create_task(post(leaving, path, body))
        await health_with(http, running=1 if path == "/run" else 4)
        request.cancel()
        await asyncio.gather(request, return_exceptions=True)
    await health_with(http, running=0, queued=0)


async def test_full_queue_is_429_with_retry_after() -> None:
    with sandbox_at("ns-root", workers=1, slots=1, queue=1, http="127.0.0.1:0") as sandbox:
        async with Session(sandbox.http_url) as http:
            waiting = [asyncio.create_task(post(http, "/run", FOREVER)) for _ in range(2)]
            await health_with(http, running=1, queued=1)
            async with http.post("/run", json={"code": "1"}) as response:
                assert response.status == 429
                assert int(response.headers["Retry-After"]) >= 1
                assert (await response.json())["retry_after_s"] > 0
            async with http.post("/batch", json={"calls": [{"code": "1"}]}) as response:
                (line,) = (await response.text()).splitlines()
                assert json.loads(line)["status"] == "overloaded"
            body = {"submissions": [{"type": "python", "solution": "1"}]}
            _, reply = await post(http, "/run/long-batch", body)
            assert reply["results"][0]["reason"] == "queue_timeout"  # its clients repeat that one
            for task in waiting:
                task.cancel()


async def test_metrics_can_be_scraped(http: Session) -> None:
    await post(http, "/run", {"code": "print(1)"})
    await post(http, "/run", {"code": "print('x' * 100_000)"})
    await post(http, "/run", {**FOREVER, "limits": {"wall_s": 0.2}})
    async with http.get("/metrics") as response:
        assert response.status == 200
        text = await response.text()
    values = {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    assert values["sandbox_calls_total", "ok"] >= 2
    assert values["sandbox_suspect_timeouts_total",] >= 1
    assert values["sandbox_truncated_total",] >= 1
    assert values["sandbox_slots",] == 4
    assert values["sandbox_workers_ready",] == 2
    assert values["sandbox_running",] == 0
    for name in ("queue", "wall", "cpu"):
        assert values[f"sandbox_{name}_seconds_count",] >= 3
        assert values[f"sandbox_{name}_seconds_bucket", "+Inf"] >= 3


async def test_health_and_a_call_without_a_box(tmp_path: Path) -> None:
    server = HttpServer(boxless(tmp_path), "127.0.0.1:0", None)
    address = await server.start()
    async with Session(f"http://{address}") as http:
        async with http.get("/health") as response:
            assert response.status == 503
            assert (await response.json())["ready"] is False
        status, reply = await post(http, "/run", {"code": "1", "deadline_s": 0.05})
        assert (status, reply["status"]) == (429, "overloaded")
    await server.stop()


# What code-judge's clients send and read.

PYTHON = {"type": "python", "solution": "print(input())"}


@pytest.mark.parametrize(
    ("fields", "success", "run_success", "reason"),
    [
        ({"input": "a", "expected_output": "a"}, True, True, ""),
        ({"input": "a", "expected_output": " a\n\n"}, True, True, ""),
        ({"input": "a"}, True, True, ""),
        ({"input": "a", "expected_output": "b"}, False, True, ""),
        ({"input": "", "expected_output": "a"}, False, False, ""),
        ({"input": None}, False, False, ""),
        ({"solution": "while True: pass", "options": {}}, False, False, "worker_timeout"),
    ],
)
async def test_code_judge_submissions(
    http: Session, fields: dict, success: bool, run_success: bool, reason: str
) -> None:
    body = {**PYTHON, **fields, "sub_id": "s1"}
    status, result = await post(http, "/run", body)
    assert status == 200
    assert result.keys() == {
        "sub_id", "success", "run_success", "cost", "stdout", "stderr", "reason",
    }  # fmt: skip
    assert (result["success"], result["run_success"]) == (success, run_success)
    assert (result["reason"], result["sub_id"]) == (reason, "s1")
    assert result["cost"] > 0


@pytest.mark.parametrize(
    "path", ["/run/batch", "/run/long-batch", "/judge/batch", "/judge/long-batch"]
)
async def test_code_judge_batches_keep_their_order(http: Session, path: str) -> None:
    submissions = [{**PYTHON, "input": str(i), "expected_output": str(i % 5)} for i in range(10)]
    slow_first = {**PYTHON, "solution": "import time; time.sleep(0.3); print(0)"}
    body = {"type": "batch", "submissions": [slow_first, *submissions]}
    status, reply = await post(http, path, body)
    assert status == 200
    assert [one["success"] for one in reply["results"]] == [True] + [True] * 5 + [False] * 5
    assert ("stdout" in reply["results"][0]) == path.startswith("/run")
    assert isinstance(reply["sub_id"], str)


async def test_code_judge_single_judge_ping_and_status(http: Session) -> None:
    status, result = await post(http, "/judge", {**PYTHON, "input": "a"})
    assert (status, result["success"]) == (200, True)
    assert "stdout" not in result
    async with http.get("/ping") as response:
        assert await response.json() == "pong"
    async with http.get("/status") as response:
        assert await response.json() == {"queue": 0, "num_workers": 4}


# Who may connect.


async def test_token_is_asked_for_everywhere(tmp_path: Path) -> None:
    server = HttpServer(boxless(tmp_path), "127.0.0.1:0", "secret")
    address = await server.start()
    async with Session(f"http://{address}") as http:
        for path in ("/health", "/metrics", "/ping", "/nowhere"):
            for header in (None, "secret", "Bearer", "Bearer secrets", "Bearer secre", "bearer x"):
                headers = {} if header is None else {"Authorization": header}
                async with http.get(path, headers=headers) as response:
                    assert response.status == 401
                    assert "Bearer" in (await response.json())["error"]
        async with http.get("/ping", headers={"Authorization": "Bearer secret"}) as response:
            assert response.status == 200
    await server.stop()


@pytest.mark.parametrize("host", ["0.0.0.0:80", "10.0.0.7:0", "[::]:80", "example.org:80"])
def test_no_token_off_loopback_is_refused(host: str) -> None:
    with pytest.raises(ValidationError, match="http_token_file"):
        SandboxConfig(http=host)
    assert SandboxConfig(http=host, http_token_file=Path("token")).http == host


@pytest.mark.parametrize("host", ["127.0.0.1:0", "localhost:8000", "[::1]:80", "127.1.2.3:65535"])
def test_loopback_needs_no_token(host: str) -> None:
    assert SandboxConfig(http=host).http == host


@pytest.mark.parametrize("address", ["80", "localhost", ":80", "localhost:http", "a:65536", ""])
def test_addresses_that_are_none(address: str) -> None:
    with pytest.raises(ValueError, match="HOST:PORT"):
        split_address(address)


def command(*arguments: str) -> subprocess.Popen[str]:
    """`python -m sandbox ...`"""
    return subprocess.Popen(
        [sys.executable, "-m", "sandbox", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["--http", "0.0.0.0:0"], "set http_token_file"),
        (["--http", "127.0.0.1"], "HOST:PORT"),
        (["--http", "127.0.0.1:0", "--token-file", "/nowhere/token"], "/nowhere/token"),
        (["--config", "{"], "--config: expected SandboxConfig as JSON"),
        (["--config", "[]"], "--config: expected a JSON object"),
        (["--config", '{"slot": 3}'], "slot: "),
    ],
)
def test_serve_refuses_in_one_line(arguments: list[str], part: str) -> None:
    need("ns-root")
    if "--config" not in arguments:
        arguments = [*arguments, "--config", '{"isolation": "ns-root", "slots": 1}']
    refused = command("serve", *arguments)
    out, err = refused.communicate(timeout=60)
    assert refused.returncode != 0
    assert out == ""
    assert part in err
    assert "Traceback" not in err


def test_serve_with_a_token_says_where_it_is_and_leaves_nothing(tmp_path: Path) -> None:
    need("ns-root")
    token = tmp_path / "token"
    token.write_text("secret\n")
    config = '{"isolation": "ns-root", "workers": 1, "slots": 2}'
    owner = command(
        "serve", "--http", "127.0.0.1:0", "--token-file", str(token), "--config", config
    )
    assert owner.stdout is not None
    said = json.loads(owner.stdout.readline())
    assert said.keys() == {"endpoint", "http", "isolation", "workers", "slots"}
    assert (said["isolation"], said["workers"], said["slots"]) == ("ns-root", 1, 2)
    arguments = Path(f"/proc/{owner.pid}/cmdline").read_text()
    assert "secret" not in arguments
    for at in ([said["endpoint"]], [said["http"], "--token-file", str(token)]):
        asked = command("health", *at)
        out, err = asked.communicate(timeout=60)
        assert asked.returncode == 0, err
        assert json.loads(out)["ready"] is True
    refused = command("health", said["http"])
    _, err = refused.communicate(timeout=60)
    assert refused.returncode == 1
    assert "refused the token" in err
    owner.kill()
    owner.wait()
    gone = command("health", said["http"], "--token-file", str(token))
    while gone.wait(60) == 0:
        gone = command("health", said["http"], "--token-file", str(token))
    assert "nobody answers" in gone.communicate()[1]


async def test_killed_gateway_comes_back_at_the_same_port() -> None:
    with sandbox_at("ns-root", workers=1, slots=1, http="127.0.0.1:0") as sandbox:
        url, victim = sandbox.http_url, sandbox.gateway_pid
        os.kill(victim, signal.SIGKILL)
        while sandbox.gateway_pid == victim:
            await asyncio.sleep(0.05)
        assert sandbox.http_url == url
        async with Session(url) as http:
            status, reply = await post(http, "/run", {"code": "print(1)"})
        assert (status, reply["stdout"]) == (200, "1\n")
