"""Testing programs that use mirrored: simulated devices, every way of running, parity helpers.

As a pytest plugin (loaded by itself once mirrored is installed) it offers the fixtures `way` and `strategy`, the marker
``ways`` and the ini option ``mirrored_devices``; see `mirrored.testing.plugin`.
"""

from __future__ import annotations

from mirrored.testing.parity import assert_close_by_norm as assert_close_by_norm
from mirrored.testing.parity import assert_same_bits as assert_same_bits
