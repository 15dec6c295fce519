"""What must be the same on all workers before they train: versions, flags, the program's first file."""

from __future__ import annotations

import os
import platform
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Final

import jax

from mirrored.errors import DisagreementError

_PACKAGES: Final = ("mirrored", "jax", "jaxlib", "numpy", "optax", "ml_dtypes")
# Compared where both workers have imported them.
_OPTIONAL: Final = ("flax", "keras", "equinox")
# Settings of JAX that change numbers or programs.
_SETTINGS: Final = (
    "jax_enable_x64",
    "jax_default_matmul_precision",
    "jax_default_prng_impl",
    "jax_threefry_partitionable",
    "jax_numpy_dtype_promotion",
    "jax_numpy_rank_promotion",
    "jax_disable_jit",
    "jax_debug_nans",
    "jax_use_shardy_partitioner",
    "jax_random_seed_offset",
    "jax_legacy_prng_key",
    "jax_enable_custom_prng",
    "jax_threefry_gpu_kernel_lowering",
    "jax_high_dynamic_range_gumbel",
    "jax_allow_f16_reductions",
    "jax_accurate_erf_inv",
    "jax_use_hlo_logistic_lowering",
    "jax_softmax_custom_jvp",
    "jax_use_direct_linearize",
    "jax_optimization_level",
    "jax_explicit_x64_dtypes",
)
# Variables that change the numbers of compiled programs.
_VARIABLES: Final = ("LIBTPU_INIT_ARGS", "NVIDIA_TF32_OVERRIDE", "CUBLAS_WORKSPACE_CONFIG")
# Flags of XLA that may differ: how many devices a worker has, and where it writes what for people.
_OWN_FLAGS: Final = re.compile(r"--xla_(force_host_platform_device_count|dump_|gpu_dump_)")


def fingerprint(environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """What this worker compares with the others, in the order in which it is worth telling."""
    environment = os.environ if environment is None else environment
    found = {f"the version of {name}": _version(name) for name in _PACKAGES}
    found |= {f"the version of {name}": _version(name) for name in _OPTIONAL if name in sys.modules}
    found["the version of Python"] = ".".join(platform.python_version_tuple()[:2])
    found |= {f"the setting {name}": str(getattr(jax.config, name, None)) for name in _SETTINGS}
    flags = [flag for flag in shlex.split(environment.get("XLA_FLAGS", "")) if not _OWN_FLAGS.match(flag)]
    found["XLA_FLAGS"] = " ".join(sorted(flags))
    found |= {f"the variable {name}": environment.get(name, "") for name in _VARIABLES}
    return found


def check_fingerprints(called: str, everyone: Sequence[Mapping[str, str]], names: Sequence[str]) -> None:
    """Refuses workers that differ.

    Args:
        called: What the user called.
        everyone: The fingerprints, by worker.
        names: Of the workers: their addresses.

    Raises:
        DisagreementError: Naming the first worker and the first thing that differ.
    """
    for worker, theirs in enumerate(everyone):
        for what, expected in everyone[0].items():
            missing = what not in theirs and what.rpartition(" ")[2] in _OPTIONAL
            if missing or theirs.get(what) == expected:
                continue
            raise DisagreementError(
                called,
                found=f"{what} is {expected!r} on worker 0 ({names[0]}) and {theirs.get(what)!r} on worker {worker} "
                f"({names[worker]})",
                rule="all workers run the same program with the same versions and flags",
                remedy=f"make worker {worker} like the others; mirrored doctor shows what each has",
            )


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "a source tree"
