"""The form in which a checkpoint stores a value."""

from __future__ import annotations

import dataclasses
from typing import Any, Final

PYTHON: Final = "python"  # the dtype of Python numbers


@dataclasses.dataclass(frozen=True)
class Saved:
    """A value stored in a checkpoint, with its kind (array, number, ...), shape and dtype.

    Attributes:
        kind: ``array``, ``components`` (one per replica, in the first axis), ``key`` (a random key's data),
            ``key components``, ``number`` or ``position`` (JSON-like state of an iterator or generator).
        shape: The shape of an array, or of one component.
        dtype: The name of the NumPy dtype of an array or scalar; for keys, the name of their implementation; for a
            Python number, ``python``. Empty for numbers in checkpoints of earlier versions.
        value: The array on this host, the number, or the position. None for an array without data, and its stored
            shape if the description was read from a manifest.
        components: The values of all replicas, in the first axis, of which `value` is the aggregate, if they are also
            stored. Their number, if the description was read from a manifest.
        key: The key of a number in a dict of Python, if the key is a text or an int; otherwise None.
        array_type: The type of an array that is no variable: ``numpy``, ``jax`` or ``weak jax``. Empty for variables,
            and in checkpoints of earlier versions.
    """

    kind: str
    shape: tuple[int, ...] = ()
    dtype: str = ""
    value: Any = None
    components: Any = None
    key: str | int | None = None
    array_type: str = ""

    @property
    def is_array(self) -> bool:
        """Whether the value is stored in the array files, as opposed to the manifest file."""
        return self.kind in ("array", "components", "key", "key components")

    @property
    def is_key(self) -> bool:
        """Whether the value is the raw data of typed PRNG keys (`jax.random.key`)."""
        return self.kind in ("key", "key components")

    @property
    def is_by_component(self) -> bool:
        """Whether a separate value is stored for each replica."""
        return self.kind in ("components", "key components")

    def one(self) -> Any:
        """Returns the value, or the first replica's value if a separate value is stored for each replica."""
        return self.value[0] if self.is_by_component else self.value

    def __str__(self) -> str:
        """Formats the dtype and shape: ``float32[2, 3]``."""
        shape = f"[{', '.join(map(str, self.shape))}]"
        if self.kind == "array":
            return f"{self.dtype}{shape}"
        if self.kind == "components":
            return f"{self.dtype}{shape} for each replica"
        if self.is_key:
            return f"a {self.dtype} key{shape}{' for each replica' if self.is_by_component else ''}"
        return f"a {self.kind}{f' of {self.dtype}' if self.dtype not in ('', PYTHON) else ''}"
