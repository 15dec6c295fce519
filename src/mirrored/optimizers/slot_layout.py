"""Maps the leaves of an optax state to slots: per variable, or shared by variables that are updated together.

optax keeps one state for a whole tree of parameters. Here the tree is a dict from variable name to array, and the state
of any list of variables is assembled from slots. A leaf under a variable's name belongs to that variable. Every other
leaf (a step counter, a random key) is shared.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax

from mirrored.errors import StructureError

Path = tuple[Any, ...]


@dataclasses.dataclass(frozen=True)
class SlotLeaf:
    """One leaf of an optax state.

    Attributes:
        address: Its path in the state, without the variable's name: ``"[0].mu"``.
        variable: The name of the variable that it belongs to; None for a shared leaf.
        shape: Its shape as stored.
        dtype: Its dtype as stored.
        random: The implementation of a random key, which is stored as its key data; None for an ordinary array.
    """

    address: str
    variable: str | None
    shape: tuple[int, ...]
    dtype: Any
    random: str | None = None

    @property
    def label(self) -> str:
        """The last named part of the address, used in variable names: ``"mu"``."""
        parts = self.address.replace("[", ".").replace("]", "").replace("'", "").split(".")
        return next((part for part in reversed(parts) if part and not part.isdigit()), "state")


@dataclasses.dataclass(frozen=True)
class SlotLayout:
    """The leaves of a transform's state for some variables, in optax's order."""

    treedef: jax.tree_util.PyTreeDef
    leaves: tuple[SlotLeaf, ...]

    def pack(self, arrays: Sequence[jax.Array]) -> Any:
        """Returns the optax state from the stored array of each leaf."""
        return self.treedef.unflatten(
            array if leaf.random is None else jax.random.wrap_key_data(array, impl=leaf.random)
            for leaf, array in zip(self.leaves, arrays, strict=True)
        )

    def unpack(self, state: Any) -> list[jax.Array]:
        """Returns the array to store for each leaf of an optax state, with the shapes and dtypes of `leaves`.

        Raises:
            StructureError: The state has another structure, or a leaf has another shape.
        """
        values, treedef = jax.tree.flatten(state)
        stored = [_plain(value) for value in values]
        if treedef != self.treedef or [value.shape for value in stored] != [leaf.shape for leaf in self.leaves]:
            raise StructureError(
                "Optimizer.apply_gradients",
                found=f"the transform's state is\n{treedef}\nof shapes {[value.shape for value in stored]} after an "
                f"update, and\n{self.treedef}\nof shapes {[leaf.shape for leaf in self.leaves]} before it",
                rule="an update preserves the structure and the shapes of the state",
                remedy="return a state with the structure that the transform's init returns",
            )
        return [value.astype(leaf.dtype) for value, leaf in zip(stored, self.leaves, strict=True)]


def lay_out(transform: optax.GradientTransformation, parameters: Mapping[str, jax.ShapeDtypeStruct]) -> SlotLayout:
    """Finds the state that `transform` keeps for these parameters by abstract evaluation; computes nothing."""
    random: list[str | None] = []

    def init(arrays: Any) -> Any:
        state = transform.init(arrays)
        random.extend(str(jax.random.key_impl(leaf)) if _is_key(leaf) else None for leaf in jax.tree.leaves(state))
        return jax.tree.map(_plain, state)

    found, treedef = jax.tree_util.tree_flatten_with_path(jax.eval_shape(init, dict(parameters)))
    siblings = _siblings([path for path, _ in found])
    leaves = []
    for (path, leaf), kind in zip(found, random, strict=True):
        at = _variable_at(path, parameters, siblings)
        address = jax.tree_util.keystr(path if at is None else (*path[:at], *path[at + 1 :]))
        leaves.append(SlotLeaf(address, None if at is None else path[at].key, tuple(leaf.shape), leaf.dtype, kind))
    return SlotLayout(treedef, tuple(leaves))


def _is_key(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array) and bool(jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key))


def _plain(leaf: Any) -> jax.Array:
    return jax.random.key_data(leaf) if _is_key(leaf) else jnp.asarray(leaf)


def _siblings(paths: Sequence[Path]) -> dict[Path, set[Any]]:
    """Returns the keys of each dict in the state, by the dict's path."""
    keys: dict[Path, set[Any]] = {}
    for path in paths:
        for at, entry in enumerate(path):
            if isinstance(entry, jax.tree_util.DictKey):
                keys.setdefault(path[:at], set()).add(entry.key)
    return keys


def _variable_at(path: Path, parameters: Mapping[str, Any], siblings: Mapping[Path, set[Any]]) -> int | None:
    """Returns the position in `path` of a variable's name: a key of the innermost dict with only variables as keys.

    Other dicts (the hyperparameters of `optax.inject_hyperparams`, the labels of `optax.partition`) may also contain a
    key that is a variable's name (``"b1"``). They have other keys too, or contain the variables deeper inside.
    """
    for at in reversed(range(len(path))):
        entry = path[at]
        if isinstance(entry, jax.tree_util.DictKey) and siblings[path[:at]] <= parameters.keys():
            return at
    return None
