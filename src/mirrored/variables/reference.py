"""`Reference`: a hashable reference to a variable, compared by identity."""

from __future__ import annotations

from typing import Any


class Reference:
    """A reference to a variable that is hashed and compared by identity, for use as a dictionary key.

    `Variable.ref()` creates it. Variables themselves compare elementwise and are not hashable.

    Example:
        >>> import mirrored as mr
        >>> v = mr.Variable(1.0)
        >>> {v.ref(): "weight"}[v.ref()]
        'weight'
        >>> v.ref().deref() is v
        True

    TensorFlow: the result of `tf.Variable.ref`.
    """

    __slots__ = ("_variable",)

    def __init__(self, variable: Any) -> None:
        self._variable = variable

    def deref(self) -> Any:
        """The variable."""
        return self._variable

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Reference) and other._variable is self._variable

    def __hash__(self) -> int:
        return id(self._variable)

    def __repr__(self) -> str:
        return f"<Reference to {self._variable.name!r}>"
