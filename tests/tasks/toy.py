"""A stage body whose arithmetic can be checked: it adds its steps up, checkpoints, and can fail on demand.

Each step really computed is also written to `trace.txt`, so a test can count what was repeated.
"""

import json
import time

from pydantic import Field

from sandbox.config import Section, operational
from sandbox.errors import InfrastructureError, UserError
from tasks.spec import StageSpec
from tasks.stage import StageContext, write_atomic

BODY = "tests.tasks.toy:run"


class ToyConfig(Section):
    steps: int = 10
    offset: int = 0
    step_s: float = operational(0.0)
    checkpoint_every: int = operational(2)
    fail: str = operational("", description="user | machine | bug, at half of the steps")
    fails: int = operational(1, description="tries that fail")
    extra: dict[str, int] = Field(default_factory=dict)


def spec(stage: str = "toy", inputs: dict[str, str] | None = None, **settings) -> StageSpec:
    config = ToyConfig(**settings)
    return StageSpec(
        stage=stage,
        body=BODY,
        version=1,
        seed=0,
        sections={"toy": config.model_dump()},
        numeric={"toy": {"steps": config.steps, "offset": config.offset}},
        inputs=inputs or {},
    )


def run(ctx: StageContext) -> None:
    config = ctx.section(ToyConfig, "toy")
    step, total = _restore(ctx)
    with (ctx.dir / "tries.txt").open("a") as file:
        file.write(f"{step}\n")
    while step < config.steps:
        if ctx.stopping:
            _save(ctx, step, total)
            ctx.stop()
        if step == config.steps // 2:
            _fail(ctx, config)
        time.sleep(config.step_s)
        step += 1
        total += step + config.offset
        with (ctx.dir / "trace.txt").open("a") as file:
            file.write(f"{step}\n")
        ctx.metrics(step, {"total": total, "half": total / 2})
        ctx.progress(step, config.steps, sum=float(total))
        if step % config.checkpoint_every == 0:
            _save(ctx, step, total)
    upstream = sum(
        json.loads((ctx.input(name) / "sum.json").read_text())["total"]
        for name in ctx.stage.spec.inputs
    )
    (ctx.outputs / "sum.json").write_text(json.dumps({"total": total, "upstream": upstream}))
    ctx.result(total=total, steps=step)
    ctx.ran_on(engine="toy")
    ctx.log(f"the sum is {total}")


def _fail(ctx: StageContext, config: ToyConfig) -> None:
    if len((ctx.dir / "tries.txt").read_text().splitlines()) > config.fails:
        return
    if config.fail == "user":
        raise UserError("the toy does not like row 3 of toys.jsonl")
    if config.fail == "machine":
        raise InfrastructureError("the toy engine is gone")
    if config.fail == "bug":
        raise ZeroDivisionError("a bug in the toy")


def _save(ctx: StageContext, step: int, total: int) -> None:
    place = ctx.checkpoints / f"step-{step:06}"
    place.mkdir(exist_ok=True)
    write_atomic(place / "state.json", json.dumps({"step": step, "total": total}))


def _restore(ctx: StageContext) -> tuple[int, int]:
    saved = sorted(ctx.checkpoints.glob("step-*/state.json"))
    if not saved:
        return 0, 0
    state = json.loads(saved[-1].read_text())
    return state["step"], state["total"]
