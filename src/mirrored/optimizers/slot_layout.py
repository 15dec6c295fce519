"""Maps the leaves of an optax state to slots: per variable, or shared by variables that are updated together.

optax keeps one state for a whole tree of parameters. Here the tree is a dict from variable name to array, and the
state of any list of variables is assembled from slots. A leaf under a variable's name belongs to that variable. Every
other leaf (a step counter, a random key) is shared.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
import optax

from mirrored._typing import Operand
from mirrored.errors import MirroredError, StructureError

Path = tuple[Any, ...]
# Words of JAX's messages about two pytrees that differ, up to JAX 0.10 and from then on.
_OF_STRUCTURES: Final = ("mismatch", "pytree structure error")


@dataclasses.dataclass(frozen=True)
class SlotLeaf:
    """Description of one array of an optax state: its path, variable, shape and dtype.

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
        """The short name of this state array, used in variable names: ``"mu"`` for path ``"[0].mu"``."""
        parts = self.address.replace("[", ".").replace("]", "").replace("'", "").split(".")
        return next((part for part in reversed(parts) if part and not part.isdigit()), "state")


@dataclasses.dataclass(frozen=True)
class SlotLayout:
    """Describes the arrays and the tree structure of the optax state for given variables."""

    treedef: jax.tree_util.PyTreeDef
    leaves: tuple[SlotLeaf, ...]

    def pack(self, arrays: Sequence[jax.Array]) -> Any:
        """Builds the optax state from the arrays stored in the optimizer's variables."""
        return self.treedef.unflatten(
            array if leaf.random is None else jax.random.wrap_key_data(array, impl=leaf.random)
            for leaf, array in zip(self.leaves, arrays, strict=True)
        )

    def unpack(self, state: optax.OptState) -> list[jax.Array]:
        """Flattens an optax state to the arrays that slot variables store; random keys become their key data.

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
                rule="an update must preserve the structure and the shapes of the state",
                remedy="return a state with the structure that the transform's init returns",
            )
        return [value.astype(leaf.dtype) for value, leaf in zip(stored, self.leaves, strict=True)]


def lay_out(transform: optax.GradientTransformation, parameters: Mapping[str, jax.ShapeDtypeStruct]) -> SlotLayout:
    """Returns the `SlotLayout` of the optax state for given parameters, computed from their shapes and dtypes only.

    Raises:
        StructureError: The transform does not take a dict of these parameters.
    """
    random: list[str | None] = []

    def init(arrays: optax.Params) -> Any:
        try:
            state = transform.init(arrays)
        except (ValueError, KeyError) as error:
            is_structure = isinstance(error, KeyError) or any(word in str(error) for word in _OF_STRUCTURES)
            if isinstance(error, MirroredError) or not is_structure:
                raise
            raise _init_error(error, parameters) from error
        random.extend(str(jax.random.key_impl(leaf)) if _is_key(leaf) else None for leaf in jax.tree.leaves(state))
        return jax.tree.map(_plain, state)

    named = {_Name(name): parameter for name, parameter in parameters.items()}
    found, treedef = jax.tree_util.tree_flatten_with_path(jax.eval_shape(init, named))
    by_variable = _dicts_by_variable([path for path, _ in found], parameters)
    leaves = []
    for (path, leaf), kind in zip(found, random, strict=True):
        at = _variable_at(path, by_variable)
        address = jax.tree_util.keystr(path if at is None else (*path[:at], *path[at + 1 :]))
        leaves.append(SlotLeaf(address, None if at is None else str(path[at].key), tuple(leaf.shape), leaf.dtype, kind))
    return SlotLayout(treedef, tuple(leaves))


def _init_error(error: Exception, parameters: Mapping[str, Any]) -> StructureError:
    names = ", ".join(map(repr, list(parameters)[:4])) + (", ..." if len(parameters) > 4 else "")
    return StructureError(
        "Optimizer.apply_gradients",
        found=f"the transform's init raised {type(error).__name__}: {str(error).partition(chr(10))[0]}",
        rule=f"a transform gets the variables as one flat dict by name ({{{names}}}), not as the model's tree",
        remedy="give optax.partition, multi_transform or masked a function of that dict, such as lambda params: {name: "
        "'decay' if name.endswith('kernel') else 'plain' for name in params}, or a dict with these keys",
    )


def _is_key(leaf: object) -> bool:
    return isinstance(leaf, jax.Array) and bool(jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key))


def _plain(leaf: Operand) -> Any:
    if isinstance(leaf, np.ndarray):
        return leaf
    return jax.random.key_data(leaf) if _is_key(leaf) else jnp.asarray(leaf)


class _Name(str):
    """A string type for dict keys that are names of variables.

    The type tells such a key apart from an equal string in an optax state.
    """

    __slots__ = ()


def _dicts_by_variable(paths: Sequence[Path], parameters: Mapping[str, Any]) -> set[Path]:
    """Returns the paths of the dicts in an optax state that are keyed by variable names.

    All keys of such a dict are names of variables, as `_Name` or plain strings.

    Other dicts (the hyperparameters of `optax.inject_hyperparams`, the labels of `optax.partition`) may also have keys
    that are names of variables (``"b1"``). They have other keys too, or contain the variables deeper inside.
    """
    keys: dict[Path, set[Any]] = {}
    outer: set[Path] = set()
    for path in paths:
        at = _marked_at(path)
        outer.update(path[:above] for above in range(at or 0))
        for place, entry in enumerate(path):
            if isinstance(entry, jax.tree_util.DictKey):
                keys.setdefault(path[:place], set()).add(entry.key)
    return {path for path, names in keys.items() if names <= parameters.keys() and path not in outer}


def _marked_at(path: Path) -> int | None:
    places = reversed(range(len(path)))
    return next((at for at in places if isinstance(getattr(path[at], "key", None), _Name)), None)


def _variable_at(path: Path, by_variable: set[Path]) -> int | None:
    """Returns the position in `path` of the dict key that is a model variable's name; None if there is no such key."""
    marked = _marked_at(path)
    if marked is not None:
        return marked
    return next((at for at in reversed(range(len(path))) if path[:at] in by_variable), None)
