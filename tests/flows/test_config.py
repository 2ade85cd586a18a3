"""How pipeline.yaml, a profile and overrides become one configuration, and how mistakes are told."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from flows.config import PipelineConfig, load, parse_sets, profile_names
from flows.hardware import check
from flows.overrides import overrides_model
from sandbox.config import numeric
from sandbox.errors import UserError
from tasks.stages import STAGES, pipeline_specs


def test_the_shipped_profiles_are_complete_and_the_body_is_the_papers_recipe() -> None:
    names, default = profile_names()
    assert (names, default) == (["demo", "node", "paper"], "demo")
    paper = load("paper")
    assert [paper.rl.rl1.steps, paper.rl.rl2.steps, paper.rl.rl3.steps] == [300, 85, 125]
    assert [paper.rl.rl1.rollout.response_tokens, paper.rl.rl3.rollout.response_tokens] == [
        8192,
        12288,
    ]
    assert (paper.rl.rl2.prompts, paper.rl.rl2.roc.rollouts, paper.rl.rl2.roc.kept) == (512, 32, 16)
    assert paper.model.base == "Qwen/Qwen3-14B-Base"
    assert load(None) == load("demo")


def test_later_layers_win_and_rl_all_goes_to_every_stage() -> None:
    config = load(
        "demo", parse_sets(["rl.all.steps=7", "rl.rl2.steps=3", "rl.all.optimizer.lr=1e-5"])
    )
    assert [config.rl.rl1.steps, config.rl.rl2.steps, config.rl.rl3.steps] == [7, 3, 7]
    assert config.rl.rl1.optimizer.lr == 1e-5
    assert config.rl.rl1.optimizer.warmup_steps == load("demo").rl.rl1.optimizer.warmup_steps


@pytest.mark.parametrize(
    ("pairs", "parts"),
    [
        (
            ["rl.rl1.stepz=5"],
            ["rl.rl1.stepz", "no such setting", "valid here: steps, prompts, rollout"],
        ),
        (["rl.all.stepz=5"], ["rl.all.stepz", "valid here: steps"]),
        (["rl.rl4.steps=5"], ["rl.rl4", "valid here: all, rl1, rl2, rl3"]),
        (["seed=x"], ["seed (the overrides)", "valid integer", "got 'x'"]),
        (
            ["rl.all.prompts=0"],
            ["rl.all.prompts (the overrides)", "greater than or equal to 1", "got 0"],
        ),
        (
            ["engine.dtype=int8"],
            ["engine.dtype", "'float32', 'bfloat16' or 'float16'", "got 'int8'"],
        ),
        (["rl.all.roc.kept=99"], ["rl.all.roc", "kept (99) is more than rollouts"]),
        (["rl.rl1.optimizer.state=carry"], ["'carry'", "valid: 'fresh' or 'reset'"]),
        (["template.tool_mode=cell"], ["curate.source is 'demo'", "valid: tool_mode 'script'"]),
        (["rl.all=3"], ["rl.all", "expected a map", "got 3"]),
        (["seed"], ["--set seed", "KEY=VALUE"]),
    ],
)
def test_a_wrong_setting_names_the_key_the_value_and_what_is_valid(
    pairs: list[str], parts: list[str]
) -> None:
    with pytest.raises(UserError) as error:
        load("demo", parse_sets(pairs))
    for part in parts:
        assert part in str(error.value)
    assert "pydantic" not in str(error.value)


def test_a_mistake_in_the_file_names_the_file_and_the_profile(tmp_path: Path) -> None:
    file = tmp_path / "pipeline.yaml"
    file.write_text("seed: 1\nprofiles:\n  small: {sft: {epochs: -1}}\n")
    with pytest.raises(
        UserError, match=r"sft\.epochs \(.*pipeline\.yaml, profile small\): .* got -1"
    ):
        load("small", file=file)
    with pytest.raises(UserError, match=r"profile 'big' is not in .*; valid: small"):
        load("big", file=file)
    file.write_text("seed: [1\n")
    with pytest.raises(UserError, match="is no YAML"):
        load(None, file=file)
    with pytest.raises(UserError, match="is not there"):
        load(None, file=tmp_path / "none.yaml")


def test_profiles_whose_hardware_or_files_are_missing_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    check(load("demo"), "demo")
    with pytest.raises(UserError) as error:
        check(load("node"), "node")
    assert "0 found, 8 needed" in str(error.value)
    assert "curate.sft_file: unset" in str(error.value)
    assert "profile demo" in str(error.value)
    with pytest.raises(UserError, match=r"a Ray cluster with 64 GPUs at 127\.0\.0\.1:9"):
        check(load("paper", {"cluster": {"ray_address": "127.0.0.1:9"}}), "paper")
    with pytest.raises(UserError, match=r"model\.base: /not/there is not there"):
        check(load("demo", {"model": {"base": "/not/there"}}), "demo")


def test_fingerprints_follow_the_numbers_only() -> None:
    def fingerprints(**overrides) -> dict[str, str]:
        config = load("demo", overrides)
        return {
            name: spec.fingerprint for name, spec in pipeline_specs(config, config.seed).items()
        }

    base = fingerprints()
    assert list(base) == ["curate", "sft", "rl1", "rl2", "hard_pool", "rl3", "evaluate", "report"]
    assert (
        fingerprints(runs_dir="elsewhere", cluster={"cpus": 1}, track={"uri": "http://x"}) == base
    )

    def stale(**overrides) -> list[str]:
        return [name for name, value in fingerprints(**overrides).items() if value != base[name]]

    assert stale(rl={"rl3": {"steps": 3}}) == ["rl3", "evaluate", "report"]
    assert stale(hard_pool={"samples": 4}) == ["hard_pool", "rl3", "evaluate", "report"]
    assert stale(evaluate={"samples": 2}) == ["evaluate", "report"]
    assert stale(seed=1) == list(base)


def test_every_section_of_a_stage_is_a_place_in_the_configuration() -> None:
    config = load("demo")
    specs = pipeline_specs(config, config.seed)
    for name, kind in STAGES.items():
        assert set(specs[name].sections) == set(kind.sections)
    assert specs["rl2"].sections["rl"] == config.rl.rl2.model_dump(mode="json")
    assert specs["rl2"].numeric["rl"] == numeric(config.rl.rl2)


def test_overrides_hold_only_what_was_set() -> None:
    overrides = overrides_model()
    assert overrides().tree() == {}
    posted = {
        "seed": None,
        "rl": {"rl1": {"steps": 5}, "all": {}},
        "sft": {"packing": "as in the profile"},
    }
    assert overrides.model_validate(posted).tree() == {"rl": {"rl1": {"steps": 5}}}
    assert overrides.model_validate({"sft": {"packing": False}}).tree() == {
        "sft": {"packing": False}
    }
    with pytest.raises(ValidationError, match="greater than or equal to 0"):
        overrides.model_validate({"rl": {"all": {"steps": -1}}})
    with pytest.raises(ValidationError, match="Extra inputs"):
        overrides.model_validate({"sedd": 1})


def test_the_form_has_every_setting_with_each_profiles_value() -> None:
    schema = overrides_model().model_json_schema()
    assert set(schema["properties"]) == set(PipelineConfig.model_fields)
    steps = schema["$defs"]["rl_rl1"]["properties"]["steps"]
    demo = load("demo").rl.rl1.steps
    assert steps["description"] == f"RL steps [demo: {demo} | node: 300 | paper: 300]"
    assert "default" not in steps
    assert steps["minimum"] == 0
    assert list(schema["$defs"]["rl"]["properties"]) == ["all", "rl1", "rl2", "rl3"]
