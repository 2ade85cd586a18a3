"""Stage `report` on stage directories written as the stages write them: figures, pictures, hostile text."""

import html.parser
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from flows.config import load
from rl.trajectory import StopReason
from tasks.report.plots import RL_PANELS, SFT_PANELS, Mark, panel_svg, plot_run, plot_stage
from tasks.report.tables import NONE
from tasks.scores import Attempt, score_attempts
from tasks.spec import StageStatus
from tasks.stage import Stage
from tasks.stages import pipeline_specs
from tasks.transcript import Transcript, TranscriptCall, TranscriptTurn

HOSTILE = '</pre><script>alert(1)</script><img src=x onerror="alert(2)"> | ``` & <b>'
ANSWER = "<answer>\\boxed{7}</answer>"
RAN_ON = {
    "engine": "vllm.v1.engine.async_llm.AsyncLLM",
    "vllm_version": "0.32.0",
    "isolation": "docker",
}
Rows = list[dict[str, object]]


def rl_rows(steps: int, start: float) -> Rows:
    return [
        {
            "step": step,
            "time": 0.0,
            "values": {
                "reward": start + 0.01 * step,
                "tool_error_rate": 0.2,
                "tool_error_rate_correct": 0.1 - 0.005 * step,
                "response_tokens": 80.0 + step,
                "stop/length": 0.05,
                "groups/kept": 0.75,
                "tool/calls": 120.0,
                "tool/seconds_mean": 0.0125,
                "tool/wait_share": 0.0315,
            },
        }
        for step in range(1, steps + 1)
    ]


def sft_rows() -> Rows:
    return [
        {"step": step, "time": 0.0, "values": {"sft/loss": 6.0 / step}} for step in range(1, 20)
    ]


