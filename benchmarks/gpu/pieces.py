"""The pieces: what each measures, how long it may take, and whether others may run beside it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Final

DEADLINE_SECONDS: Final = 530.0
"""When everything has ended, report included: below nine minutes."""
SHARED_MEMORY: Final = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
"""For processes that share the GPU's memory with others."""
ALL_MEMORY: Final = {"XLA_PYTHON_CLIENT_MEM_FRACTION": "0.92"}
"""For processes that have the GPU to themselves."""

DETERMINISTIC: Final = {**SHARED_MEMORY, "XLA_FLAGS": "--xla_gpu_deterministic_ops=true"}
"""For eager runs, whose operations have no compiler options of their own."""


@dataclasses.dataclass(frozen=True)
class Piece:
    """One piece: a module of this package with `measure(recorder, *arguments)`, run in a process of its own.

    Attributes:
        name: For ``--only``.
        module: Its module.
        title: In words.
        expected: Seconds that it is expected to take on one H200, cold compilation included.
        limit: Seconds after which it is killed.
        arguments: What `measure` gets.
        environment: Variables of its process; XLA_FLAGS are appended to those that are set.
        together: It measures no time: all such pieces run at once, before the others, which run alone.
        cached: Its programs are kept for, and taken from, other pieces. Pieces that measure a first step are not.
    """

    name: str
    module: str
    title: str
    expected: int
    limit: int
    arguments: tuple[str, ...] = ()
    environment: Mapping[str, str] = dataclasses.field(default_factory=lambda: SHARED_MEMORY)
    together: bool = False
    cached: bool = False


PIECES: Final = (
    Piece("suite", "suite", "tests marked gpu", 80, 130, together=True),
    Piece("bits", "bits", "bit-identity", 90, 160, ("falling",), together=True),
    Piece("bits-again", "bits", "in another process, counts of replicas rising", 90, 160, ("rising",), together=True),
    Piece("bits-others", "bits", "fused attention and eager runs", 100, 160, ("others",), DETERMINISTIC, together=True),
    Piece("warm", "warming", "programs compiled ahead for later pieces", 90, 130, together=True, cached=True),
    Piece("w5", "gpt2", "GPT-2 124M as specified", 110, 150, cached=True),
    Piece("w5-public", "gpt2_public", "GPT-2 124M at the public setting", 110, 150, (), ALL_MEMORY, cached=True),
    Piece("steps", "steps", "steps of W1 to W4, dispatch", 60, 100),
    Piece("profile", "profiling", "one step of W5, by kernels, gaps and copies", 25, 50, cached=True),
    Piece("w5-variants", "gpt2_variants", "8 virtual replicas, 8 micro-batches", 30, 70, cached=True),
    Piece("first-step", "first_step", "first steps in fresh processes", 45, 70),
    Piece("eager", "eager", "eager tape per operation", 15, 30),
    Piece("input", "reading", "host-to-device overlap", 15, 30),
)
