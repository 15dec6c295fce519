"""The partial sums of a fixed-order tree: which nodes each device computes alone, and how all nodes are combined.

The leaves of the tree are the replicas. A node at level n adds up to 2^n neighbours, beginning at a multiple of 2^n; an
unpaired node is passed to the next level. A device with consecutive replicas can compute each node whose leaves are all
its own. The largest such nodes are its *partial sums*: 8 replicas on 3 devices have five of them, which are exchanged
as two rows per device (six) instead of three slots per device (nine),

    {0 1 2} {3 4 5} {6 7}    0+1, 2    3, 4+5    6+7
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

from mirrored.collectives.summation import tree_sum
from mirrored.topology.slots import Slots

_Node = tuple[int, int]  # level, position
Pattern = tuple[tuple[int, int], ...]
"""For each partial sum of a device, the range of local slots that it adds."""


@dataclasses.dataclass(frozen=True)
class PartialSums:
    """The division of the fixed-order sum of R replicas on D devices into partial sums, each computed by one device.

    Attributes:
        slots: The slots of the replicas.

    Example:
        >>> PartialSums(Slots(devices=3, replicas=8)).patterns
        (((0, 2), (2, 3)), ((0, 1), (1, 3)), ((0, 2),))
    """

    slots: Slots

    @functools.cached_property
    def _nodes(self) -> tuple[tuple[_Node, ...], ...]:
        """For each device, the largest nodes of the summation tree whose leaves (replicas) are all on the device."""
        depth = (self.slots.replicas - 1).bit_length()
        return tuple(tuple(self._largest_subtrees(device, (depth, 0))) for device in range(self.slots.devices))

    def _largest_subtrees(self, device: int, node: _Node) -> list[_Node]:
        """Returns the roots of the largest subtrees, at or below `node`, that contain only replicas of `device`."""
        start, stop = self._leaves(node)
        first = self.slots.first_on(device)
        last = first + self.slots.number_on(device)
        if max(start, first) >= min(stop, last):
            return []
        if first <= start and stop <= last:
            return [node]
        level, position = node
        return [one for child in (0, 1) for one in self._largest_subtrees(device, (level - 1, 2 * position + child))]

    def _leaves(self, node: _Node) -> tuple[int, int]:
        """Returns the range (start, stop) of the replicas that are leaves below a tree node."""
        level, position = node
        return min(position << level, self.slots.replicas), min((position + 1) << level, self.slots.replicas)

    @functools.cached_property
    def patterns(self) -> tuple[Pattern, ...]:
        """For each device, one ``(start, stop)`` range of local replica indices per partial sum."""
        return tuple(
            tuple((start - first, stop - first) for start, stop in map(self._leaves, nodes))
            for nodes, first in ((nodes, self.slots.first_on(device)) for device, nodes in enumerate(self._nodes))
        )

    @property
    def rows(self) -> int:
        """The largest number of partial sums on any device.

        Every device sends this number of arrays. A device with fewer partial sums repeats its last one.
        """
        return max(map(len, self._nodes))

    @property
    def is_complete(self) -> bool:
        """Whether each device has one partial sum and all devices have equally many replicas."""
        return self.rows == 1 and not self.slots.padded

    def joined(self, rows: Sequence[Sequence[Any]]) -> Any:
        """Adds the partial sums of all devices (``rows[row][device]``) in tree order, and returns the total."""
        known = {node: rows[k][device] for device, nodes in enumerate(self._nodes) for k, node in enumerate(nodes)}
        return self._value(((self.slots.replicas - 1).bit_length(), 0), known)

    def _value(self, node: _Node, known: Mapping[_Node, Any]) -> Any:
        if node in known:
            return known[node]
        level, position = node
        left, right = (level - 1, 2 * position), (level - 1, 2 * position + 1)
        if self._leaves(right)[0] >= self.slots.replicas:
            return self._value(left, known)
        return self._value(left, known) + self._value(right, known)


def partial_sums(values: Sequence[Any], pattern: Pattern, rows: int) -> list[Any]:
    """Returns a device's partial sums as a list, padded to length `rows` by repeating the last partial sum.

    Args:
        values: The values of the device's slots.
        pattern: See `PartialSums.patterns`.
        rows: The length of the list, which is equal on all devices.
    """
    sums = [tree_sum(values[start:stop]) for start, stop in pattern]
    return [*sums, *sums[-1:] * (rows - len(sums))]
