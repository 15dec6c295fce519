"""Information about a worker's GPUs and about the driver, CUDA plugin, libraries and settings that JAX uses."""

from __future__ import annotations

import csv
import dataclasses
import os
import subprocess
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final

_QUERY: Final = ("name", "driver_version", "memory.total", "mig.mode.current")
_SMI_SECONDS: Final = 20.0
# From NVIDIA's CUDA compatibility table: the first driver branch that runs programs built for a CUDA version.
_LEAST_DRIVER: Final = {13: 580, 12: 525}
_DEFAULT_FRACTION: Final = 0.75
_OFF: Final = ("0", "false")
_FRACTIONS: Final = ("XLA_PYTHON_CLIENT_MEM_FRACTION", "XLA_CLIENT_MEM_FRACTION")
_SETTINGS: Final = (
    "CUDA_VISIBLE_DEVICES",
    "JAX_PLATFORMS",
    "NCCL_DEBUG",
    "XLA_CLIENT_MEM_FRACTION",
    "XLA_FLAGS",
    "XLA_PYTHON_CLIENT_ALLOCATOR",
    "XLA_PYTHON_CLIENT_MEM_FRACTION",
    "XLA_PYTHON_CLIENT_PREALLOCATE",
)


@dataclasses.dataclass(frozen=True)
class Gpu:
    """One GPU, as the program `nvidia-smi` describes it.

    Attributes:
        name: The model.
        driver: The driver's version.
        memory_mib: The whole memory; None if it is not reported.
        mig: Whether multi-instance mode is on; None where the GPU has no such mode.
    """

    name: str
    driver: str
    memory_mib: int | None
    mig: bool | None


@dataclasses.dataclass(frozen=True)
class GpuFacts:
    """The GPUs of one worker's machine, with the versions and settings of the GPU software.

    Attributes:
        gpus: All GPUs of the machine; empty if `nvidia-smi` does not answer.
        visible: How many of them JAX uses.
        jaxlib: Version of jaxlib.
        plugin: Version of JAX's CUDA plugin; None if it is not installed as a package.
        pjrt: Version of the package with the plugin's runtime; None if it is not installed.
        cuda: The CUDA version, 12 or 13, that the plugin is built for.
        nccl: Version of NCCL; None if it is not installed as a package.
        cudnn: Version of cuDNN; None if it is not installed as a package.
        settings: The environment variables of JAX and XLA for GPUs that are set.
    """

    gpus: tuple[Gpu, ...]
    visible: int
    jaxlib: str | None
    plugin: str | None
    pjrt: str | None
    cuda: int | None
    nccl: str | None
    cudnn: str | None
    settings: dict[str, str]

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> GpuFacts:
        """Creates a `GpuFacts` object from a dict that `dataclasses.asdict` returned."""
        return cls(**{**data, "gpus": tuple(Gpu(**gpu) for gpu in data["gpus"])})


def gpu_facts(visible: int, environment: Mapping[str, str] | None = None) -> GpuFacts | None:
    """Collects information about this machine's GPUs and GPU software.

    Args:
        visible: How many GPUs JAX uses.
        environment: Read instead of `os.environ`.

    Returns:
        None on a machine without GPUs.
    """
    environment = os.environ if environment is None else environment
    gpus = parse_gpus(_nvidia_smi(environment))
    if not gpus and not visible:
        return None
    cuda = next((one for one in _LEAST_DRIVER if _version(f"jax-cuda{one}-plugin")), None)
    return GpuFacts(
        gpus=gpus,
        visible=visible,
        jaxlib=_version("jaxlib"),
        plugin=_version(f"jax-cuda{cuda}-plugin"),
        pjrt=_version(f"jax-cuda{cuda}-pjrt"),
        cuda=cuda,
        nccl=_version(f"nvidia-nccl-cu{cuda}"),
        cudnn=_version(f"nvidia-cudnn-cu{cuda}"),
        settings={name: environment[name] for name in _SETTINGS if environment.get(name)},
    )


def parse_gpus(text: str) -> tuple[Gpu, ...]:
    """Parses the CSV output of `nvidia-smi` into a list of GPUs; ignores other lines, such as error messages."""
    rows = [[field.strip() for field in row] for row in csv.reader(text.splitlines())]
    return tuple(
        Gpu(name, driver, int(memory) if memory.isdigit() else None, {"Enabled": True, "Disabled": False}.get(mig))
        for name, driver, memory, mig in (row for row in rows if len(row) == len(_QUERY))
    )


def gpu_findings(facts: GpuFacts) -> list[str]:
    """Returns descriptions of the faults in one worker's GPU setup."""
    return [*_missing(facts), *_mismatched(facts), *_memory_settings(facts.settings)]


