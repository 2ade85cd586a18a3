"""Weights from the learner's GPUs straight into the engines', through vLLM's weight-transfer API.

`nccl` broadcasts from rank 0 to engines on other devices; with `ipc` engines on the learner's own devices map
its memory. Ranks gather one tensor at a time, so no rank ever holds the whole model. Learner and engines meet
anew for every transfer: it costs seconds of a step's minutes, and an engine that was replaced in between needs
no book-keeping.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor, nn

from rl.weights import DTYPES, EMBEDDING, HEAD
from sandbox.errors import UserError

Backend = Literal["shared_memory", "nccl", "ipc"]


def choose_backend(device: str, placement: Literal["separate", "colocated"]) -> Backend:
    """How weights travel to the engines."""
    if device != "cpu":
        return "nccl" if placement == "separate" else "ipc"
    if placement == "colocated":
        raise UserError(
            "placement 'colocated' needs engines that sleep while the learner works, and vLLM's CPU engine "
            "ignores sleep; use 'separate' on CPU: engines and learner then take turns on the cores"
        )
    return "shared_memory"


@dataclass(frozen=True)
class Meeting:
    """What every rank must know to take part in one transfer."""

    backend: Literal["nccl", "ipc"]
    address: str  # rank 0's, where learner and engines meet (nccl)
    port: int
    engines: Sequence[Any]  # Ray handles of `rl.engine.Engine`
    workers: int  # GPUs an engine

    @property
    def world_size(self) -> int:
        return 1 + self.workers * len(self.engines)


class LearnerWeights:
    """vLLM's `WeightSource` over a sharded model: its tensors by their Hugging Face names, in `dtype`.

    Iterating gathers, so all ranks do it together. The head is always among them, see `rl/weights.py`.
    """

    def __init__(self, model: nn.Module, dtype: str) -> None:
        self.model, self.dtype = model, DTYPES[dtype]

    def metadata(self) -> list[Any]:
        from vllm.distributed.weight_transfer.base import ParamMeta

        return [
            ParamMeta(name, self.dtype, tuple(tensor.shape))
            for name, tensor in self._named().items()
        ]

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        for name, tensor in self._named().items():
            whole = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
            yield name, whole.detach().to(self.dtype)

    def _named(self) -> dict[str, Tensor]:
        named: dict[str, Tensor] = dict(self.model.named_parameters())
        return named | {HEAD: named.get(HEAD, named[EMBEDDING])}


class EngineClient:
    """vLLM's `VLLMWeightSyncClient` over engine actors; only rank 0 calls it."""

    def __init__(self, meeting: Meeting) -> None:
        self.meeting = meeting

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        infos = engine_init_infos(init_info, self.meeting)
        self._all("init_weight_transfer_engine", [{"init_info": info} for info in infos])

    def start_weight_update(self) -> None:
        self._all("start_weight_update", [{}] * len(self.meeting.engines))

    def update_weights(self, update_info: dict[str, Any]) -> None:
        self._all("update_weights", [{"update_info": update_info}] * len(self.meeting.engines))

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        self._all("finish_weight_update", [{}] * len(self.meeting.engines))

    def _all(self, method: str, arguments: list[dict[str, Any]]) -> None:
        import ray

        calls = zip(self.meeting.engines, arguments, strict=True)
        ray.get([engine.worker_call.remote(method, kwargs) for engine, kwargs in calls])


def engine_init_infos(init_info: dict[str, Any], meeting: Meeting) -> list[dict[str, Any]]:
    """One an engine: vLLM numbers the workers of one engine, so each engine begins where the last one ends."""
    if "rank_offset" not in init_info:
        return [init_info] * len(meeting.engines)
    first = init_info["rank_offset"]
    return [
        init_info | {"rank_offset": first + i * meeting.workers}
        for i in range(len(meeting.engines))
    ]


def send(model: nn.Module, dtype: str, meeting: Meeting, rank: int) -> None:
    """Take part in one transfer; every rank of the learner must. Engines hold still meanwhile."""
    from vllm.distributed.weight_transfer.factory import WeightTransferTrainerFactory

    sender = WeightTransferTrainerFactory.trainer_init(
        trainer_info(meeting, rank),
        client=EngineClient(meeting),
        source=LearnerWeights(model, dtype),
    )
    try:
        sender.send_weights()
    finally:
        sender.shutdown()


def trainer_info(meeting: Meeting, rank: int) -> Any:
    """In buffers of bounded size (`packed`), or a copy of the whole model would lie beside the model."""
    if meeting.backend == "ipc":
        from vllm.distributed.weight_transfer.ipc_engine import IPCTrainerInitInfo

        return IPCTrainerInitInfo(packed=True, rank=rank)
    from vllm.distributed.weight_transfer.nccl_engine import NCCLTrainerInitInfo

    return NCCLTrainerInitInfo(
        meeting.address, meeting.port, meeting.world_size, packed=True, rank=rank
    )
