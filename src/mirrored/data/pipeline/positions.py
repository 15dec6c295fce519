"""Records a pipeline's operations in saved read positions, and checks that a saved position fits a pipeline."""

from __future__ import annotations

import re
from typing import Any, Final

from mirrored.data.pipeline.nodes import Node, nodes
from mirrored.data.pipeline.transformations import Batched, Concatenated, Mapping, Prefetched, Repeated, Sliced
from mirrored.errors import ArgumentError

_DROPS: Final = "drop_remainder=True"  # in `Node.grouping`
_BEFORE_OTHERS: Final = " elements before others"
_REREADS: Final = ("Rebatched", "Unbatched")
_IGNORES: Final = "Forgiving"  # the operation `ignore_errors`
_CHANGES_NUMBER: Final = frozenset(
    {
        "Chosen",
        "Concatenated",
        "Filtered",
        _IGNORES,
        "Grouped",
        "Interleaved",
        "Resampled",
        "TakenWhile",
        "Unique",
        "Windowed",
    }
)
"""The operations that leave out elements or put others between them, and have no arguments that tell it."""


def outline(node: Node) -> str:
    """Returns the names and sizes of all operations of a pipeline except `prefetch`, as one string.

    `prefetch` does not affect read positions.
    """
    return " < ".join(f"{step.name}{_size(step)}" for step in nodes(node) if not step.name.endswith("Prefetched"))


def _size(step: Node) -> str:
    size = getattr(step, "size", None)
    return str(size) if isinstance(size, int) else ""  # a function has another address in every process


def sizes_of(node: Node) -> list[str]:
    """Returns the names and sizes of a pipeline's operations that have a size, such as `batch`."""
    return [f"{step.name}{_size(step)}" for step in nodes(node) if _has_size(step)]


def _has_size(step: Node) -> bool:
    return bool(_size(step)) and not step.name.endswith("Prefetched")


def recorded_of(node: Node) -> dict[str, list[str]]:
    """Returns the operation arguments that a dataset's saved read position contains.

    The result is a dict of lists, with one list for each purpose:

    - ``settings``, ``arguments``: those with which the elements before the position were read. Earlier versions did not
      record the second ones.
    - ``grouping``: how the steps divide the examples into elements.
    - ``grouped``: the same for each step from the source, except `prefetch`. Earlier versions did not record it.
    - ``replayed``: those that decide the order of elements which a later step reads again, skips or reorders.
    - ``reread``: the same for steps that read again only the batch in which the position lies. Earlier versions did not
      record them.
    - ``slices``: the lengths of parts that others follow in `concatenate`, and the units in which slices count.
      Earlier versions did not record them.
    - ``order``: those that decide the order of all elements, of which a position may need only a part.
    - ``kept``: the steps that return another order in each pass, and whose order a later `cache` keeps. Earlier
      versions did not record them.
    """
    steps = list(nodes(node))
    cached = {id(step) for cache in steps if cache.keeps_elements for step in nodes(cache)}
    return {
        "settings": [step.settings for step in steps if step.settings],
        "arguments": [step.arguments for step in steps if step.arguments],
        "grouping": _grouping_of(node),
        "grouped": _grouped_of(node),
        "replayed": _replayed_of(node),
        "reread": [order for step in nodes(node) if step.name in _REREADS for order in _order_of(step)],
        "slices": _slices_of(node),
        "order": _order_of(node),
        "kept": [step.name for step in nodes(node) if step.varies and id(step) in cached],
    }


def _replayed_of(node: Node) -> list[str]:
    replays = node.replays or node.keeps_elements or (isinstance(node, Sliced) and node.step != 1)
    return [order for parent in node.parents for order in (_order_of if replays else _replayed_of)(parent)]


def _slices_of(node: Node) -> list[str]:
    found = []
    for step in nodes(node):
        if isinstance(step, Sliced) and step.settings and sizes_of(step.parent):
            # The position of a dataset with another batch size counts the examples before it, with others left out.
            found.append(f"{step.settings} of {', '.join(sizes_of(step.parent))}")
        # An indexed position is one number, which means another element if the parts before it have other lengths.
        # `epochs_of` has the lengths of the epochs of a `repeat`.
        followed = step.members[:-1] if isinstance(step, Concatenated) else ()
        if step.is_indexed:
            found += [f"{part.cardinality}{_BEFORE_OTHERS}" for part in followed]
    return found


def _order_of(node: Node) -> list[str]:
    return [step.order for step in nodes(node) if step.order]


def _grouping_of(node: Node) -> list[str]:
    return [grouping for grouping in _grouped_of(node)[::-1] if grouping]


