"""Workers whose processors may compute other bits are refused in deterministic jobs, and warned of in others."""

from __future__ import annotations

import pytest

from mirrored.cluster.equality import FLAGS, THREADS, check_properties, properties
from mirrored.errors import DisagreementError

NAMES = ["host0:1", "host1:1", "host2:1"]
MINE = {"the architecture": "x86_64", FLAGS: "avx2 avx512f fpu", THREADS: "4"}


@pytest.mark.parametrize("deterministic", [False, True])
def test_equal_workers_pass(deterministic):
    check_properties("here", [MINE, dict(MINE), dict(MINE)], NAMES, deterministic=deterministic)


@pytest.mark.parametrize(
    ("other", "told"),
    [
        ({FLAGS: "avx2 amx fpu"}, r"the CPU of worker 2 \(host2:1\) lacks avx512f and has also amx, compared with"),
        ({THREADS: "2"}, r"XLA's threads is '4' on worker 0 \(host0:1\) and '2' on worker 2 \(host2:1\)"),
        ({"the architecture": "aarch64"}, "the architecture is 'x86_64' on worker 0 .* and 'aarch64' on worker 2"),
    ],
)
def test_a_worker_that_differs_is_named(other, told):
    everyone = [MINE, MINE, {**MINE, **other}]
    with pytest.raises(DisagreementError, match=told):
        check_properties("here", everyone, NAMES, deterministic=True)
    with pytest.warns(UserWarning, match=told):
        check_properties("here", everyone, NAMES, deterministic=False)


def test_the_number_of_threads_is_that_of_xla():
    assert properties({"NPROC": "4", "PJRT_NPROC": "2"})[THREADS] == "2"
