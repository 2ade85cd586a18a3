"""Calls with known answers, some hundreds outstanding at once, through the client and through HTTP /batch."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field

import aiohttp

from sandbox.client import SandboxClient
from sandbox.config import Limits
from sandbox.outcome import Outcome, Status
from sandbox.service import Sandbox

PATIENT = Limits(cpu_s=10, wall_s=60)
CODES = (
    "import time; time.sleep(0.03); print({} * 7 + int(input()))",
    "import numpy; print(int(numpy.full(3, {}).sum()) * 2 + {} + int(input()))",
)


def code(number: int) -> str:
    return CODES[number % 2].format(number, number)


def answer(number: int) -> str:
    return f"{number * 7 + 5}\n"


@dataclass
class Load:
    """`calls` of each way; `done` counts those that are answered."""

    sandbox: Sandbox
    calls: int = 200
    done: int = 0
    attempts: list[int] = field(default_factory=list)

    def start(self) -> None:
        self._client = SandboxClient(self.sandbox.endpoint)
        self._tasks = [asyncio.create_task(self._call(number)) for number in range(self.calls)]
        self._batch = asyncio.create_task(self._batches())

    async def reach(self, share: float) -> None:
        """Until that share of all calls is answered."""
        while self.done < share * 2 * self.calls:
            await asyncio.sleep(0.01)

    async def check(self) -> None:
        """Wait for all; every call has the answer that is its own."""
        outcomes = await asyncio.gather(*self._tasks)
        wrong = [one for number, one in enumerate(outcomes) if one.stdout != answer(number)]
        assert wrong == []
        assert {outcome.status for outcome in outcomes} == {Status.OK}
        lines = await self._batch
        assert {index: line["stdout"] for index, line in lines.items()} == {
            number: answer(number) for number in range(self.calls)
        }
        assert {line["status"] for line in lines.values()} == {"ok"}
        self.attempts = [outcome.attempt for outcome in outcomes]
        again = await self._client.run("print('serves')", limits=PATIENT)
        assert (again.status, again.stdout) == (Status.OK, "serves\n")
        await self._client.close()

    async def _call(self, number: int) -> Outcome:
        outcome = await self._client.run(code(number), "5\n", limits=PATIENT)
        self.done += 1
        return outcome

    async def _batches(self) -> dict[int, dict[str, object]]:
        """One batch; what a lost connection left unanswered is asked again in the next."""
        found: dict[int, dict[str, object]] = {}
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None)) as session:
            while left := [number for number in range(self.calls) if number not in found]:
                try:
                    await self._one_batch(session, left, found)
                except aiohttp.ClientError:
                    await asyncio.sleep(0.2)
        return found

    async def _one_batch(
        self,
        session: aiohttp.ClientSession,
        numbers: list[int],
        found: dict[int, dict[str, object]],
    ) -> None:
        limits = PATIENT.model_dump(exclude_unset=True)
        calls = [{"code": code(number), "stdin": "5\n", "limits": limits} for number in numbers]
        async with session.post(f"{self.sandbox.http_url}/batch", json={"calls": calls}) as reply:
            reply.raise_for_status()
            async for text in reply.content:
                line = json.loads(text)
                assert numbers[line["index"]] not in found, "answered twice"
                found[numbers[line["index"]]] = line
                self.done += 1