def _grouped_of(node: Node) -> list[str]:
    # Without the last step that does more than mapping: no later step counts or reorders its elements.
    last = _last(node)
    steps = [step for step in nodes(node) if not isinstance(step, Prefetched)]
    return ["" if step is last else step.grouping for step in reversed(steps)]


def check_recorded(state: dict[str, Any], node: Node, recorded: dict[str, list[str]]) -> None:
    """Raises ArgumentError if a saved position does not fit a dataset, because operations have other arguments now.

    Args:
        state: The position.
        node: The dataset in which it is restored.
        recorded: The result of `recorded_of(node)`.

    Raises:
        ArgumentError: The dataset has other arguments.
    """
    for name in ("settings", "arguments", "grouping", "grouped", "replayed", "reread", "slices"):
        own = recorded[name]
        saved = state.get(name, own)  # positions of earlier versions have none
        if name == "slices" and _is_in_first_part(state, node, saved, own):
            saved, own = ([one for one in found if not one.endswith(_BEFORE_OTHERS)] for found in (saved, own))
        check_same(saved, own)


def check_same(saved: list[str], own: list[str], owner: str = "this dataset") -> None:
    """Raises ArgumentError if the saved arguments of pipeline operations differ from the present ones of `owner`.

    Raises:
        ArgumentError: The arguments differ.
    """
    if saved != own:
        raise ArgumentError(
            "DatasetIterator.set_state",
            found=f"the position was saved with {saved}, {owner} has {own}",
            rule="a position fits only the order in which the elements were read: the buffer size and the number "
            "of elements of `shuffle`, and the arguments of `skip`, `shard`, `window`, `group_by_window` and "
            "`rejection_resample` stay the same; so do, before these operations, `rebatch` and `unbatch`, those of "
            "`interleave` (cycle_length is the number of cores by default), `csv_batches`, `sample_from_datasets`, "
            "`batch` and `rebatch`; and the number of elements before `concatenate`, after these have been read",
            remedy="build the dataset with the saved arguments until the epoch ends, or begin a new epoch: do not "
            "set the position, and restore the checkpoint without the iterator",
        )


def elements_changed_by(names: str) -> list[str]:
    """Returns the operations of an `outline` that leave out elements or put others between them, from the source.

    Each is followed by the number of `batch` operations before it: one before `batch` gets other elements.

    Example:
        >>> elements_changed_by("StreamBatched4 < Filtered < RangeSource")
        ['Filtered 0']
        >>> elements_changed_by("Filtered < StreamBatched3 < Unbatched < ArraySource")
        ['Unbatched 0', 'Filtered 1']
    """
    found, batches = [], 0
    steps = [re.sub(r"^Stream|\d+$", "", name) for name in reversed(names.split(" < "))]
    for place, step in enumerate(steps):
        if step == "Unbatched" and batches:  # returns the examples before that `batch`
            batches -= 1
        # Elements after those that `take` returns follow in the next epoch.
        elif step in _CHANGES_NUMBER or step == "Unbatched" or (step == "Limited" and "Repeated" in steps[place:]):
            found.append(f"{step} {batches}")
        batches += step.endswith("Batched")
    return found


def check_elements(state: dict[str, Any], node: Node, kept: list[str]) -> None:
    """Raises ArgumentError if examples that are counted from the start are not those before a saved position.

    Args:
        state: The position, of a dataset with other steps or batch sizes.
        node: The present dataset.
        kept: Its steps whose order a cache keeps (`recorded_of`).

    Raises:
        ArgumentError: An operation that leaves out or adds elements has been added, removed or moved, or a cache that
            keeps the order of a random operation.
    """
    saved, own = str(state.get("pipeline")), outline(node)
    before, now = elements_changed_by(saved), elements_changed_by(own)
    if not any(_IGNORES in one for one in before):
        # No element before the position has raised an exception, so that `ignore_errors` has left out none of them.
        now = [one for one in now if _IGNORES not in one]
    # A cache returns the order of the first pass in each one, so that it makes no difference in the first.
    is_first = state["iteration"] == 0 and not any("Repeated" in names for names in (saved, own))
    if before != now or (state.get("kept", kept) != kept and not is_first):
        raise ArgumentError(
            "DatasetIterator.set_state",
            found=f"the position was saved with {saved}, this dataset is {own}",
            rule="in a dataset with other steps a position counts examples; steps that leave out or add elements, such "
            "as `filter`, `unique`, `take_while`, `flat_map` and `unbatch`, stay the same, and stay before or after "
            "`batch`; so does, after the first epoch, a `cache` behind a `shuffle` that reshuffles. `map`, other "
            "caches, `prefetch`, another batch size and a new `ignore_errors` keep the examples",
            remedy="build the dataset with the saved steps until the epoch ends, or begin a new epoch: do not set the "
            "position, and restore the checkpoint without the iterator",
        )


