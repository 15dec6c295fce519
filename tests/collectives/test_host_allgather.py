"""Digests, by which workers compare values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mirrored.collectives.host_allgather import digest

TEXTS = [f"text {i}" for i in range(2000)]


@pytest.mark.parametrize(
    "make",
    [
        lambda texts: np.array(texts, object),
        lambda texts: np.array(texts),
        lambda texts: np.array(texts, object)[:, None],
    ],
    ids=["objects", "strings", "rows"],
)
def test_each_element_of_a_long_array_counts(make: Any):
    other = [*TEXTS[:1000], "another", *TEXTS[1001:]]
    assert digest(make(TEXTS)) == digest(make(list(TEXTS)))
    assert digest(make(TEXTS)) != digest(make(other))
