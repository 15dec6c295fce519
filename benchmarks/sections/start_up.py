"""The time that importing mirrored adds to importing JAX, and that of `mirrored --help` next to a bare interpreter."""

from __future__ import annotations

import os
import subprocess
import sys
import time

from sections.options import Figures, Options, say

_IMPORTS = """
import time
start = time.perf_counter()
import jax
between = time.perf_counter()
import mirrored
mirrored.MirroredStrategy, mirrored.GradientTape, mirrored.function, mirrored.Variable
print(between - start, time.perf_counter() - between)
"""


def measure(options: Options) -> Figures:
    """Returns the seconds of each repetition."""
    say("start-up")
    jax, ours, bare, command = [], [], [], []
    _run("-c", _IMPORTS)  # writes the bytecode, like an installation
    for _ in range(3 if options.quick else 12):
        before, after = map(float, _run("-c", _IMPORTS).split())
        jax.append(before)
        ours.append(after)
        bare.append(_seconds("-c", "pass"))
        command.append(_seconds("-m", "mirrored.cli", "--help"))
    return {"import_jax": jax, "import_mirrored": ours, "interpreter": bare, "help": command}


def _seconds(*arguments: str) -> float:
    start = time.perf_counter()
    _run(*arguments)
    return time.perf_counter() - start


def _run(*arguments: str) -> str:
    """Returns what Python prints."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    done = subprocess.run(
        [sys.executable, *arguments], env=environment, stdout=subprocess.PIPE, text=True, timeout=60, check=True
    )
    return done.stdout
