from __future__ import annotations

import doctest
import importlib

import pytest


@pytest.mark.parametrize(
    "module",
    ["mirrored.gradients", "mirrored.losses", "mirrored.optimizers.named", "mirrored.optimizers.optimizer"],
)
def test_examples_run(module):
    results = doctest.testmod(importlib.import_module(module))
    assert results.attempted > 0
    assert results.failed == 0
