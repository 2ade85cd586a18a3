"""The parts of the GPU weight transfer that need no GPU: choice, what is sent, who is who."""

from __future__ import annotations

import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from rl.transfer import LearnerWeights, Meeting, choose_backend, engine_init_infos, trainer_info
from sandbox.errors import UserError


def test_the_backend_follows_device_and_placement():
    assert choose_backend("cpu", "separate") == "shared_memory"
    assert choose_backend("cuda", "separate") == "nccl"
    assert choose_backend("cuda", "colocated") == "ipc"
    with pytest.raises(UserError, match=r"ignores sleep; use 'separate' on CPU"):
        choose_backend("cpu", "colocated")


@pytest.mark.parametrize("tied", [True, False])
def test_what_is_declared_is_what_is_sent(tied):
    from vllm.distributed.weight_transfer.nccl_engine import NCCLTrainerWeightTransferEngine

    config = Qwen3Config(
        vocab_size=32, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, head_dim=16, tie_word_embeddings=tied,
    )  # fmt: skip
    model = Qwen3ForCausalLM(config)
    source = LearnerWeights(model, "bfloat16")
    # vLLM's own check of a source against its metadata
    sent = dict(NCCLTrainerWeightTransferEngine._checked_iter(source, source.metadata()))
    assert sent.keys() == model.state_dict().keys()  # the tied head included
    for name, tensor in model.state_dict().items():
        assert torch.equal(sent[name], tensor.bfloat16()), name
    assert len(list(source)) == len(sent)  # iterating again starts anew


def test_every_gpu_of_every_engine_has_a_rank_of_its_own():
    from vllm.distributed.weight_transfer.nccl_engine import NCCLWeightTransferInitInfo

    meeting = Meeting("nccl", "host", 1234, engines=[None, None, None], workers=2)
    info = trainer_info(meeting, rank=0)
    assert info.backend == "nccl" and info.world_size == 7 and info.is_sender
    assert not trainer_info(meeting, rank=1).is_sender
    first = {"master_address": "host", "master_port": 1234, "rank_offset": 1, "world_size": 7}
    offsets = [
        NCCLWeightTransferInitInfo(**i).rank_offset for i in engine_init_infos(first, meeting)
    ]
    assert offsets == [1, 3, 5]


def test_ipc_needs_no_meeting_place():
    meeting = Meeting("ipc", "", 0, engines=[None, None], workers=1)
    assert trainer_info(meeting, rank=0).packed
    assert engine_init_infos({"packed": True}, meeting) == [{"packed": True}] * 2
