"""The context in which a checkpoint's traversal visits an object: which of its values are state."""

from __future__ import annotations

import dataclasses

from mirrored.checkpoint.objects import Part


@dataclasses.dataclass(frozen=True)
class Zone:
    """Traversal context that decides whether a plain number is state, which a checkpoint saves, or configuration.

    Numbers are state as parts of the checkpoint itself, in dicts, lists and tuples of it, and as attributes of objects
    that hold no variables. `holders` are the names of the objects around a number, outermost first; if any of them
    holds variables, the number is configuration, as that of a model. A checkpoint that is a part is no such object:
    `is_inner` is inside of one.

    Arrays in the arguments of a `functools.partial`, and in tuples there, are constants. Objects in attributes of Keras
    layers and of optimizers have `only_variables`.

    `unshared` are the ids of the innermost objects around that may be visited more than once, as tuples and frozen
    dataclasses may. `since` is the version of the newest part around.
    """

    numbers: bool
    holders: tuple[str, ...] = ()
    is_constant: bool = False
    only_variables: bool = False
    is_inner: bool = False
    unshared: tuple[int, ...] = ()
    since: int = 0


def zone_of(part: Part, zone: Zone) -> Zone:
    """Returns the zone in which an object with the given zone has a part."""
    inside = Zone(numbers=False, only_variables=True, unshared=zone.unshared) if part.only_variables else zone
    return dataclasses.replace(inside, since=max(zone.since, part.since)) if part.since else zone
