"""Digests, by which workers compare values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mirrored.collectives import host_allgather
from mirrored.collectives.host_allgather import check_equal, digest
from mirrored.errors import DisagreementError

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


@pytest.mark.parametrize("own", [["a", "b"], ["a", "b", "c"]], ids=["worker 0", "worker 1"])
def test_a_value_that_one_worker_lacks_differs(monkeypatch: pytest.MonkeyPatch, own: list[str]) -> None:
    digests = [{name: digest(1.0) for name in names} for names in (["a", "b"], ["a", "b", "c"])]
    monkeypatch.setattr(host_allgather, "host_allgather", lambda *_: digests)
    with pytest.raises(DisagreementError, match=f"c on worker 1 .*: c {'= 1' if 'c' in own else 'is missing'}"):
        check_equal("run", dict.fromkeys(own, 1.0), rule="they must be equal", remedy="reduce them")
