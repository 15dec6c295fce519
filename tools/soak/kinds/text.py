"""Parts of scripts that several kinds share."""

from __future__ import annotations

import inspect
import textwrap
from typing import Any, Final

from soak import models
from soak.program import Program

IMPORTS: Final = """\
import os
os.environ.setdefault("MIRRORED_VIRTUAL_DEVICES", "8")
os.environ.setdefault("KERAS_BACKEND", "jax")
from types import SimpleNamespace
from typing import Any
import jax
import jax.numpy as jnp
import numpy as np
import optax
import mirrored as mr
"""

STRATEGY: Final = """
def make_strategy(devices, replicas):
    names = [f"CPU:{index}" for index in range(devices)]
    return mr.MirroredStrategy(names, num_replicas=replicas, deterministic=DETERMINISTIC)
"""

RECORD: Final = """
def numbers(value):
    return np.asarray(value).tolist()

def bits(values):
    import hashlib
    joined = b"".join(np.ascontiguousarray(value).tobytes() for value in jax.tree.leaves(values))
    return hashlib.sha256(joined).hexdigest()[:16]
"""


def source_of(one: Any) -> str:
    """Returns the source text of a function."""
    return inspect.getsource(one)


def header(program: Program, *parts: str) -> str:
    """Returns the imports, the model, its data, and `parts`."""
    return "\n".join(
        [
            IMPORTS,
            source_of(models.MODELS[program.model]),
            source_of(models.data),
            source_of(models.start),
            f"DETERMINISTIC = {program.deterministic}",
            f"X, Y, WEIGHTS, IDS = data({program.seed}, {program.examples})",
            f"SHAPES = {models.SHAPES[program.model]!r}",
            STRATEGY,
            RECORD,
            *parts,
        ]
    )


def indented(text: str, levels: int) -> str:
    """Returns the indented text without empty lines."""
    lines = [line for line in textwrap.dedent(text).splitlines() if line.strip()]
    return textwrap.indent("\n".join(lines), "    " * levels)
