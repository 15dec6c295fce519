"""The pages in docs/ name what exists."""

from __future__ import annotations

import pathlib
import re

import pytest

import mirrored
import mirrored.tf as tf

PAGE = pathlib.Path(__file__).parents[1] / "docs" / "coming_from_tensorflow.md"

# Behind this heading are the names that are out; tests/tf/test_names.py holds them against the facade.
NAMES_THAT_ARE_HERE = PAGE.read_text().partition("## What is not here")[0]


@pytest.mark.parametrize("name", sorted(set(re.findall(r"`(tf\.[\w.]+\w)(?:\(|`)", NAMES_THAT_ARE_HERE))))
def test_every_tensorflow_name_on_the_page_is_there(name: str) -> None:
    found = tf
    for part in name.split(".")[1:]:
        found = getattr(found, part)


@pytest.mark.parametrize("name", sorted(set(re.findall(r"`mirrored\.(\w+)`", PAGE.read_text()))))
def test_every_name_of_ours_on_the_page_is_there(name: str) -> None:
    assert getattr(mirrored, name)


ERRORS = PAGE.with_name("errors.md")


def _all_errors(cls: type[BaseException]) -> set[type[BaseException]]:
    return {cls}.union(*(_all_errors(inner) for inner in cls.__subclasses__()))


def test_the_page_of_errors_has_a_row_for_each_class() -> None:
    defined = {
        cls for cls in _all_errors(mirrored.errors.MirroredError) if cls.__module__ == mirrored.errors.__name__
    } - {mirrored.errors.MirroredError}
    rows = dict(re.findall(r"^\| `(\w+)` \| (\w+) \|", ERRORS.read_text(), re.M))
    assert set(rows) == {cls.__name__ for cls in defined}
    for cls in defined:
        assert rows[cls.__name__] in {base.__name__ for base in cls.__mro__}


def test_the_page_of_errors_has_a_row_for_each_category_of_warnings() -> None:
    defined = {
        name for name, one in vars(mirrored.errors).items() if isinstance(one, type) and issubclass(one, Warning)
    }
    section = ERRORS.read_text().partition("## Warnings")[2].partition("\n## ")[0]
    assert set(re.findall(r"^\| `(\w+)` \|", section, re.M)) == {*defined, "LossReductionWarning"}
