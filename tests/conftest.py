"""What every test of the suite gets: simulated devices, the fixtures `way` and `strategy` (see mirrored.testing)."""

from __future__ import annotations

import ctypes
import gc
import os
import shutil
import zlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import jax
import pytest
from hypothesis import HealthCheck, settings

os.environ.setdefault("KERAS_BACKEND", "jax")  # read when Keras is imported

pytest_plugins = ["mirrored.testing.plugin", "pytester"]

# The same examples each time, so that a red test speaks of the change; `make explore` looks for new ones.
# Whether examples are drawn quickly depends on the machine's load.
settings.register_profile("repeatable", derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("explore", derandomize=False, print_blob=True)
settings.load_profile("repeatable")

_UNEVEN_ONE_IN = 6
_MEMORY_LIMIT_BYTES = 1_500_000_000
_CACHE_LIMIT_BYTES = 1_000_000_000
_CACHE_EVERYTHING = {"persistent_cache_min_compile_time_secs": 0.0, "persistent_cache_min_entry_size_bytes": -1}


def pytest_configure(config: pytest.Config) -> None:
    """Shares compiled programs between modules, processes and runs: compilation is most of the suite's time.

    JAX's persistent compilation cache is keyed by program, flags and version. It lies in pytest's cache directory;
    `-p no:cacheprovider` leaves it out, as `make test-lowest` does, so that the suite also runs without it.
    """
    if not hasattr(config, "cache"):
        return
    directory = config.cache.mkdir("compiled")
    if not hasattr(config, "workerinput") and _size_bytes(directory) > _CACHE_LIMIT_BYTES:
        shutil.rmtree(directory)
    settings = {"compilation_cache_dir": str(directory), **_CACHE_EVERYTHING}
    for name, value in settings.items():
        jax.config.update(f"jax_{name}", value)
        os.environ.setdefault(f"JAX_{name.upper()}", str(value))  # for the processes that tests start
    # A process may read an entry that another one has not written in full: JAX warns and compiles.
    config.addinivalue_line("filterwarnings", "ignore:Error reading persistent compilation cache:UserWarning")


def _size_bytes(directory: Path) -> int:
    return sum(entry.stat().st_size for entry in os.scandir(directory))


@pytest.hookimpl(tryfirst=True)  # before `-m` selects
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Marks as slow and long what samples leave out; deselects `gpu` where there is no GPU, but for the GPU dry run."""
    _mark_unsampled(items)
    _mark_later_cases(items)
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if marked and not os.environ.get("GPU_BENCHMARK_DRY_RUN") and jax.default_backend() != "gpu":
        config.hook.pytest_deselected(items=marked)
        items[:] = [item for item in items if not item.get_closest_marker("gpu")]


def pytest_collection_finish() -> None:
    """Exempts the collected tests and the imported modules from garbage collection, which takes 0.7 s with them.

    They are a million objects that live until the end. JAX's caches and tests that collect explicitly cause hundreds of
    full collections, which took a third of the time of some modules.
    """
    gc.collect()
    gc.freeze()


def _mark_unsampled(items: list[pytest.Item]) -> None:
    """Keeps the first case of each test marked ``sampled(k)`` and about one in k of the others; the rest is slow.

    Of the cases of the fixture `way` with an uneven layout, one in `_UNEVEN_ONE_IN` is kept: they repeat the others.

    The choice depends on a case's name alone: it is the same in every run, and adding a case moves no other one.
    """
    begun = set()
    for item in items:
        mark = item.get_closest_marker("sampled")
        one_in = _UNEVEN_ONE_IN if mark is None and "uneven-" in item.nodeid.partition("[")[2] else 0
        if mark is None and not one_in:
            continue
        test = item.nodeid.partition("[")[0]
        if (one_in or test in begun) and zlib.crc32(item.nodeid.encode()) % (one_in or mark.args[0]):
            item.add_marker("slow")
        begun.add(test)


def _mark_later_cases(items: list[pytest.Item]) -> None:
    """Keeps the first n cases of each test marked ``first(n)``, not counting slow ones; the others are long."""
    kept: Counter[str] = Counter()
    for item in items:
        mark = item.get_closest_marker("first")
        if mark is None or item.get_closest_marker("slow"):
            continue
        test = item.nodeid.partition("[")[0]
        if kept[test] == mark.args[0]:
            item.add_marker("long")
        else:
            kept[test] += 1


@pytest.fixture(autouse=True, scope="session")
def settled_devices() -> None:
    """Starts JAX before the first test, so that none can change the devices of the others (`mirrored demo` would)."""
    jax.devices()


@pytest.fixture(autouse=True, scope="module")
def bounded_memory() -> Iterator[None]:
    """Forgets compiled programs between modules: those of the whole suite would take 6 GB in each worker."""
    yield
    if _resident_bytes() > _MEMORY_LIMIT_BYTES:
        jax.clear_caches()
        gc.collect()
        _give_back_freed_memory()


def _resident_bytes() -> int:
    statm = Path("/proc/self/statm")
    return int(statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") if statm.exists() else 0


def _give_back_freed_memory() -> None:
    """What was freed stays with glibc otherwise (830 MB of 830; trimmed: 320)."""
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except AttributeError:
        pass  # another C library
