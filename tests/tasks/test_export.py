"""An exported model directory, read as a stranger would read it."""

import json
import shutil
from pathlib import Path

import pytest

from rl.config import SamplingConfig, TemplateConfig
from rl.template import IM_END, user_text
from sandbox.errors import UserError
from tasks.export import check, export
from tests.tasks.taught import QUESTION, teach


@pytest.fixture(scope="module")
def taught(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("taught")
    teach(directory)
    (directory / "training_args.bin").write_bytes(b"pickle")
    return directory


@pytest.fixture
def exported(taught: Path, tmp_path: Path) -> Path:
    target = tmp_path / "model"
    export(taught, target, SamplingConfig(temperature=0.6, top_p=0.9))
    return target


def test_it_answers_with_nothing_but_transformers(exported: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(exported)
    model = AutoModelForCausalLM.from_pretrained(exported)
    asked = [{"role": "user", "content": user_text(QUESTION)}]
    ids = tokenizer.apply_chat_template(
        asked, add_generation_prompt=True, return_tensors="pt", return_dict=False
    )
    written = model.generate(ids, do_sample=False, max_new_tokens=80)[0, ids.shape[1] :]
    text = tokenizer.decode(written)
    assert '"code": "print(6*7)"' in text
    assert text.endswith(IM_END)  # it stops by itself: the end of a turn is the end of generation


def test_generation_settings_are_those_of_the_evaluation(exported: Path) -> None:
    settings = json.loads((exported / "generation_config.json").read_text())
    assert (settings["do_sample"], settings["temperature"], settings["top_p"]) == (True, 0.6, 0.9)
    assert settings["top_k"] == 0
    assert not (exported / "training_args.bin").exists()


def test_weights_are_linked_and_the_source_is_untouched(taught: Path, exported: Path) -> None:
    weights = "model.safetensors"
    assert (exported / weights).stat().st_ino == (taught / weights).stat().st_ino
    assert "temperature" not in json.loads((taught / "generation_config.json").read_text())
    export(taught, exported, SamplingConfig(temperature=0.0))  # again, over what is there
    settings = json.loads((exported / "generation_config.json").read_text())
    assert settings["do_sample"] is False
    assert (taught / weights).is_file()


def test_check_tells_what_loads(exported: Path) -> None:
    facts = check(exported, TemplateConfig())
    assert facts.architecture == "Qwen3ForCausalLM"
    assert facts.dtype == "float32"
    assert facts.bytes > facts.parameters * 4


def test_check_names_what_is_missing(exported: Path, tmp_path: Path) -> None:
    (exported / "chat_template.jinja").unlink()
    with pytest.raises(UserError, match="no chat template"):
        check(exported, TemplateConfig())
    (exported / "model.safetensors").unlink()
    with pytest.raises(UserError, match="does not load"):
        check(exported, TemplateConfig())


def test_check_wants_all_weights(exported: Path) -> None:
    from safetensors.torch import load_file, save_file

    weights = load_file(exported / "model.safetensors")
    weights.pop("model.layers.1.mlp.up_proj.weight")
    (exported / "model.safetensors").unlink()
    save_file(weights, exported / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(UserError, match=r"missing keys.*layers.1.mlp.up_proj"):
        check(exported, TemplateConfig())


def test_check_wants_the_tool_that_is_configured(exported: Path) -> None:
    with pytest.raises(UserError, match="does not offer the tool jupyter_code"):
        check(exported, TemplateConfig(tool_name="jupyter_code"))


def test_a_copy_elsewhere_is_complete(exported: Path, tmp_path: Path) -> None:
    moved = tmp_path / "elsewhere"
    shutil.copytree(exported, moved)
    shutil.rmtree(exported)
    assert check(moved, TemplateConfig()).parameters > 0
