"""Gives the shards of one dataset, such as those of several workers, one order of the elements before `shard`."""

from __future__ import annotations

import collections
from collections.abc import Sequence
from typing import Any

from mirrored.errors import DisagreementError

ShardOrder = dict[str, Any]
"""What a `shard` of a dataset divides (`Source.shard_orders`).

It has the number of shards and the digest of the data ("data"), the number of the shard ("index") and of the pass
("iteration"), and of each random operation before it the seed, whether the user gave it, and whether it is a shuffle
("seeds").
"""

_Place = tuple[int, int, int]  # of a shard: the worker, the dataset and the `shard` in it


def agreed_orders(everyone: Sequence[Sequence[Sequence[ShardOrder]]]) -> tuple[dict[_Place, list[int]], int]:
    """Returns the seeds before each `shard` that takes a part of the same data as another one, and their pass.

    Seeds that were drawn automatically are replaced by the given one, or else by those of the first such shard, so that
    each example is in one of the shards. Datasets that take the same part keep different orders.

    Args:
        everyone: The orders of each dataset of each worker.

    Returns:
        The seeds, by the worker, the dataset and the `shard` in it; and the number of the pass.

    Raises:
        DisagreementError: Different seeds were given.
    """
    groups: dict[Any, dict[_Place, ShardOrder]] = collections.defaultdict(dict)
    parts = collections.Counter[Any]()
    for worker, datasets in enumerate(everyone):
        for dataset, orders in enumerate(datasets):
            for place, order in enumerate(orders):
                data = (*order["data"], len(order["seeds"]))
                groups[data, parts[data, order["index"]]][worker, dataset, place] = order
                parts[data, order["index"]] += 1
    seeds: dict[_Place, list[int]] = {}
    iteration = 0
    for members in groups.values():
        if len(members) < 2:
            continue
        iteration = max(iteration, *(order["iteration"] for order in members.values()))
        agreed = [_agreed_seed(members, number) for number in range(len(next(iter(members.values()))["seeds"]))]
        for where, order in members.items():
            own = zip(order["seeds"], agreed, strict=True)
            seeds[where] = [seed if is_given else common for (seed, is_given, _), common in own]
    return seeds, iteration


def _agreed_seed(members: dict[_Place, ShardOrder], number: int) -> int:
    """Returns the common seed of the random operation `number` of shards of the same data."""
    found = {place: order["seeds"][number] for place, order in members.items()}
    given = {place: seed for place, (seed, is_given, _) in found.items() if is_given}
    seed, _, is_shuffle = next(iter(found.values()))
    if not given:
        return int(seed)
    first, seed = next(iter(given.items()))
    other = next((place for place, theirs in given.items() if theirs != seed), None)
    if other is None or not is_shuffle:
        return int(seed)
    raise DisagreementError(
        "iter(dataset)",
        found=f"the workers {first[0]} and {other[0]} take the shards {members[first]['index']} and "
        f"{members[other]['index']} of the same data, shuffled in different orders (seeds {seed} and {given[other]})",
        rule="shards divide the data only if they are parts of one order: else examples are lost, and others are read "
        "twice",
        remedy="shuffle after shard, or pass the same seed, or none, to shuffle on all workers",
    )
