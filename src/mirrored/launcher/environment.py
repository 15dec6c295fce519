"""The environment variables that the launcher sets for each worker: cluster, devices, compilation cache."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import importlib.util
import json
import os
import pkgutil
import platform
import stat
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from mirrored import settings
from mirrored.cluster.slurm import gpus_in
from mirrored.errors import ClusterError, DeviceError
from mirrored.launcher.job import Job
from mirrored.topology.independent_processes import evidence_of_several

# The persistent compilation cache of `mirrored run`: its location and its size limit.

DIRECTORY_VARIABLE: Final = "JAX_COMPILATION_CACHE_DIR"
_LIMIT_BYTES: Final = 4 * 2**30
# The ends of the names of JAX's files. The folder may be the user's, with other files in it.
_SUFFIXES: Final = ("-cache", "-atime")


def cache_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Returns environment variables that turn on JAX's persistent compilation cache, except variables already set.

    The zero compile time and the entry size of -1 make JAX cache every program, also small and quickly compiled ones.
    """
    chosen = {
        DIRECTORY_VARIABLE: str(default_directory(environment)),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }
    return {name: value for name, value in chosen.items() if name not in environment}


def default_directory(environment: Mapping[str, str]) -> Path:
    """Returns the default folder of the compilation cache, which depends on the user and the CPU type.

    Compiled programs for another CPU may not run here.
    """
    base = environment.get("XDG_CACHE_HOME") or os.path.join(
        environment.get("HOME") or os.path.expanduser("~"), ".cache"
    )
    return Path(base) / "mirrored" / "compiled" / _processor()


def _processor() -> str:
    """Returns the CPU's architecture and a hash of its feature flags."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    features = next((line for line in lines if line.startswith(("flags", "Features"))), platform.processor())
    return f"{platform.machine()}-{hashlib.sha256(features.encode()).hexdigest()[:8]}"


def tidy(directory: Path, limit_bytes: int = _LIMIT_BYTES) -> int:
    """Deletes the least recently used files of the compilation cache, until its size is within a limit.

    Other files in its folder are not touched.

    Returns:
        The number of bytes deleted.
    """
    files = list(_files_of_cache(directory))
    total = excess = sum(found.st_size for found, _ in files)
    for found, path in sorted(files, key=lambda item: max(item[0].st_atime, item[0].st_mtime)):
        if excess <= limit_bytes:
            break
        with contextlib.suppress(OSError):  # another job may delete the same file
            path.unlink()
            excess -= found.st_size
    return total - excess


def _files_of_cache(directory: Path) -> Iterator[tuple[os.stat_result, Path]]:
    with contextlib.suppress(OSError):
        for one in directory.iterdir():
            if one.name.endswith(_SUFFIXES):
                with contextlib.suppress(OSError):  # another job may delete it
                    found = one.stat()
                    if stat.S_ISREG(found.st_mode):
                        yield found, one


# The environment variables of each worker: its place in the cluster, its devices, the compilation cache.

_VISIBLE = "CUDA_VISIBLE_DEVICES"


def worker_environment(
    job: Job,
    rank: int,
    addresses: Sequence[str],
    *,
    secret: str | None = None,
    restart: int = 0,
    base: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Returns all environment variables for the process of one worker.

    Args:
        job: The job.
        rank: The index of the worker.
        addresses: ``host:port`` of every worker; the first is the address of JAX's coordinator.
        secret: The secret with which the workers of the job authenticate each other.
        restart: The number of restarts so far.
        base: The environment to extend. Default: `os.environ`.

    Raises:
        DeviceError: This machine has accelerators, but fewer than the workers need.
    """
    base = os.environ if base is None else base
    outer = _of_outer_job(base)
    chosen = {name: value for name, value in base.items() if name not in outer}
    chosen["PYTHONUNBUFFERED"] = "1"
    chosen[settings.RESTART.name] = str(restart)
    if job.compile_cache:
        chosen.update(cache_environment(base))
    if job.elastic:
        chosen[settings.ELASTIC.name] = str(rank)
    if len(addresses) > 1:
        task = {"type": "worker", "index": rank}
        chosen["TF_CONFIG"] = json.dumps({"cluster": {"worker": list(addresses)}, "task": task})
    if secret is not None:
        chosen[settings.SECRET.name] = secret
        chosen.pop(settings.SECRET_FILE.name, None)
    chosen.update(_devices(job, rank - job.ranks.start, base))
    return chosen


