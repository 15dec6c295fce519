"""The proof of synchrony: is a value the same on all replicas?

`shard_map(check_vma=False)` believes any claim that a result is replicated, so the claim is proved here, on the jaxpr
of the body: shares of the batch, the replica's number and per-replica state differ between devices; mirrored state
does not; `psum`, `all_gather` and what is built on them make a value equal; anything else differs if an operand does.
With several local replicas traced into one body, their values must be one value too: computed by the same operations
from the same inputs (`mirrored.analysis.value_numbering`).
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Hashable, Sequence
from itertools import groupby
from typing import Any, Final

from mirrored._jax.jaxprs import Literal, constants_of, jaxprs_in
from mirrored._jax.local_collectives import SAME
from mirrored.analysis.dataflow import DataflowRules
from mirrored.analysis.divergence import Divergence
from mirrored.analysis.mismatched_collectives import CollectiveSites, mismatched
from mirrored.analysis.value_numbering import ValueNumbering, constant_key
from mirrored.analysis.varying import PathStep, VaryingAnalysis, shape_of
from mirrored.topology.device_assignment import AXIS

_LONGEST_PATH: Final = 8
_NAMES_PER_LINE: Final = 3


@dataclasses.dataclass(frozen=True)
class Origin:
    """What an input of the body holds.

    Attributes:
        label: What to call it in a message: ``"variable 'dense/kernel'"``.
        varies: Whether it differs between devices.
        identity: Inputs with equal identities hold the same value; None: a value of its own.
    """

    label: str
    varies: bool
    identity: Hashable = None

    @classmethod
    def constant(cls, value: Any) -> Origin:
        """A concrete constant: the same on every device, and the same value as any constant of equal bits."""
        return cls(
            f"a constant {getattr(value, 'shape', ())}", varies=False, identity=("constant", constant_key(value))
        )


class ReplicationCheck:
    """What is known of the values of one body. Made by `check_replication`.

    Args:
        jaxpr: The body.
        inputs: One per constant and argument, in order.
        axis: The mesh axis, None if there is one device only.
    """

    def __init__(self, jaxpr: Any, inputs: Sequence[Origin], axis: str | None) -> None:
        self._jaxpr = jaxpr
        self._variables = (*jaxpr.constvars, *jaxpr.invars)
        self._inputs = inputs
        self._flows = DataflowRules(axis)
        self._by_variable = dict(zip(self._variables, inputs, strict=True))

    @functools.cached_property
    def _spread(self) -> VaryingAnalysis:
        entering = [0 if origin.varies else None for origin in self._inputs]
        return VaryingAnalysis(self._jaxpr, entering, self._flows, self._variables)

    @functools.cached_property
    def _numbers(self) -> ValueNumbering:
        keys = [(i, None) if origin.identity is None else origin.identity for i, origin in enumerate(self._inputs)]
        return ValueNumbering(self._jaxpr, keys, self._flows)

    def check_meetings(self) -> None:
        """Refuses a body in which not all devices would come to a collective.

        Raises:
            MergeError: A collective sits under a condition that differs between devices.
        """
        if self._flows.axis is not None:
            CollectiveSites(self._flows).check(self._jaxpr, [origin.varies for origin in self._inputs])
        if any(_contains(eqn, SAME) for eqn in self._jaxpr.eqns) and self._numbers.unequal:
            raise mismatched("a reduction over replicas", "a loop or branch", self._numbers.unequal[0])

    def varies(self, atom: Any) -> bool:
        """Whether a variable (or literal) of the body may differ between devices."""
        return self._flows.axis is not None and self._spread.distance(atom) is not None

    def same(self, atoms: Sequence[Any]) -> bool:
        """Whether the local replicas' values are one value, and that the same on all devices."""
        if all(0 in getattr(atom.aval, "shape", ()) for atom in atoms):
            return True  # nothing in it that could differ, and collectives leave it out
        if any(map(self.varies, atoms)):
            return False
        return len(atoms) == 1 or len({self._numbers[atom] for atom in atoms}) == 1

    def path(self, atom: Any) -> list[PathStep]:
        """How a value that differs between devices came to do so, from its origin; long paths are cut in the middle."""
        trail = self._spread.trail(atom)
        steps = trail.steps
        if trail.start is not None:
            label, variable = self._inputs[trail.start].label, self._variables[trail.start]
            steps = (PathStep(label, shape=shape_of(variable)), *steps)
        return shorten(steps)

    def divergence(self, atoms: Sequence[Any]) -> list[PathStep]:
        """How values that are equal across devices came to differ between the local replicas of a device."""
        first = self._numbers[atoms[0]]
        other = next(atom for atom in atoms if self._numbers[atom] != first)
        finder = Divergence(self._jaxpr, self._numbers, self._flows, self._label)
        return shorten(finder.trail(atoms[0], other))

    def explain(self, atoms: Sequence[Any]) -> str:
        """How the local replicas' values of one thing came to differ, one step a line; empty if they are the same."""
        differing = [atom for atom in atoms if self.varies(atom)]
        if not differing and self.same(atoms):
            return ""
        steps = self.path(differing[0]) if differing else self.divergence(atoms)
        return "\n".join(f"{'-> ' if i else '   '}{step}" for i, step in enumerate(steps))

    def _label(self, atom: Any) -> str:
        return f"the constant {atom.val}" if isinstance(atom, Literal) else self._by_variable[atom].label


