"""Replication check: proves from a jaxpr which values are equal on all replicas.

`shard_map(check_vma=False)` trusts any claim in `out_specs` that a result is replicated. This module proves the claim
on the jaxpr of the replica body. A value is *replicated* if it is equal on every device, and *varying* if it may
differ:

- The per-replica batch, the replica ID and per-replica state are varying.
- Mirrored variables and constants are replicated.
- `psum`, `all_gather` and the operations built on them return replicated values.
- Any other operation returns a varying value if one of its operands is varying.

A device may run several virtual replicas, which are traced into one body. Their values must also be equal to each
other: computed by the same operations from the same inputs (`mirrored.analysis.value_numbering`).
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
    """Describes one constant or argument of a replica body.

    Attributes:
        label: Its name in error messages, such as ``"variable 'dense/kernel'"``.
        varies: Whether it may differ between devices.
        identity: A key for value numbering. Inputs with equal identities hold the same value. None means that no
            other input is known to hold the same value.
    """

    label: str
    varies: bool
    identity: Hashable = None

    @classmethod
    def constant(cls, value: Any) -> Origin:
        """Returns the origin of a concrete constant, which is replicated.

        Bit-identical constants of the same shape and dtype get equal identities.
        """
        return cls(
            f"a constant of shape {getattr(value, 'shape', ())}",
            varies=False,
            identity=("constant", constant_key(value)),
        )


class ReplicationCheck:
    """Answers which values of one replica body are replicated, and explains why a value is not.

    `check_replication` creates it. The varying analysis and the value numbering run when they are first needed.

    Args:
        jaxpr: The jaxpr of the body.
        inputs: One origin per constant and argument, in order.
        axis: The mesh axis of the replicas. None if there is only one device.
    """

    def __init__(self, jaxpr: Any, inputs: Sequence[Origin], axis: str | None) -> None:
        self._jaxpr = jaxpr
        self._variables = (*jaxpr.constvars, *jaxpr.invars)
        self._inputs = inputs
        self._flows = DataflowRules(axis)
        self._by_variable = dict(zip(self._variables, inputs, strict=True))

    @functools.cached_property
    def _varying(self) -> VaryingAnalysis:
        entering = [0 if origin.varies else None for origin in self._inputs]
        return VaryingAnalysis(self._jaxpr, entering, self._flows, self._variables)

    @functools.cached_property
    def _numbers(self) -> ValueNumbering:
        keys = [(i, None) if origin.identity is None else origin.identity for i, origin in enumerate(self._inputs)]
        return ValueNumbering(self._jaxpr, keys, self._flows)

    def check_collectives(self) -> None:
        """Raises an error if only some replicas would execute a collective of the body, which would deadlock.

        Raises:
            MergeError: A collective is inside a branch or loop whose condition differs between replicas.
        """
        if self._flows.axis is not None:
            CollectiveSites(self._flows).check(self._jaxpr, [origin.varies for origin in self._inputs])
        # Virtual replicas share fused loops and branches, and `SAME` marks their conditions. If value numbering cannot
        # prove a condition equal on all of them, the replicas may need different iterations or branches.
        if any(_contains(eqn, SAME) for eqn in self._jaxpr.eqns) and self._numbers.unequal:
            raise mismatched("a reduction over replicas", "a loop or branch", self._numbers.unequal[0])

    def varies(self, atom: Any) -> bool:
        """Returns whether a variable or literal of the body may differ between devices."""
        return self._flows.axis is not None and self._varying.distance(atom) is not None

    def same(self, atoms: Sequence[Any]) -> bool:
        """Returns whether the values in `atoms`, one per virtual replica, are equal to each other on all devices."""
        if all(0 in getattr(atom.aval, "shape", ()) for atom in atoms):
            return True  # Arrays without elements cannot differ, and collectives skip them.
        if any(map(self.varies, atoms)):
            return False
        return len(atoms) == 1 or len({self._numbers[atom] for atom in atoms}) == 1

    def path(self, atom: Any) -> list[PathStep]:
        """Returns the shortest path from a varying origin to `atom`, which is varying.

        A long path is shortened in the middle.
        """
        trail = self._varying.trail(atom)
        steps = trail.steps
        if trail.start is not None:
            label, variable = self._inputs[trail.start].label, self._variables[trail.start]
            steps = (PathStep(label, shape=shape_of(variable)), *steps)
        return shorten(steps)

    def divergence(self, atoms: Sequence[Any]) -> list[PathStep]:
        """Returns the path by which the values of a device's virtual replicas diverged.

        Each of the values is equal across devices; they differ only between the virtual replicas.
        """
        first = self._numbers[atoms[0]]
        other = next(atom for atom in atoms if self._numbers[atom] != first)
        finder = Divergence(self._jaxpr, self._numbers, self._flows, self._label)
        return shorten(finder.trail(atoms[0], other))

    def explain(self, atoms: Sequence[Any]) -> str:
        """Returns the path by which the replicas' values in `atoms` diverged, one step per line.

        Returns the empty string if they are equal.
        """
        differing = [atom for atom in atoms if self.varies(atom)]
        if not differing and self.same(atoms):
            return ""
        steps = self.path(differing[0]) if differing else self.divergence(atoms)
        return "\n".join(f"{'-> ' if i else '   '}{step}" for i, step in enumerate(steps))

    def _label(self, atom: Any) -> str:
        return f"the constant {atom.val}" if isinstance(atom, Literal) else self._by_variable[atom].label


def check_replication(jaxpr: Any, inputs: Sequence[Origin], *, axis: str | None = AXIS) -> ReplicationCheck:
    """Analyses which values of a replica body are equal on all replicas.

    Args:
        jaxpr: The jaxpr of the body, open or closed, traced with `axis` in its axis environment.
        inputs: The origins of the constants and arguments, in order. The constants of a closed jaxpr may be omitted.
        axis: The mesh axis of the replicas. None if there is only one device. Values then differ between virtual
            replicas only.

    Returns:
        The check, which computes its answers lazily.

    Example:
        >>> import jax
        >>> body = lambda w, g: (w - jax.lax.psum(g, "replica"), w - g)
        >>> closed = jax.make_jaxpr(body, axis_env=[("replica", 4)])(1.0, 2.0)
        >>> check = check_replication(closed, [Origin("variable 'w'", False), Origin("the gradient", True)])
        >>> [check.varies(result) for result in closed.jaxpr.outvars]
        [False, True]
        >>> check.path(closed.jaxpr.outvars[1])[0].what
        'the gradient'
    """
    missing = len(jaxpr.constvars) + len(jaxpr.invars) - len(inputs)
    constants = map(Origin.constant, constants_of(jaxpr)) if missing else ()
    return ReplicationCheck(jaxpr, (*constants, *inputs), axis)


def _contains(eqn: Any, name: str) -> bool:
    """Returns whether an equation, or a jaxpr nested in it, binds the primitive called `name`."""
    if eqn.primitive.name == name:
        return True
    inner = (jaxpr for value in eqn.params.values() for jaxpr in jaxprs_in(value))
    return any(_contains(one, name) for jaxpr in inner for one in jaxpr.eqns)


def shorten(steps: Sequence[PathStep]) -> list[PathStep]:
    """Joins adjacent steps of the same source line, and omits the middle of a long path."""
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
