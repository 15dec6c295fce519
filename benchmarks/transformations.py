"""Rows per second of each transformation of `Dataset`: both of its forms, Grain's two, and `tf.data`.

    python benchmarks/transformations.py [--rounds 9] [--only map,repeat] [--json FILE]

Every pipeline reads 8,192 rows ``f32[784]``, transforms them and makes batches of 512. *Random access* begins with
`from_tensor_slices`, *sequential* with `from_generator`, `MapDataset` and `IterDataset` with Grain's `source`, without
threads. A round reads every pipeline of a transformation once, in turn and in one process; the figure is the median
with its 95 % interval. Where `make bench-peers` has installed TensorFlow, `tf.data` runs beside it in its own process.
"""

from __future__ import annotations

import argparse
import dataclasses
import gc
import json
import pathlib
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).parent))

import grain
import numpy as np
from grain import experimental
from pairing import rank_interval
from processes import HERE, interpreter
from rich.console import Console
from rich.table import Table

from mirrored.data import Dataset

ROWS, WIDTH, BATCH, BUFFER, PARTS = 8192, 784, 512, 1024, 8
FORMS = ("random access", "sequential", "MapDataset", "IterDataset")
INLINE = grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)
data = np.random.default_rng(0).standard_normal((ROWS, WIDTH), np.float32)
Pipeline = Callable[[], Iterable[Any]]


@dataclasses.dataclass(frozen=True)
class Contest:
    """The pipelines of one transformation, in the order of `FORMS`; None where a library has no such form."""

    name: str
    pipelines: Sequence[Pipeline | None]


class Rows:
    """Rows in memory as a source of Grain."""

    def __init__(self, rows: np.ndarray) -> None:
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> np.ndarray:
        return self._rows[index]


def double(row: np.ndarray) -> np.ndarray:
    """The function of all contests that map."""
    return row * np.float32(2)