def _is_in_first_part(state: dict[str, Any], node: Node, saved: list[str], own: list[str]) -> bool:
    """Returns whether a position certainly lies in the first input of the pipeline's only `concatenate`.

    The elements before it do not depend on the number of elements in this part, except for a partial batch, which is
    its last element. A position that only counts examples is not known.
    """
    step, size = _before_batches(node)
    parts = [int(one.split()[0]) for one in (*saved, *own) if one.endswith(_BEFORE_OTHERS)]
    if state["position"] is None or not isinstance(step, Concatenated) or len(parts) != 2:
        return False
    first = step.members[0]
    drops = [isinstance(one, Batched) and one.drop_remainder for one in nodes(first)]
    may_be_partial = any(_has_size(one) and not drop for one, drop in zip(nodes(first), drops, strict=True))
    return bool(state["count"] * size + may_be_partial <= min(parts))


def epochs_of(node: Node) -> list[int]:
    """Returns the number of examples per epoch of each random-access `repeat` in a pipeline."""
    repeats = [step for step in nodes(node) if isinstance(step, Repeated) and step.is_indexed]
    return [_before_batches(step.parent)[0].cardinality for step in repeats]


def _before_batches(node: Node) -> tuple[Node, int]:
    """Returns the last operation before the final `batch` operations, and how many of its elements form one batch."""
    size = 1
    while isinstance(node, Batched | Mapping | Prefetched):
        size *= node.size if isinstance(node, Batched) else 1
        node = node.parent
    return node, size


def is_in_first_epoch(state: dict[str, Any], node: Node) -> bool:
    """Returns whether a read position is certainly within the first epoch of `repeat`.

    The number of examples per epoch has changed since the position was saved. The position must be within the first
    epoch for the old and the new number; the result is False if that is unknown.

    Args:
        state: The position, of a dataset with another number of examples per epoch.
        node: The dataset.
    """
    if not state["count"] or Repeated.__name__ not in state["pipeline"]:
        return True
    repeat, size = _before_batches(node)
    if state["pipeline"] != outline(node) or not isinstance(repeat, Repeated):
        return False
    given = state["count"] * size * _before_batches(repeat.parent)[1]
    known = [length for length in (*state["epochs"], *epochs_of(node)) if length >= 0]
    return len(state["epochs"]) == 1 and given <= min(known, default=0)


def check_epochs(state: dict[str, Any], node: Node, lengths: list[int]) -> None:
    """Raises ArgumentError if a saved read position depends on an epoch length that has changed.

    Args:
        state: The position; those of earlier versions have no lengths.
        node: The dataset.
        lengths: The result of `epochs_of(node)`.

    Raises:
        ArgumentError: The epochs have other numbers of elements.
    """
    saved = state.get("epochs", lengths)
    if saved != lengths and not is_in_first_epoch(state, node):
        raise ArgumentError(
            "DatasetIterator.set_state",
            found=f"the epochs had {saved} elements when the position was saved, and have {lengths} now",
            rule="a position counts the elements of all epochs of `repeat`, which must keep their number (the "
            "argument of `take`, the number of examples)",
            remedy="build the dataset with the saved number of elements, or begin a new epoch: do not set the "
            "position, and restore the checkpoint without the iterator",
        )


def may_have_dropped(state: dict[str, Any], node: Node) -> bool:
    """Returns whether ``drop_remainder=True`` may have dropped examples before a saved position.

    `batch` and others with ``drop_remainder=True`` drop examples at the end of each epoch of a later `repeat`, and of
    the first part of a `concatenate`, another number with another batch size. False if the position is in the first
    epoch or part, in which nothing has been dropped.

    Args:
        state: The position, of a dataset with other batch sizes.
        node: The dataset.
    """
    begun = _ids_past_first_input(node, state["position"]) if state["count"] else set[int]()
    saved = _saved_steps(state, node)
    for repeat in nodes(node):
        ended = [step for step in _steps_that_may_have_ended(repeat, begun) if id(step) in saved]
        if not any(_DROPS in step.grouping or _DROPS in saved[id(step)][1] for step in ended):
            continue
        # What a step drops depends on the sizes of earlier ones, too: rebatch(6) leaves another number of batches.
        for step in ended:
            name, grouping = saved[id(step)]
            is_same = name == f"{step.name}{_size(step)}" and grouping == step.grouping
            if is_same or not (step.grouping or grouping or _has_size(step)):
                continue
            size = re.fullmatch(rf"{step.name}(\d+)", name)
            if not _keeps_all_examples(state["count"], int(size[1]) if size else 0, repeat, step):
                return True
    return False


