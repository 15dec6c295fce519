"""The facade, the integrations, the launcher, the performance model and `Dataset` can each be deleted from a copy."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from test_layers import SOURCE, imports_of, module_name, parsed, short, sources

# What is deleted with each package: the modules of higher layers that offer it, which are imported when they are used.
DELETABLE = {
    "tf": (),
    "integrations/keras": ("tf/_keras_backend.py", "tf/keras.py"),
    "integrations/flax": (),
    "integrations/equinox": (),
    "launcher": ("cli/doctor/command.py", "cli/run.py"),
    "perf_model": ("cli/plan.py", "cli/plan_failures.py"),
    "data/pipeline": (
        "tf/_data/datasets.py",
        "tf/_data/experimental.py",
        "tf/_distribute/contrib.py",
        "tf/_distribute/v1.py",
        "tf/_io/files.py",
        "tf/_io/image_files.py",
    ),
}


def needed_by(package: str) -> tuple[str, ...]:
    """The modules outside of a package whose import needs it, directly or not."""
    paths = {module_name(path): path for path in sources()}
    root = f"mirrored.{package.replace('/', '.')}"
    lost = {name for name in paths if name == root or name.startswith(f"{root}.")}
    inside = set(lost)
    while True:
        new = {name for name, path in paths.items() if name not in lost and lost & imported(path)}
        if not new:
            return tuple(sorted(short(paths[name]) for name in lost - inside))
        lost |= new


@functools.cache
def imported(path: Path) -> set[str]:
    """What the import of a module imports: its packages, and the modules and names in its statements, with theirs."""
    found = [one.target for one in imports_of(parsed(path)) if not (one.type_checking or one.in_function)]
    own = module_name(path)
    return {name for target in (*found, own) for name in (target, *packages_of(target))} - {own}


def packages_of(name: str) -> list[str]:
    parts = name.split(".")
    return [".".join(parts[:length]) for length in range(1, len(parts))]


@pytest.mark.parametrize("package", DELETABLE)
@pytest.mark.first(1)
@pytest.mark.long
def test_nothing_else_needs_the_package(package):
    assert (SOURCE / package).is_dir()
    assert needed_by(package) == DELETABLE[package]


@pytest.mark.multiprocess
@pytest.mark.timeout(240)
@pytest.mark.long
def test_the_rest_imports_and_trains_without_the_package(tmp_path):
    shutil.copytree(SOURCE, tmp_path / "mirrored", ignore=shutil.ignore_patterns("__pycache__", "*.pyi"))
    cases = [",".join([package, *above]) for package, above in DELETABLE.items()]
    cases.append(without_all())
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(Path(__file__).with_name("without_package.py")), str(tmp_path), *cases],
        env={**os.environ, "JAX_PLATFORMS": "cpu", "KERAS_BACKEND": "jax"},
        capture_output=True,
        text=True,
        timeout=220,
        check=False,
    )
    assert done.stdout.splitlines() == [f"0 {case}" for case in cases], done.stderr[-5000:]


def without_all() -> str:
    """All packages that can be deleted, and the modules above them that are not in one of these packages."""
    above = {path for paths in DELETABLE.values() for path in paths if path.partition("/")[0] not in DELETABLE}
    return ",".join([*DELETABLE, *sorted(above)])