def check_cluster(job: Job, environment: Mapping[str, str]) -> None:
    """Raises ClusterError if this job would replace the cluster of several processes that TF_CONFIG describes.

    Raises:
        ClusterError: TF_CONFIG has other processes, and the job has several workers or is elastic.
    """
    keeps = job.workers == 1 and not job.elastic  # a single process gets the TF_CONFIG of the user
    evidence = evidence_of_several({"TF_CONFIG": environment.get("TF_CONFIG", "")})
    if keeps or job.nodes > 1 or evidence is None or "TF_CONFIG" in _of_outer_job(environment):
        return
    raise ClusterError(
        "mirrored run",
        found=f"{'--elastic' if job.elastic else f'--workers {job.workers}'} was given, and TF_CONFIG has a cluster of "
        f"several processes ({evidence.text})",
        rule="the workers of `mirrored run` on one machine are a whole job, for which it sets TF_CONFIG; the machines "
        "of the other cluster would wait for this one",
        remedy="omit --workers and --elastic to start this one task of TF_CONFIG; pass --nodes, --node-rank and "
        "--coordinator for several workers on each machine; or unset TF_CONFIG",
    )


def _of_outer_job(base: Mapping[str, str]) -> tuple[str, ...]:
    """Returns the names of environment variables of an outer `mirrored run` job, which workers must not inherit."""
    internal = (settings.ELASTIC.name, settings.COPY_FDS.name, settings.LAUNCHER_FD.name)
    return (*internal, "TF_CONFIG") if settings.RESTART.is_set(base) else internal


def _devices(job: Job, local_rank: int, base: Mapping[str, str]) -> dict[str, str]:
    """Returns the environment variables that limit a worker to its devices."""
    gpus = visible_gpus(base)
    count = job.replicas_per_worker
    if not gpus:
        return {} if count is None else {settings.VIRTUAL_DEVICES.name: str(count)}
    num_workers = job.max_workers or job.workers  # of an elastic job, which more workers can join
    if count is None:
        if num_workers == 1:
            return {}
        count = len(gpus) // num_workers
    if not count or count * num_workers > len(gpus):
        raise DeviceError(
            "mirrored run",
            found=f"the machine has {len(gpus)} GPUs ({', '.join(gpus)}) for {num_workers} workers"
            + (f" with {count} replicas each" if count else ""),
            rule="every replica of a worker must have a GPU of its own if the machine has GPUs",
            remedy="start fewer workers or replicas, or set JAX_PLATFORMS=cpu to simulate the devices",
        )
    return {_VISIBLE: ",".join(gpus[local_rank * count : (local_rank + 1) * count])}


def visible_gpus(environment: Mapping[str, str], devices: Path = Path("/dev")) -> list[str]:
    """Returns the names of this machine's NVIDIA GPUs for CUDA_VISIBLE_DEVICES, without starting JAX.

    Returns an empty list if JAX will not use them: JAX_PLATFORMS excludes them, or JAX has no plugin for CUDA.
    """
    platforms = environment.get("JAX_PLATFORMS", "")
    if platforms and not {"cuda", "gpu"} & set(platforms.split(",")):
        return []
    if _VISIBLE in environment:
        gpus = gpus_in(environment[_VISIBLE])
    else:
        numbers = (path.name.removeprefix("nvidia") for path in devices.glob("nvidia*"))
        gpus = sorted((number for number in numbers if number.isdecimal()), key=int)
    # The search for plugins takes 30 ms for each worker, so it comes last.
    return gpus if gpus and (platforms or has_cuda_plugin()) else []


def has_cuda_plugin() -> bool:
    """Returns whether JAX will find a CUDA plugin, by searching as JAX does but without starting JAX."""
    found = importlib.util.find_spec("jax_plugins")
    folders = [] if found is None else found.submodule_search_locations or []
    names = [one.name for one in pkgutil.iter_modules(folders)]
    names += [one.value for one in importlib.metadata.entry_points(group="jax_plugins")]
    return any("cuda" in name for name in names)
