"""Checks that all workers have the same versions, JAX settings and XLA flags before they train."""

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
# Compared only between workers that have imported them.
_OPTIONAL: Final = ("flax", "keras", "equinox")
# JAX settings that change results or compiled programs.
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
# Environment variables that change the results of compiled programs.
_VARIABLES: Final = ("LIBTPU_INIT_ARGS", "NVIDIA_TF32_OVERRIDE", "CUBLAS_WORKSPACE_CONFIG")
# XLA flags that may differ between workers: the number of host devices, and the debug dumps.
_OWN_FLAGS: Final = re.compile(r"--xla_(force_host_platform_device_count|dump_|gpu_dump_)")


def fingerprint(environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """Returns the versions and settings that workers compare, the most informative differences first."""
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
    """Checks that the fingerprints of all workers are equal.

    Args:
        called: What the user called, for messages.
        everyone: The fingerprints, by worker.
        names: The workers' addresses.

    Raises:
        DisagreementError: Two fingerprints differ. It names the first such worker and entry.
    """
    for worker, other in enumerate(everyone):
        for what, expected in everyone[0].items():
            missing = what not in other and what.rpartition(" ")[2] in _OPTIONAL
            if missing or other.get(what) == expected:
                continue
            raise DisagreementError(
                called,
                found=f"{what} is {expected!r} on worker 0 ({names[0]}) and {other.get(what)!r} on worker {worker} "
                f"({names[worker]})",
                rule="all workers run the same program with the same versions and flags",
                remedy=f"give worker {worker} the same versions and flags; mirrored doctor shows those of each worker",
            )


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "a source tree"
