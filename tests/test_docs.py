"""The pages in docs/ name what exists."""

from __future__ import annotations

import pathlib
import re

import pytest

import mirrored
import mirrored.tf as tf

PAGE = pathlib.Path(__file__).parents[1] / "docs" / "coming_from_tensorflow.md"


@pytest.mark.parametrize("name", sorted(set(re.findall(r"`(tf\.[\w.]+\w)(?:\(|`)", PAGE.read_text()))))
def test_every_tensorflow_name_on_the_page_is_there(name: str) -> None:
    found = tf
    for part in name.split(".")[1:]:
        found = getattr(found, part)


@pytest.mark.parametrize("name", sorted(set(re.findall(r"`mirrored\.(\w+)`", PAGE.read_text()))))
def test_every_name_of_ours_on_the_page_is_there(name: str) -> None:
    assert getattr(mirrored, name)
