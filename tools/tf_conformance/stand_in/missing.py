"""Names of TensorFlow that neither the facade nor the stand-in has."""

from __future__ import annotations

from typing import Any, NoReturn


class MissingNameError(Exception):
    """A test uses a name that neither the facade nor the stand-in has."""


class MissingName:
    """A name that is missing: it may be imported and have attributes, but any use raises `MissingNameError`.

    Args:
        name: The dotted name.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def _refuse(self, *args: object, **kwargs: object) -> NoReturn:
        raise MissingNameError(self._name)

    __call__ = __iter__ = __next__ = __enter__ = __exit__ = __len__ = __getitem__ = __add__ = __or__ = __bool__ = (
        _refuse
    )
    __instancecheck__ = _refuse

    def __getattr__(self, name: str) -> MissingName:
        if name.startswith("__") or name in ("_asdict", "_fields", "_make"):
            raise AttributeError(name)
        return MissingName(f"{self._name}.{name}")

    def __mro_entries__(self, bases: tuple[object, ...]) -> tuple[type, ...]:
        name = self._name

        def refuse(instance: object, *args: object, **kwargs: object) -> NoReturn:
            raise MissingNameError(name)

        members: dict[str, Any] = {"__init__": refuse}
        return (type("MissingBase", (), members),)

    def __hash__(self) -> int:
        return id(self)

    def __repr__(self) -> str:
        return f"<missing: {self._name}>"
