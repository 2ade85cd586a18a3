from __future__ import annotations

import math

import pytest

from rl.trainer import MismatchError, check_mismatch


def test_a_mismatch_within_the_limit_goes_on():
    check_mismatch(7, 0.1, 0.1)


@pytest.mark.parametrize("kl", [0.101, math.inf, math.nan])
def test_a_mismatch_above_the_limit_stops_and_says_where(kl):
    with pytest.raises(MismatchError, match=r"step 7: KL .* loss.mismatch_limit \(0.1\)"):
        check_mismatch(7, kl, 0.1)
