"""Messages of wrong rules of variables: they contain TensorFlow's words, for which users search."""

from __future__ import annotations

import pytest

import mirrored as mr
from mirrored.errors import ArgumentError

WRONG = {
    "Invalid variable synchronization mode: Invalid for variable: v": {"synchronization": "Invalid"},
    "`NONE` variable synchronization mode is not supported with ": {"synchronization": mr.VariableSynchronization.NONE},
    "Invalid variable aggregation mode: invalid for variable: v": {"aggregation": "invalid"},
}


@pytest.mark.parametrize("message", WRONG)
def test_wrong_rules(message):
    with mr.MirroredStrategy(["CPU:0", "CPU:1"]).scope(), pytest.raises(ArgumentError, match=message) as raised:
        mr.Variable(1.0, name="v", **WRONG[message])
    assert message in raised.value.found
    assert message not in raised.value.rule
