"""Modules of the benchmarks and tools are imported by their bare names in tests: no folder of tests may be shadowed."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_no_module_has_the_name_of_a_folder_of_tests():
    folders = {folder.name for folder in (ROOT / "tests").iterdir() if folder.is_dir()}
    modules = {path.stem for place in ("benchmarks", "tools") for path in (ROOT / place).glob("*.py")}
    assert modules
    # A folder of tests is a namespace package, which gives way to a module of that name anywhere on sys.path.
    assert not folders & modules