def transcript(reward: float, stop: str, failed: bool) -> Transcript:
    call = TranscriptCall(
        status="error" if failed else "ok", failed=failed, seconds=0.1, result=HOSTILE
    )
    return Transcript(
        benchmark="held_out",
        problem_id=HOSTILE,
        problem=HOSTILE,
        answer=HOSTILE,
        reward=reward,
        stop=stop,
        tokens=90,
        turns=[TranscriptTurn(text=HOSTILE, calls=[call]), TranscriptTurn(text=ANSWER, calls=[])],
    )


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Stage:
    runs = tmp_path_factory.mktemp("runs")
    specs = pipeline_specs(load("demo", {"runs_dir": str(runs)}), seed=3)

    def finish(name: str, rows: Rows, results: dict[str, object]) -> None:
        stage = Stage.prepare(runs, specs[name])
        (stage.dir / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        if name == "evaluate":
            kinds = ((1.0, "answered", False), (1.0, "answered", True), (0.0, "length", True))
            samples = [transcript(*kind) for kind in kinds]
            text = "".join(sample.model_dump_json() + "\n" for sample in samples)
            (stage.outputs / "samples.jsonl").write_text(text)
        stage.finish(StageStatus(seconds=60.0, step=len(rows), results=results, ran_on=RAN_ON))

    solved, clipped = (
        Attempt(1.0, StopReason.ANSWERED, 80, 2, 1),
        Attempt(0.0, StopReason.LENGTH, 160, 1, 0),
    )
    scores = score_attempts([[solved], [clipped], []])
    finish("curate", [], {"pool": 1500})
    finish("sft", sft_rows(), {"accuracy": 0.4, "accuracy_stderr": 0.03})
    finish("rl1", rl_rows(10, 0.4), {"accuracy": 0.55, "accuracy_stderr": 0.03})
    finish("rl2", rl_rows(5, 0.5), {"accuracy": 0.6, "accuracy_stderr": 0.03})
    finish("hard_pool", [], {"pool": 1500, "hard": 812})
    finish("rl3", rl_rows(8, 0.5), {"accuracy": 0.7, "accuracy_stderr": 0.04})
    figures = scores.as_dict() | {"prompt_too_long": 1}
    finish("evaluate", [], {"benchmarks": {"held_out": figures, "<aime>": figures}, "samples": 1})
    stage = Stage.prepare(runs, specs["report"])
    child = subprocess.run(
        [sys.executable, "-m", "tasks", str(stage.dir)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert child.returncode == 0, child.stdout + stage.log_file.read_text()[-3000:]
    return stage


class Reader(html.parser.HTMLParser):
    """Tags, attributes and table rows of a page; raises on a tag that is closed but not open."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.attributes: list[tuple[str, str | None]] = []
        self.rows: list[list[str]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += attrs
        if tag not in ("meta", "br"):
            self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += attrs

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1:] in (["td"], ["th"]):
            self.rows[-1][-1] += data


def row(reader: Reader, name: str) -> list[str]:
    return next(cells for cells in reader.rows if cells[0] == name)


def test_the_page_says_what_the_stages_recorded(report: Stage) -> None:
    text = (report.outputs / "report.html").read_text()
    assert (
        "went from 40.0 ± 3.0 % after sft to 70.0 ± 4.0 % after rl3: +30.0 points, +6.0 standard errors"
        in text
    )
    reader = Reader(text)
    assert reader.open == []
    assert row(reader, "rl1") == [
        "rl1", "55.0 ± 3.0 %", "43.0 → 48.0 %", "8.5 → 6.0 %", "83 → 88", "5.0 → 5.0 %", "75.0 → 75.0 %",
    ]  # fmt: skip
    assert row(reader, "sft")[1:3] == ["40.0 ± 3.0 %", NONE]  # a figure that sft has not is no zero
    assert row(reader, "problems in the pool")[1:] == ["1,500", "1,500", "812"]
    assert row(reader, "optimizer state")[1:] == ["fresh", "carry", "reset"]
    assert ["rl2", "120", "0.013", NONE, NONE, NONE, "3.1 %", NONE] in reader.rows
    assert row(reader, "held_out")[1:3] == ["3 (1 too long)", "33.3 ± 33.3 %"]
    assert row(reader, "held_out")[-1] == "answered 1, length 1"


def test_no_text_of_a_model_becomes_markup(report: Stage) -> None:
    text = (report.outputs / "report.html").read_text()
    reader = Reader(text)
    assert not reader.tags & {"script", "img", "iframe", "object", "link"}
    assert not [name for name, _ in reader.attributes if name.startswith("on")]
    targets = [
        value or "" for name, value in reader.attributes if name in ("src", "href", "xlink:href")
    ]
    assert all(target.startswith("#") for target in targets)  # nothing is loaded from anywhere
    assert "default-src 'none'" in text
    assert text.count("&lt;script&gt;alert(1)") >= 6
    markdown = (report.outputs / "report.md").read_text()
    outside = re.sub(r"^(`{3,})text\n.*?\n\1$", "", markdown, flags=re.DOTALL | re.MULTILINE)
    assert "<script" not in outside
    assert HOSTILE in markdown  # inside a fence that is longer than the text's own
    assert "| &lt;aime> |" in markdown


def test_every_picture_is_there(report: Stage) -> None:
    plots = report.outputs / "plots"
    names = {path.name for path in plots.iterdir()}
    assert names == {"curves.png", "curves.svg", "sft.png", "rl1.png", "rl2.png", "rl3.png"}
    artifacts = [
        json.loads(line) for line in (report.dir / "artifacts.jsonl").read_text().splitlines()
    ]
    assert {Path(one["path"]).name for one in artifacts if one["folder"] == "plots"} == names
    svg = (plots / "curves.svg").read_text()
    for word in (
        "Reward of all sampled rollouts",
        "rl1",
        "rl2",
        "rl3",
        "in correct rollouts",
        "at the length cap",
    ):
        assert word in svg


def test_a_stage_picture_shows_what_the_stage_has(tmp_path: Path) -> None:
    plot_stage(sft_rows(), tmp_path / "sft.svg")
    plot_stage(rl_rows(6, 0.3), tmp_path / "rl.svg")
    plot_stage([], tmp_path / "none.svg")
    sft, rl = (tmp_path / "sft.svg").read_text(), (tmp_path / "rl.svg").read_text()
    assert "SFT loss" in sft
    assert "Reward" not in sft
    assert "Reward of all sampled" in rl
    assert "SFT loss" not in rl
    assert not (tmp_path / "none.svg").exists()


def test_stages_follow_each_other_on_one_axis(tmp_path: Path) -> None:
    from matplotlib.figure import Figure

    from tasks.report.plots import REWARD, draw

    axes = Figure().add_subplot()
    marks = [Mark("sft", 0.4, 0.1), Mark("rl2", 0.6, 0.1)]
    draw(axes, REWARD, {"rl1": rl_rows(10, 0.4), "rl2": rl_rows(5, 0.5)}, marks)
    raw = [line for line in axes.lines if line.get_alpha() == 0.4]
    assert [list(line.get_xdata()) for line in raw] == [list(range(1, 11)), list(range(11, 16))]
    (drawn,) = axes.containers
    assert list(drawn.lines[0].get_xdata()) == [
        0,
        15,
    ]  # before the first stage, and at the end of the second


def test_the_same_rows_give_the_same_picture(tmp_path: Path) -> None:
    for name in ("a.svg", "b.svg"):
        plot_run({"rl1": rl_rows(6, 0.3)}, [], tmp_path / name)
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()


def test_inline_pictures_take_the_colour_of_the_page() -> None:
    drawn = [
        svg
        for panel in (*RL_PANELS, *SFT_PANELS)
        if (svg := panel_svg({"": rl_rows(4, 0.2)}, panel))
    ]
    assert len(drawn) == 5  # no entropy, no SFT in these rows
    for svg in drawn:
        assert svg.startswith("<svg role=")
        assert "currentColor" in svg
        assert not re.search(r"<svg[^>]* width=", svg)


def test_a_curve_is_named_once_and_even_if_the_first_stage_lacks_it() -> None:
    from matplotlib.figure import Figure

    from tasks.report.plots import TOOL_ERRORS, draw

    axes = Figure().add_subplot()
    draw(axes, TOOL_ERRORS, {"sft": sft_rows(), "rl1": rl_rows(4, 0.4), "rl2": rl_rows(4, 0.4)})
    assert axes.get_legend_handles_labels()[1] == ["in all rollouts", "in correct rollouts"]
