"""`VariableOperators`: the operators of arrays for variables; in-place ones (``variable += value``) are refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NoReturn

from mirrored.errors import NotSupportedError
from mirrored.values.operators import ArrayOperators

_IN_PLACE: Final = {
    **{"iadd": "+", "isub": "-", "imul": "*", "itruediv": "/", "ifloordiv": "//", "imod": "%", "ipow": "**"},
    **{"imatmul": "@", "ilshift": "<<", "irshift": ">>", "iand": "&", "ixor": "^", "ior": "|"},
}
_METHODS: Final = {"+": "assign_add(value)", "-": "assign_sub(value)"}


def _refused(name: str, sign: str) -> Callable[[Any, object], NoReturn]:
    def in_place(self: Any, other: object) -> NoReturn:
        raise NotSupportedError(
            f"{self.name}.__{name}__",
            found=f"`variable {sign}= value` with a variable is not supported",
            rule="variables have no in-place operators: Python would replace the name or the attribute by the array "
            f"`variable {sign} value`, and the variable would keep its value",
            remedy=f"variable.{_METHODS.get(sign, f'assign(variable {sign} value)')}; or "
            f"`out = variable {sign} value` for a new array",
        )

    return in_place


class VariableOperators(ArrayOperators):
    """`ArrayOperators` without in-place operators, which would replace a variable by an array.

    TensorFlow: the same for ``+=``, ``-=``, ``*=``, ``/=`` and ``**=``; the others replace the variable there.
    """

    __slots__ = ()

    for _name, _sign in _IN_PLACE.items():
        locals()[f"__{_name}__"] = _refused(_name, _sign)
    del _name, _sign
