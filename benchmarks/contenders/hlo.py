"""What a compiled program says of itself."""

from __future__ import annotations

from typing import Any


def all_reduces(hlo: str) -> int:
    """How many all-reduce operations an optimised HLO has."""
    return sum(" all-reduce(" in line or " all-reduce-start(" in line for line in hlo.splitlines())


def memory(compiled: Any) -> dict[str, float]:
    """What a program needs on one device, in MiB: arguments, results that are not donated arguments, temporaries."""
    sizes = compiled.memory_analysis()
    total = sizes.argument_size_in_bytes + sizes.output_size_in_bytes - sizes.alias_size_in_bytes
    return {"program_mib": (total + sizes.temp_size_in_bytes) / 2**20}