def jitter(row: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """The function of the contest that maps at random."""
    return row * np.float32(rng.random())


def is_positive(row: np.ndarray) -> bool:
    """The predicate of the contest that filters."""
    return bool(row[0] > 0)


def indexed(rows: np.ndarray = data) -> Dataset:
    """Returns the rows as a random-access dataset."""
    return Dataset.from_tensor_slices(rows)


def streamed(rows: np.ndarray = data) -> Dataset:
    """Returns the rows as a sequential dataset."""
    return Dataset.from_generator(lambda: iter(rows))


def mapped(rows: np.ndarray = data) -> Any:
    """Returns the rows as a Grain `MapDataset`."""
    return grain.MapDataset.source(Rows(rows))


def iterated(rows: np.ndarray = data) -> Any:
    """Returns the rows as a Grain `IterDataset`."""
    return mapped(rows).to_iter_dataset(INLINE)


def without_threads(dataset: Any) -> Any:
    """Returns an iterable over a Grain dataset that starts no threads."""
    return dataset.to_iter_dataset(INLINE) if isinstance(dataset, grain.MapDataset) else dataset


def contest(
    name: str,
    ours: Callable[[Dataset], Dataset],
    of_map: Callable[[Any], Any] | None,
    of_iter: Callable[[Any], Any] | None,
    *,
    has_indexed: bool = True,
) -> Contest:
    """Returns the contest of a transformation of one dataset of rows, followed by `batch`."""
    sources: list[tuple[Any, Any]] = [
        (indexed(), ours if has_indexed else None),
        (streamed(), ours),
        (mapped(), of_map),
        (iterated(), of_iter),
    ]
    return Contest(name, [None if step is None else batched(step(source)) for source, step in sources])


def batched(dataset: Any) -> Pipeline:
    """Returns a function that makes batches of a dataset of rows."""
    return lambda: without_threads(dataset.batch(BATCH))


class Split(experimental.FlatMapTransform):  # type: ignore[misc]
    """Splits a batch into its rows."""

    max_fan_out = BATCH

    def flat_map(self, element: np.ndarray) -> list[np.ndarray]:
        """Returns the rows of a batch."""
        return list(element)


def contests() -> list[Contest]:
    """Returns the contests of all transformations."""
    halves, parts = np.split(data, 2), np.split(data, PARTS)
    return [
        contest("batch", lambda d: d, lambda d: d, lambda d: d),
        contest("map", lambda d: d.map(double), lambda d: d.map(double), lambda d: d.map(double)),
        contest(
            "random_map",
            lambda d: d.random_map(jitter, seed=0),
            lambda d: d.random_map(jitter, seed=0),
            lambda d: d.random_map(jitter, seed=0),
        ),
        contest(
            "filter",
            lambda d: d.filter(is_positive),
            lambda d: d.filter(is_positive).to_iter_dataset(INLINE),
            lambda d: d.filter(is_positive),
            has_indexed=False,
        ),
        contest("take", lambda d: d.take(6000), lambda d: d[:6000], lambda d: experimental.LimitIterDataset(d, 6000)),
        contest("skip", lambda d: d.skip(100), lambda d: d[100:], by_index(lambda i: i >= 100)),
        contest("shard", lambda d: d.shard(4, 1), lambda d: d[1::4], by_index(lambda i: i % 4 == 1)),
        contest("repeat", lambda d: d.repeat(2), lambda d: d.repeat(2), lambda d: experimental.RepeatIterDataset(d, 2)),
        Contest(
            "zip",
            [
                batched(Dataset.zip((indexed(), indexed()))),
                batched(Dataset.zip((streamed(), streamed()))),
                batched(experimental.ZipMapDataset([mapped(), mapped()])),
                batched(experimental.ZipIterDataset([iterated(), iterated()])),
            ],
        ),
        Contest(
            "concatenate",
            [
                batched(indexed(halves[0]).concatenate(indexed(halves[1]))),
                batched(streamed(halves[0]).concatenate(streamed(halves[1]))),
                batched(grain.MapDataset.concatenate([mapped(half) for half in halves])),
                None,
            ],
        ),
        contest(
            "shuffle",
            lambda d: d.shuffle(BUFFER, seed=0),
            lambda d: d.shuffle(seed=0),
            lambda d: experimental.WindowShuffleIterDataset(d, window_size=BUFFER, seed=0),
        ),
        contest("cache", lambda d: d.map(double).cache(), None, lambda d: experimental.CacheIterDataset(d.map(double))),
        contest(
            "prefetch",
            lambda d: d.prefetch(2),
            None,
            lambda d: experimental.ThreadPrefetchIterDataset(d, prefetch_buffer_size=2),
        ),
        Contest("map of batches", [mapped_batches(source) for source in (indexed, streamed, mapped, iterated)]),
        contest(
            "unbatch",
            lambda d: d.batch(BATCH).unbatch(),
            None,
            lambda d: experimental.FlatMapIterDataset(d.batch(BATCH), Split()),
            has_indexed=False,
        ),
        Contest(
            "rebatch",
            [
                None,
                lambda: streamed().batch(384).rebatch(BATCH),
                None,
                lambda: experimental.RebatchIterDataset(iterated().batch(384), BATCH),
            ],
        ),
        Contest(
            "interleave",
            [
                None,
                batched(Dataset.range(PARTS).interleave(lambda n: indexed_of(parts, n), cycle_length=4)),
                None,
                batched(experimental.InterleaveIterDataset([iterated(part) for part in parts], cycle_length=4)),
            ],
        ),
        Contest(
            "mix",
            [
                None,
                batched(Dataset.sample_from_datasets([streamed(half) for half in halves], seed=0)),
                batched(grain.MapDataset.mix([mapped(half) for half in halves])),
                batched(grain.IterDataset.mix([iterated(half) for half in halves])),
            ],
        ),
    ]


def indexed_of(parts: Sequence[np.ndarray], number: Any) -> Dataset:
    """Returns the dataset that `interleave` makes of a number."""
    return indexed(parts[int(number)])


def by_index(predicate: Callable[[int], bool]) -> Callable[[Any], Any]:
    """Returns a transformation of Grain's `IterDataset` that selects elements by index, as its `filter` can do."""

    def step(dataset: Any) -> Any:
        pairs = dataset.map_with_index(lambda index, row: (predicate(index), row))
        return pairs.filter(lambda pair: pair[0]).map(lambda pair: pair[1])

    return step


def mapped_batches(source: Callable[[], Any]) -> Pipeline:
    """Returns a pipeline that maps batches."""
    return lambda: without_threads(source().batch(BATCH).map(double))


def seconds(make: Pipeline) -> float:
    """Reads a pipeline to its end, and returns the time per row that it has read."""
    reading = iter(make())
    start, count = time.perf_counter(), 0
    for element in reading:
        count += len(element[0]) if isinstance(element, tuple) else len(element)
    return (time.perf_counter() - start) / count


def measure(one: Contest, rounds: int) -> list[list[float] | None]:
    """Returns the rows per second of every form, one figure per round."""
    found: list[list[float] | None] = [None if make is None else [] for make in one.pipelines]
    for round_ in range(rounds + 1):
        for figures, make in zip(found, one.pipelines, strict=True):
            if figures is None or make is None:
                continue
            gc.collect()
            rate = 1 / seconds(make)
            if round_:  # the first one warms up
                figures.append(rate)
    return found


def of_tensorflow(names: Sequence[str], rounds: int) -> dict[str, list[float]]:
    """Returns the rows per second of `tf.data`, in a process of TensorFlow's environment; nothing without one."""
    python = interpreter("tensorflow_mirrored")
    if python is None:
        return {}
    command = [python, str(HERE / "contenders" / "tensorflow_data.py"), ",".join(names), str(rounds)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=500, check=True)
    found: dict[str, list[float]] = json.loads(done.stdout.splitlines()[-1])
    return found


def described(figures: Sequence[float] | None) -> str:
    """Formats a median in thousands of rows per second, with its interval."""
    if not figures:
        return ""
    low, high = rank_interval(figures)
    return f"{float(np.median(figures)) / 1e3:,.0f} ({low / 1e3:,.0f} to {high / 1e3:,.0f})"


def main() -> None:
    """Measures all transformations and prints a table of thousands of rows per second."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--only", default="", help="names of transformations")
    parser.add_argument("--json", type=pathlib.Path)
    arguments = parser.parse_args()
    chosen = [one for one in contests() if not arguments.only or one.name in arguments.only.split(",")]
    peers = of_tensorflow([one.name for one in chosen], arguments.rounds)
    table = Table("1,000 rows/s", *FORMS, "tf.data")
    figures: dict[str, dict[str, list[float] | None]] = {}
    for one in chosen:
        found = [*measure(one, arguments.rounds), peers.get(one.name)]
        table.add_row(one.name, *map(described, found))
        figures[one.name] = dict(zip((*FORMS, "tf.data"), found, strict=True))
    Console(width=140).print(table)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
