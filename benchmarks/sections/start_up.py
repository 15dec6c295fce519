"""What importing mirrored adds to importing JAX, and how long `mirrored --help` takes beside a bare interpreter."""

from __future__ import annotations

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
    """Seconds of each repeat."""
    say("start-up")
    jax, ours, bare, command = [], [], [], []
    for _ in range(3 if options.quick else 12):
        answer = subprocess.run(
            [sys.executable, "-c", _IMPORTS], capture_output=True, text=True, timeout=60, check=True
        )
        before, after = map(float, answer.stdout.split())
        jax.append(before)
        ours.append(after)
        bare.append(_seconds("-c", "pass"))
        command.append(_seconds("-m", "mirrored.cli", "--help"))
    return {"import_jax": jax, "import_mirrored": ours, "interpreter": bare, "help": command}


def _seconds(*arguments: str) -> float:
    start = time.perf_counter()
    subprocess.run([sys.executable, *arguments], stdout=subprocess.DEVNULL, timeout=60, check=True)
    return time.perf_counter() - start
