"""Digests of the data of pipelines: equal for equal data, and different for what sources differ in."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mirrored.checkpoint.sharing import _data_digest
from mirrored.data import Dataset
from mirrored.data.pipeline import data_digest as module


def digest(dataset: Any) -> str:
    iterator = iter(dataset)
    next(iterator)
    return iterator.data_digest()


def lines(folder: Path, *texts: str) -> list[str]:
    folder.mkdir()
    for number, text in enumerate(texts):
        (folder / str(number)).write_text(text)
    return [str(folder / str(number)) for number in range(len(texts))]


MAKERS: dict[str, Callable[[int], Any]] = {
    "range": lambda own: Dataset.range(own, own + 9),
    "array": lambda own: Dataset.from_tensor_slices({"x": np.arange(6.0), "y": np.arange(6) + own}),
    "texts": lambda own: Dataset.from_tensor_slices(np.array(["a", "b", f"c{own}"], object)),
    "tensors": lambda own: Dataset.from_tensors(np.full(3, own)),
    "arguments": lambda own: Dataset.from_generator(lambda begin: iter([begin]), args=(own,)),
    "steps": lambda own: Dataset.range(9).zip(Dataset.range(own, own + 9)).shuffle(3, seed=1).repeat().batch(2),
    "shard": lambda own: Dataset.range(9).shard(2, own),
    "skip": lambda own: Dataset.range(9).filter(lambda n: n > 1).skip(own),
    "parts": lambda own: Dataset.range(9).concatenate(Dataset.range(own, own + 9)),
}


@pytest.mark.parametrize("name", MAKERS)
def test_a_digest_depends_on_the_data_of_all_sources(name):
    make = MAKERS[name]
    assert digest(make(0)) == digest(make(0)) != ""
    assert digest(make(0)) != digest(make(1))


def test_files_are_told_apart_by_content_not_by_path(tmp_path):
    copies = [lines(tmp_path / name, "1\n2\n", "3\n") for name in ("a", "b")]
    other = lines(tmp_path / "c", "1\n2\n", "4\n")
    digests = [digest(Dataset.from_text_lines(paths)) for paths in (*copies, other)]
    assert digests[0] == digests[1] != digests[2]


def test_stored_elements_are_told_apart(tmp_path):
    for name, own in (("a", 0), ("b", 0), ("c", 5)):
        Dataset.range(own, own + 3).save(str(tmp_path / name))
    digests = [digest(Dataset.load(str(tmp_path / name))) for name in ("a", "b", "c")]
    assert digests[0] == digests[1] != digests[2]


def test_a_large_array_is_sampled_with_its_ends(monkeypatch):
    monkeypatch.setattr(module, "_MOST_BYTES", 800)
    arrays = [np.zeros((1000, 10)) for _ in range(4)]
    arrays[1][-1] = 1
    arrays[2][0] = 1
    digests = [digest(Dataset.from_tensor_slices(array)) for array in arrays]
    assert digests[0] == digests[3]
    assert len(set(digests)) == 3


def test_a_pipe_is_not_read(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    source = Dataset.from_text_lines([str(tmp_path / "pipe")])._node
    while source.parents:
        (source,) = source.parents
    assert module._of_source(source)


def test_an_unread_iterator_and_one_of_another_library_have_no_digest():
    assert iter(Dataset.range(3)).data_digest() == ""
    assert _data_digest(iter([1])) == ""


def test_functions_are_not_called():
    calls = []

    def read(value: int) -> int:
        calls.append(value)
        return value

    iterator = iter(Dataset.from_generator(lambda: map(read, range(5))))
    next(iterator)
    before = list(calls)
    assert iterator.data_digest()
    assert calls == before


def test_settings_of_speed_and_automatic_seeds_do_not_count():
    slow, fast = (
        Dataset.range(9).shuffle(3).map(abs, num_parallel_calls=number).filter(bool).prefetch(number)
        for number in (1, 2)
    )
    assert digest(slow) == digest(fast)
