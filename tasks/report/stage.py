"""Stage `report`: what the run came to, as a page, as Markdown and as pictures.

outputs/report.html   one file, for people          outputs/plots/curves.{png,svg}   RL, all stages
outputs/report.md     the same, plainer             outputs/plots/<stage>.png        one stage
"""

from __future__ import annotations

from tasks.report.collect import RL, Record, collect
from tasks.report.markdown import markdown
from tasks.report.page import page
from tasks.report.plots import RL_PANELS, SFT_PANELS, Mark, panel_svg, plot_run, plot_stage
from tasks.report.tables import headline
from tasks.stage import StageContext, write_atomic


def run(ctx: StageContext) -> None:
    """The stage body."""
    record = collect(ctx)
    rl = {name: record.stages[name].rows for name in RL}
    marks = accuracy_marks(record)

    plots = ctx.outputs / "plots"
    plots.mkdir(exist_ok=True)
    for name in ("sft", *RL):
        plot_stage(record.stages[name].rows, plots / f"{name}.png")
    for suffix in ("png", "svg"):
        plot_run(rl, marks, plots / f"curves.{suffix}")

    curves = [panel_svg(rl, panel, marks) for panel in RL_PANELS]
    curves += [panel_svg({"": record.stages["sft"].rows}, panel) for panel in SFT_PANELS]
    write_atomic(
        ctx.outputs / "report.html", page(record, [svg for svg in curves if svg is not None])
    )
    write_atomic(ctx.outputs / "report.md", markdown(record, "plots/curves.png"))

    for name in ("report.html", "report.md"):
        ctx.artifact(ctx.outputs / name)
    for path in sorted(plots.iterdir()):
        ctx.artifact(path, "plots")
    ctx.log(headline(record))
    ctx.log(f"report: {ctx.outputs / 'report.html'}")
    ctx.result(headline=headline(record))


def accuracy_marks(record: Record) -> list[Mark]:
    return [
        Mark(stage.name, stage.result("accuracy"), stage.result("accuracy_stderr") or 0.0)
        for stage in record.evaluated
    ]