def _saved_steps(state: dict[str, Any], node: Node) -> dict[int, tuple[str, str]]:
    """Returns the name with the size, and the grouping, that each operation had when a position was saved.

    The result is keyed by `id(operation)`. Operations correspond if they have the same place, counted from the source:
    another strategy can add an operation at the end.
    """
    steps = [step for step in nodes(node) if not isinstance(step, Prefetched)]
    names = str(state.get("pipeline")).split(" < ")[::-1]
    grouping = state.get("grouping", _grouping_of(node))  # positions of earlier versions have none
    dropped = [one for one in grouping if _DROPS in one]
    found: dict[int, tuple[str, str]] = {}
    for place, step in enumerate(reversed(steps)):
        if "grouped" in state:
            group = state["grouped"][place] if place < len(state["grouped"]) else ""
        elif step.grouping in grouping:
            group = step.grouping
        else:  # any batch may be the one that dropped
            group = dropped[0] if dropped and isinstance(step, Batched) else ""
        found[id(step)] = names[place] if place < len(names) else "", group
    return found


def _steps_that_may_have_ended(node: Node, begun: set[int]) -> list[Node]:
    """Returns the operations before a `repeat` or `concatenate` that may have reached the end of their data.

    `begun` has the ids of operations, including each `concatenate` whose first input may be finished
    (`_ids_past_first_input`).
    """
    if isinstance(node, Repeated) and node.count != 1:
        return list(nodes(node.parent))
    if isinstance(node, Concatenated) and not node.is_indexed and id(node) in begun:
        return [step for member in node.members[:-1] for step in nodes(member)]
    return []


def _ids_past_first_input(node: Node, position: Any) -> set[int]:
    """Returns the ids of all `concatenate` operations whose first input may be finished.

    The result also contains ids of other operations, which have no meaning.
    """
    if position is None:  # nothing has been read here
        return set()
    part = position.get("part") if isinstance(position, dict) else None
    if isinstance(node, Concatenated) and part is not None:
        members = node.members[:part]
        found = {id(step) for member in members for step in nodes(member)} | ({id(node)} if part else set())
        inner = _ids_past_first_input(node.members[part], position["inner"]) if part < len(node.members) else set()
        return found | inner
    if isinstance(node, Repeated) and part == 0:
        return _ids_past_first_input(node.parent, position["inner"])
    if isinstance(position, dict) and not isinstance(node, Concatenated | Repeated):
        if len(node.parents) == 1:
            below = position.get("parent", position) if part is None else position
            return _ids_past_first_input(node.parents[0], below)
        places = position.get("parents", ())
        if len(places) == len(node.parents):
            return {
                one
                for parent, place in zip(node.parents, places, strict=True)
                for one in _ids_past_first_input(parent, place)
            }
    return {id(step) for step in nodes(node)}  # not known


def _last(node: Node) -> Node:
    """Returns a pipeline's last operation other than `map`, `random_map` and `prefetch`."""
    while isinstance(node, Mapping | Prefetched):
        node = node.parent
    return node


def _keeps_all_examples(count: int, size: int, repeat: Node, step: Node) -> bool:
    """Returns whether neither the old nor the new batch size drops examples before a read position.

    `size` is the old batch size, and `step.size` the new one. ``drop_remainder=True`` drops the examples of an
    incomplete last batch. False if the answer is not known.
    """
    while isinstance(repeat, Repeated | Mapping | Prefetched):
        repeat = repeat.parent
    if isinstance(repeat, Concatenated):
        known = any(
            _last(member) is step for one in nodes(repeat) if isinstance(one, Concatenated) for member in one.members
        )
        if known and isinstance(step, Batched) and size and step.parent.cardinality >= 0:
            return step.parent.cardinality % size == step.parent.cardinality % step.size == 0
    if not count or not isinstance(step, Batched) or repeat is not step or not size:
        return not count
    examples = step.parent.cardinality
    kept = step.cardinality * step.size if step.drop_remainder else examples
    if examples >= 0 and examples % size == examples % step.size == 0:
        return True
    return 0 <= examples and count * size <= min(examples, kept)


def dropped_remainder_error(saved: str, own: str) -> ArgumentError:
    """Creates the error for a restore with another batch size, with which the dataset drops other examples.

    The dataset has ``drop_remainder=True`` before `repeat` or `concatenate`.
    """
    return ArgumentError(
        "DatasetIterator.set_state",
        found=f"the position was saved with {saved}, this dataset is {own}",
        rule="with another batch size a position counts examples; drop_remainder=True before `repeat` or "
        "`concatenate` drops another number of them in each epoch or part, so that some would be used twice and others "
        "never",
        remedy="restore the position with the saved batch size; .batch(...) after these steps fits every batch size",
    )
