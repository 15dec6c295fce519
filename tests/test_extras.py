"""Packages that are not there are named with the extra that brings them."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest

from mirrored.errors import MissingExtraError
from mirrored.extras import load

SOURCE = Path(__file__).parents[1] / "src" / "mirrored"
PROJECT = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def test_what_is_there_is_loaded():
    assert load("json", called="anything", extra="data") is json


def test_what_is_not_there_is_named_with_its_extra_and_another_way():
    with pytest.raises(MissingExtraError, match="No module named") as caught:
        load("json.there_is_none", called="f", extra="flax", package="the-package", otherwise="do without")
    error = caught.value
    assert error.called == "f"
    assert error.found.startswith("the package the-package cannot be imported: ")
    assert error.rule == 'this needs the extra "flax"'
    assert error.remedy == "run pip install 'mirrored[flax]', or do without"
    assert isinstance(error.__cause__, ModuleNotFoundError)


def test_the_package_is_the_first_part_of_the_module():
    with pytest.raises(MissingExtraError, match="the package there_is_none cannot be imported"):
        load("there_is_none.at_all", called="f", extra="flax")


def test_every_extra_that_is_named_exists():
    named = {
        word.partition('"')[0]
        for path in SOURCE.rglob("*.py")
        for word in path.read_text(encoding="utf-8").split(' extra="')[1:]
    }
    assert {"checkpoint", "data", "demo", "equinox", "flax", "keras", "kubernetes", "plot", "summary"} <= named
    assert named <= set(PROJECT["optional-dependencies"])
