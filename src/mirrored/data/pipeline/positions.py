"""What a saved position contains of the pipeline, to check that it fits the one in which it is restored."""

from __future__ import annotations

from mirrored.data.pipeline.nodes import Node, nodes
from mirrored.data.pipeline.transformations import Mapping, Prefetched, Sliced


def outline(node: Node) -> str:
    """Returns the names of the pipeline steps, without those (prefetching) that do not change positions."""
    return " < ".join(f"{step.name}{_size(step)}" for step in nodes(node) if not step.name.endswith("Prefetched"))


def _size(step: Node) -> str:
    size = getattr(step, "size", None)
    return str(size) if isinstance(size, int) else ""  # a function has another address in every process


def sizes_of(node: Node) -> list[str]:
    """Returns the names and sizes of the pipeline steps that have a size, such as `batch`."""
    return [f"{step.name}{_size(step)}" for step in nodes(node) if _size(step) and not step.name.endswith("Prefetched")]


def settings_of(node: Node) -> list[str]:
    """Returns the settings of the pipeline steps that have any, for saved positions."""
    return [step.settings for step in nodes(node) if step.settings]


def arguments_of(node: Node) -> list[str]:
    """Returns further arguments with which the elements before a position were read."""
    return [step.arguments for step in nodes(node) if step.arguments]


def replayed_of(node: Node) -> list[str]:
    """Returns the arguments that decide the order of elements which a later step reads again, skips or reorders."""
    replays = node.replays or node.keeps_elements or (isinstance(node, Sliced) and node.step != 1)
    return [order for parent in node.parents for order in (order_of if replays else replayed_of)(parent)]


def order_of(node: Node) -> list[str]:
    """Returns the arguments that decide the order of the elements, of which a position may need only a part."""
    return [step.order for step in nodes(node) if step.order]


def grouping_of(node: Node) -> list[str]:
    """Returns how the steps divide the examples into elements, without the last step that does more than mapping."""
    last = node
    while isinstance(last, Mapping | Prefetched):
        last = last.parent
    return [step.grouping for step in nodes(node) if step.grouping and step is not last]