def _missing(facts: GpuFacts) -> list[str]:
    if facts.visible or not facts.gpus or "cpu" in facts.settings.get("JAX_PLATFORMS", "").lower().split(","):
        return []
    if facts.plugin is None:
        return [
            f"it has {len(facts.gpus)} {facts.gpus[0].name}, and JAX has no CUDA plugin: pip install 'jax[cuda13]' "
            "(or 'jax[cuda12]' for drivers before 580)"
        ]
    return [f"it has {len(facts.gpus)} {facts.gpus[0].name}, and JAX uses none of them: see the errors JAX logs"]


def _mismatched(facts: GpuFacts) -> list[str]:
    found = []
    for name, installed in (("plugin", facts.plugin), ("pjrt", facts.pjrt)):
        if installed is not None and facts.jaxlib is not None and installed != facts.jaxlib:
            package = f"jax-cuda{facts.cuda}-{name}"
            found.append(
                f"{package} is {installed}, jaxlib {facts.jaxlib}: install the same version of both, "
                f"pip install 'jax[cuda{facts.cuda}]=={facts.jaxlib}'"
            )
    least = _LEAST_DRIVER.get(facts.cuda or 0)
    for driver in sorted({gpu.driver for gpu in facts.gpus}):
        branch = driver.split(".")[0]
        if least is not None and branch.isdigit() and int(branch) < least:
            found.append(f"its driver is {driver}, CUDA {facts.cuda} needs {least} or newer")
    return found


def _memory_settings(settings: Mapping[str, str]) -> list[str]:
    for name in _FRACTIONS:
        text = settings.get(name)
        if text is not None and not 0 < _number(text) <= 1:
            return [f"{name}={text} is not a fraction of the memory between 0 and 1"]
    return []


def preallocation(settings: Mapping[str, str]) -> str:
    """Describes how much GPU memory JAX preallocates, according to the given environment variables."""
    allocator = settings.get("XLA_PYTHON_CLIENT_ALLOCATOR", "default")
    if allocator == "platform":
        return "none: every array is allocated by the driver (XLA_PYTHON_CLIENT_ALLOCATOR=platform, slow)"
    fraction = next((settings[name] for name in _FRACTIONS if name in settings), None)
    part = f"{_DEFAULT_FRACTION if fraction is None else _number(fraction):.0%} of the memory"
    if settings.get("XLA_PYTHON_CLIENT_PREALLOCATE", "true").lower() in _OFF:
        return f"none: memory is allocated on demand, up to {part}"
    return f"{part} when JAX starts"


def describe(facts: GpuFacts) -> list[str]:
    """Returns the lines that `mirrored doctor` prints about one worker's GPU software and settings."""
    plugin = "no CUDA plugin package" if facts.plugin is None else f"CUDA {facts.cuda} plugin {facts.plugin}"
    libraries = [f"{name} {found or 'not installed as a package'}" for name, found in _libraries(facts)]
    lines = [f"{plugin} for jaxlib {facts.jaxlib}, {', '.join(libraries)}; JAX uses {facts.visible} of {_of(facts)}"]
    lines.append(f"preallocation: {preallocation(facts.settings)}")
    lines.append(f"XLA_FLAGS: {facts.settings.get('XLA_FLAGS', 'not set')}")
    others = {k: v for k, v in facts.settings.items() if k != "XLA_FLAGS"}
    if others:
        lines.append("set: " + ", ".join(f"{name}={value}" for name, value in others.items()))
    if any(gpu.mig for gpu in facts.gpus):
        lines.append("MIG is on: a process uses one instance, and instances cannot all-reduce with each other by NCCL")
    return lines


def _libraries(facts: GpuFacts) -> Sequence[tuple[str, str | None]]:
    return ("NCCL", facts.nccl), ("cuDNN", facts.cudnn)


def _of(facts: GpuFacts) -> str:
    return (
        f"{len(facts.gpus)} GPU{'s' * (len(facts.gpus) != 1)}" if facts.gpus else "those that nvidia-smi did not report"
    )


def unverified(workers: Sequence[GpuFacts | None]) -> list[str]:
    """Returns which GPU properties `mirrored doctor` cannot verify on these workers, such as peer access."""
    there = [one for one in workers if one is not None]
    if not there:
        return []
    if sum(one.visible for one in there) < 2:
        return ["NCCL between several GPUs, and peer access: JAX uses fewer than two GPUs here"]
    return ["peer access: whether copies between GPUs go through the host"]


def _nvidia_smi(environment: Mapping[str, str]) -> str:
    command = ["nvidia-smi", f"--query-gpu={','.join(_QUERY)}", "--format=csv,noheader,nounits"]
    try:
        return subprocess.run(
            command, env=dict(environment), capture_output=True, text=True, timeout=_SMI_SECONDS, check=False
        ).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ""


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return -1.0


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