def check_replication(jaxpr: Any, inputs: Sequence[Origin], *, axis: str | None = AXIS) -> ReplicationCheck:
    """Analyses which values of a replica body are the same on all replicas.

    Args:
        jaxpr: The body, open or closed, traced with `axis` in its axis environment.
        inputs: What each constant and argument holds, in order. The constants of a closed jaxpr may be left out.
        axis: The mesh axis of the replicas; None if there is one device: nothing differs between devices then, only
            between the local replicas.

    Returns:
        The analysis, which answers lazily.

    Example:
        >>> import jax
        >>> body = lambda w, g: (w - jax.lax.psum(g, "replica"), w - g)
        >>> closed = jax.make_jaxpr(body, axis_env=[("replica", 4)])(1.0, 2.0)
        >>> analysis = analyse(closed, [Origin("variable 'w'", False), Origin("the gradient", True)])
        >>> [analysis.varies(result) for result in closed.jaxpr.outvars]
        [False, True]
        >>> analysis.path(closed.jaxpr.outvars[1])[0].what
        'the gradient'
    """
    missing = len(jaxpr.constvars) + len(jaxpr.invars) - len(inputs)
    constants = map(Origin.constant, constants_of(jaxpr)) if missing else ()
    return ReplicationCheck(jaxpr, (*constants, *inputs), axis)


def _contains(eqn: Any, name: str) -> bool:
    """Whether there is a primitive of this name in an equation, at any depth."""
    if eqn.primitive.name == name:
        return True
    inner = (jaxpr for value in eqn.params.values() for jaxpr in jaxprs_in(value))
    return any(_contains(one, name) for jaxpr in inner for one in jaxpr.eqns)


def shorten(steps: Sequence[PathStep]) -> list[PathStep]:
    """Joins neighbouring steps of one line of code, and cuts a long path in the middle."""
    joined = [_join(list(group)) for _, group in groupby(steps, key=lambda step: step.where or id(step))]
    if len(joined) <= _LONGEST_PATH:
        return joined
    head, tail = _LONGEST_PATH // 2, _LONGEST_PATH // 2 - 1
    cut = PathStep(f"... {len(joined) - head - tail} more ...")
    return [*joined[:head], cut, *joined[-tail:]]


def _join(steps: Sequence[PathStep]) -> PathStep:
    names = list(dict.fromkeys(step.what for step in reversed(steps)))[::-1]
    if len(names) > _NAMES_PER_LINE:
        names = [names[0], "...", names[-1]]
    return dataclasses.replace(steps[-1], what=", ".join(names))
