"""Stage `sft` without the evaluation at its end, so that its training can be killed and compared."""

from tasks.sft import train
from tasks.stage import StageContext

BODY = "tests.tasks.sft_only:run"


def run(ctx: StageContext) -> None:
    train(ctx, ctx.outputs / "model")
