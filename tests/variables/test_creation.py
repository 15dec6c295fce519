"""Initial values of variables that replicas create."""

from __future__ import annotations

import pytest

import mirrored as mr


@pytest.mark.parametrize("synchronization", ["AUTO", "ON_READ"])
@pytest.mark.parametrize("in_scope", [True, False])
@pytest.mark.ways(modes=("eager", "folded"), replicas=(1, 2))
def test_an_initial_value_sees_earlier_assignments_of_the_run(way, synchronization, in_scope):
    def make() -> mr.Variable:
        return mr.Variable(1.0, synchronization=synchronization, aggregation="MEAN", trainable=False)

    if in_scope:
        with way.strategy.scope():
            v = make()
    else:
        v = make()
    made = {}

    def replica() -> None:
        v.assign(5.0)
        made["twice"] = mr.Variable(lambda: v.read_value() * 2.0, name="twice")
        made["copy"] = mr.Variable(v, name="copy")

    way.strategy.run(replica)
    assert (float(made["twice"].numpy()), float(made["copy"].numpy())) == (10.0, 5.0)
