"""Which batch of W5p fits, from the memory of two compiled programs: python benchmarks/gpu/fitting.py."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).parents[1]))

from spec import TINY_VARIABLE, workload

CANDIDATES: Final = (4, 2) if os.environ.get(TINY_VARIABLE) else (128, 112, 96, 80, 64, 48, 32, 16)
"""Batches, the largest first."""
SCRATCH_VARIABLE: Final = "GPU_BENCHMARK_SCRATCH"
"""The folder that the pieces of one run share."""
_USABLE = 0.9
"""The part of the memory that a program may fill: the rest is the driver's, and for what fragments."""
_SECONDS = 400.0 if os.environ.get(TINY_VARIABLE) else 60.0


def found() -> dict[str, Any]:
    """The largest batch that should fit, as another piece of this run has found, or else found now.

    In a process of its own, whose memory is free afterwards, and without autotuning, which takes most of the time.
    """
    scratch = os.environ.get(SCRATCH_VARIABLE)
    kept = Path(scratch) / "fitting.json" if scratch else None
    if kept is not None and kept.exists():
        return json.loads(kept.read_text())  # type: ignore[no-any-return]
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_gpu_autotune_level=0"
    done = subprocess.run(
        [sys.executable, __file__],
        capture_output=True,
        text=True,
        timeout=_SECONDS,
        check=False,
        env={**os.environ, "XLA_FLAGS": flags, "XLA_PYTHON_CLIENT_PREALLOCATE": "false"},
    )
    if done.returncode:
        raise RuntimeError(done.stderr[-3000:])
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    if kept is not None:
        kept.write_text(json.dumps(result))
    return result


def program_bytes(batch: int) -> int:
    """What the program of one step needs, compiled and not run."""
    import jax
    import jax.numpy as jnp
    from contenders import jax_hand_written

    work = workload(f"W5p@{batch}")
    shapes = {name: jax.ShapeDtypeStruct(value.shape, jnp.float32) for name, value in work.parameters().items()}
    x = jax.ShapeDtypeStruct((batch, work.network.length), jnp.int32)
    step = jax.jit(jax_hand_written.step_of(work, axis=None), donate_argnums=0)
    state = (shapes, shapes, shapes, jax.ShapeDtypeStruct((), jnp.float32))
    told = step.lower(state, x, x).compile().memory_analysis()
    total = told.argument_size_in_bytes + told.output_size_in_bytes - told.alias_size_in_bytes
    return int(total + told.temp_size_in_bytes)


def device_bytes() -> int:
    """The memory of the first device; unlimited on a CPU."""
    command = ["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
    try:
        return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()[0]) << 20
    except (OSError, subprocess.CalledProcessError, ValueError, IndexError):
        return 2**60


def main() -> None:
    """Prints the largest candidate below the limit, and how it was found: memory grows as a straight line."""
    candidates = sorted(CANDIDATES)
    limit = device_bytes()
    small, large = (program_bytes(batch) for batch in candidates[:2])
    slope = max(1, (large - small) // (candidates[1] - candidates[0]))
    fitting = [b for b in candidates if small + slope * (b - candidates[0]) <= _USABLE * limit]
    told = {"batch": fitting[-1] if fitting else candidates[0], "limit_gib": limit / 2**30}
    print(json.dumps({**told, "gib_per_example": slope / 2**30, "gib_at_smallest": small / 2**30}))


if __name__ == "__main__":
    main()
