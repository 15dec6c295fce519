"""Test utilities for programs that use mirrored: simulated devices, a pytest fixture, assertions.

The pytest plugin, which pytest loads automatically if mirrored is installed, provides the fixtures `way` and
`strategy`, the marker ``ways`` and the ini option ``mirrored_devices``. See `mirrored.testing.plugin`.
"""

from __future__ import annotations

from mirrored.testing.counting import Counted as Counted
from mirrored.testing.counting import count_work as count_work
from mirrored.testing.parity import assert_close_by_norm as assert_close_by_norm
from mirrored.testing.parity import assert_copies_equal as assert_copies_equal
from mirrored.testing.parity import assert_same_bits as assert_same_bits
from mirrored.testing.ways import WAYS as WAYS
from mirrored.testing.ways import Way as Way
from mirrored.testing.ways import WaySpec as WaySpec
from mirrored.testing.ways import select_ways as select_ways

__all__ = [
    "Counted",
    "WAYS",
    "Way",
    "WaySpec",
    "assert_close_by_norm",
    "assert_copies_equal",
    "assert_same_bits",
    "count_work",
    "select_ways",
]
