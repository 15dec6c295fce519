"""Hashes of variables, to check that the replicas' copies of each variable are bit-identical."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Sequence

import numpy as np

import mirrored as mr


@dataclasses.dataclass(frozen=True)
class Copies:
    """The hashes of one variable's copies, one hash per replica.

    Attributes:
        name: The name of the variable.
        shape: The shape of the variable.
        hashes: The hash of each replica's copy.
    """

    name: str
    shape: tuple[int, ...]
    hashes: tuple[str, ...]

    @property
    def are_equal(self) -> bool:
        """Whether the copies of the variable are bit-identical on all replicas."""
        return len(set(self.hashes)) == 1


def copies_of(strategy: mr.Strategy, variables: Sequence[mr.Variable]) -> list[Copies]:
    """Computes, for each variable, a hash of each replica's copy."""
    return [
        Copies(
            v.name,
            tuple(v.shape),
            tuple(hash_arrays([np.asarray(copy)]) for copy in strategy.experimental_local_results(v)),
        )
        for v in variables
    ]


def hash_variables(variables: Sequence[mr.Variable]) -> str:
    """Computes one hash of the values of all variables together."""
    return hash_arrays([v.numpy() for v in variables])


def hash_arrays(arrays: Sequence[np.ndarray]) -> str:
    """Computes a hash of the arrays' bytes: the first 16 hexadecimal digits of the SHA-256."""
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()[:16]
