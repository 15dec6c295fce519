"""What a saved position contains of the pipeline, to check that it fits the one in which it is restored."""

from __future__ import annotations

from mirrored.data.pipeline.nodes import Node, nodes
from mirrored.data.pipeline.transformations import Mapping, Prefetched, Sliced


def outline(node: Node) -> str:
    """Returns the names and sizes of all pipeline steps except `prefetch`, as one string.

    `prefetch` does not affect read positions.
    """
    return " < ".join(f"{step.name}{_size(step)}" for step in nodes(node) if not step.name.endswith("Prefetched"))


def _size(step: Node) -> str:
    size = getattr(step, "size", None)
    return str(size) if isinstance(size, int) else ""  # a function has another address in every process


def sizes_of(node: Node) -> list[str]:
    """Returns the names and sizes of the pipeline steps that have a size, such as `batch`."""
    return [f"{step.name}{_size(step)}" for step in nodes(node) if _size(step) and not step.name.endswith("Prefetched")]


def recorded_of(node: Node) -> dict[str, list[str]]:
    """Returns the arguments of the pipeline steps that a read position records, as a dict keyed by kind of argument.

    - ``settings``, ``arguments``: those with which the elements before the position were read. Earlier versions did not
      record the second ones.
    - ``grouping``: how the steps divide the examples into elements.
    - ``replayed``: those that decide the order of elements which a later step reads again, skips or reorders.
    - ``order``: those that decide the order of all elements, of which a position may need only a part.
    """
    steps = list(nodes(node))
    return {
        "settings": [step.settings for step in steps if step.settings],
        "arguments": [step.arguments for step in steps if step.arguments],
        "grouping": _grouping_of(node),
        "replayed": _replayed_of(node),
        "order": _order_of(node),
    }


def _replayed_of(node: Node) -> list[str]:
    replays = node.replays or node.keeps_elements or (isinstance(node, Sliced) and node.step != 1)
    return [order for parent in node.parents for order in (_order_of if replays else _replayed_of)(parent)]


def _order_of(node: Node) -> list[str]:
    return [step.order for step in nodes(node) if step.order]


def _grouping_of(node: Node) -> list[str]:
    # Without the last step that does more than mapping: no later step counts or reorders its elements.
    last = node
    while isinstance(last, Mapping | Prefetched):
        last = last.parent
    return [step.grouping for step in nodes(node) if step.grouping and step is not last]
