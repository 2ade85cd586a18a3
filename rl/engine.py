"""A vLLM engine as a Ray actor: rollouts run inside it, weights come in, facts go out.

The rollout coroutines live in the engine's own process, so a turn costs no Ray call and a conversation
stays where its KV cache is; tool calls go from here straight to the node's sandbox. One engine has one
weight version at a time, and weights change only while no rollout runs.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray

from rl.config import EngineConfig, RolloutConfig, SamplingConfig, TemplateConfig
from rl.rollout import Generation, roll_out
from rl.template import Template
from rl.tools import Toolbox
from rl.trajectory import Problem, Rollout
from sandbox.config import Limits
from sandbox.outcome import Outcome

CPU_KV_MEMORY_MB = 1024


@dataclass(frozen=True)
class EngineSpec:
    """Everything that an engine needs to start."""

    model_dir: Path
    engine: EngineConfig
    template: TemplateConfig
    limits: Limits
    context_tokens: int
    device: str
    seed: int
    sandboxes: Any  # handle of the SandboxDirectory


class Engine:
    """vLLM `AsyncLLM`. Wrap in `ray.remote` to place it; every method is a coroutine."""

    def __init__(self, spec: EngineSpec) -> None:
        os.environ.update(engine_environment(spec))
        from transformers import AutoTokenizer
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.v1.engine.async_llm import AsyncLLM

        self.spec = spec
        self.version = 0
        self.running = 0
        self._numbers = itertools.count()
        tokenizer = AutoTokenizer.from_pretrained(spec.model_dir)
        self.template = Template(tokenizer, spec.template)
        engine = spec.engine
        self.llm = AsyncLLM.from_engine_args(
            AsyncEngineArgs(
                model=str(spec.model_dir),
                skip_tokenizer_init=True,
                dtype=engine.dtype,
                seed=spec.seed,
                max_model_len=spec.context_tokens,
                max_num_seqs=engine.max_num_seqs,
                tensor_parallel_size=engine.tensor_parallel,
                enforce_eager=engine.enforce_eager,
                enable_prefix_caching=True,
                gpu_memory_utilization=engine.gpu_memory,
                kv_cache_memory_bytes=_kv_memory_bytes(spec),
                generation_config="vllm",  # the model's own sampling defaults would bias RL
                disable_log_stats=True,
                **_backend(spec),
            )
        )
        self.sandbox = Toolbox(spec.sandboxes, ray.get_runtime_context().get_node_id())

    async def facts(self) -> dict[str, Any]:
        """What runs here, for the run's records. Answers once the engine is up."""
        import psutil
        import vllm

        await self._sample([self.template.stop_id], 1, SamplingConfig())
        cache = self.llm.vllm_config.cache_config
        return {
            "engine": f"{type(self.llm).__module__}.{type(self.llm).__qualname__}",
            "vllm_version": vllm.__version__,
            "device": self.spec.device,
            "kv_tokens": cache.num_gpu_blocks * cache.block_size,
            "pids": [os.getpid(), *(child.pid for child in psutil.Process().children(recursive=True))],
        }

    async def prompt_tokens(self, texts: list[str]) -> list[int]:
        """Length of the prompt of each problem text."""
        return [len(self.template.prompt_ids(text)) for text in texts]

    async def roll_out(
        self, problem: Problem, config: RolloutConfig, sampling: SamplingConfig
    ) -> Rollout:
        self.running += 1
        try:
            return await roll_out(
                problem,
                self.template,
                config,
                lambda ids, limit: self._sample(ids, limit, sampling),
                self._run_code,
            )
        finally:
            self.running -= 1

    async def _run_code(self, code: str, stdin: str, history: Sequence[str]) -> Outcome:
        mode = self.spec.template.tool_mode
        return await self.sandbox.run(code, stdin, self.spec.limits, mode, history)

    async def load_weights(self, path: Path, version: int) -> None:
        """Take the weights in `path` (safetensors); the prefix cache of the old ones is dropped."""
        await self.begin_transfer()
        await self.worker_call("reload_weights", {"weights_path": str(path)})
        await self.end_transfer(version)

    async def begin_transfer(self) -> None:
        """Hold still for new weights."""
        if self.running:
            raise RuntimeError(f"new weights were pushed while {self.running} rollouts run")
        await self.llm.pause_generation(mode="wait", clear_cache=True)

    async def worker_call(self, method: str, kwargs: dict[str, Any]) -> None:
        """Call a method of vLLM's workers: the steps of a transfer, see `rl/transfer.py`."""
        await self.llm.collective_rpc(method, kwargs=kwargs)

    async def end_transfer(self, version: int) -> None:
        """Go on with the new weights; what the old ones cached is dropped."""
        await self.llm.reset_prefix_cache()
        await self.llm.resume_generation()
        self.version = version

    async def score(self, ids: list[int]) -> list[float]:
        """The engine's log-probabilities of `ids[1:]`, each given the ids before it."""
        from vllm import SamplingParams, TokensPrompt

        params = SamplingParams(max_tokens=1, prompt_logprobs=0, detokenize=False)
        final = None
        async for output in self.llm.generate(TokensPrompt(prompt_token_ids=ids), params, self._name()):
            final = output
        if final is None or final.prompt_logprobs is None:
            raise RuntimeError("the engine ended a request without output")
        positions = zip(ids[1:], final.prompt_logprobs[1:], strict=True)
        return [scores[token].logprob for token, scores in positions if scores is not None]

    async def shutdown(self) -> None:
        """End vLLM's processes at once: its own way waits for seconds, for requests that nobody has."""
        import psutil

        await self.sandbox.close()
        for child in psutil.Process().children(recursive=True):
            child.kill()

    async def _sample(self, ids: list[int], max_tokens: int, sampling: SamplingConfig) -> Generation:
        from vllm import SamplingParams, TokensPrompt
        from vllm.sampling_params import RequestOutputKind
        from vllm.v1.engine.exceptions import EngineDeadError

        params = SamplingParams(
            max_tokens=min(max_tokens, self.spec.context_tokens - len(ids)),
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            logprobs=0,
            flat_logprobs=True,
            detokenize=False,
            stop_token_ids=[self.template.stop_id],
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        version, final = self.version, None
        try:
            async for output in self.llm.generate(TokensPrompt(prompt_token_ids=ids), params, self._name()):
                final = output
        except EngineDeadError:
            # Half an engine serves nobody: the whole actor goes, and whoever owns it starts another.
            os._exit(1)
        if final is None or final.prompt_token_ids is None:
            raise RuntimeError("the engine ended a request without output")
        completion = final.outputs[0]
        logprobs: Any = completion.logprobs
        return Generation(
            prompt_ids=list(final.prompt_token_ids),
            ids=list(completion.token_ids),
            logprobs=list(logprobs.logprobs),
            stopped=completion.finish_reason == "stop",
            weight_version=version,
        )

    def _name(self) -> str:
        return f"r{next(self._numbers)}"


def _backend(spec: EngineSpec) -> dict[str, Any]:
    backend: dict[str, Any] = {"block_size": spec.engine.block_size} if spec.engine.block_size else {}
    if spec.device != "cpu":
        from rl.transfer import choose_backend

        backend["weight_transfer_config"] = {"backend": choose_backend(spec.device, "separate")}
    elif spec.engine.tensor_parallel == 1:
        backend["distributed_executor_backend"] = "uni"  # one process less to start and to talk to
    return backend


def _kv_memory_bytes(spec: EngineSpec) -> int | None:
    megabytes = spec.engine.kv_memory_mb
    if megabytes is None and spec.device == "cpu":
        megabytes = CPU_KV_MEMORY_MB  # a share of the machine's memory is refused on a busy machine
    return megabytes << 20 if megabytes is not None else None


def engine_environment(spec: EngineSpec) -> dict[str, str]:
    """Environment of an engine process; to be set before torch and vLLM are imported."""
    common = {"VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_LEVEL": "WARNING", "TOKENIZERS_PARALLELISM": "false"}
    if spec.device != "cpu":
        return common
    return common | {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # else vLLM's CPU platform refuses the "uni" executor
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": str(spec.engine.threads),
        "OMP_WAIT_POLICY": "PASSIVE",  # spinning threads starve the other processes of a small machine
        "GOMP_SPINCOUNT": "0",
        "KMP_BLOCKTIME": "0",
    }

