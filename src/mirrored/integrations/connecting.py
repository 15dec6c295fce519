"""One call that connects the frameworks of a program, and one that disconnects them."""

from __future__ import annotations

import importlib
from typing import Final

from mirrored import patches
from mirrored.errors import ArgumentError
from mirrored.runtime import framework_bridges

_MODULES: Final = {"keras": "mirrored.integrations.keras", "flax": "mirrored.integrations.flax"}


def connect(*packages: str) -> None:
    """Changes what strategies need in frameworks; `mirrored/patches.py` lists it.

    A strategy's scope does this for the frameworks that the program uses. Connecting twice does nothing.

    Args:
        *packages: ``"keras"``, ``"flax"``. Default: those that the program has imported.

    Raises:
        ArgumentError: There is no such framework.
        MissingExtraError: It is not installed.

    Example:
        >>> from mirrored import integrations
        >>> integrations.connect("flax")
        >>> integrations.disconnect("flax")
    """
    if not packages:
        framework_bridges.connect()
    for package in packages:
        _check(package, _MODULES)
        importlib.import_module(_MODULES[package]).connect()


def disconnect(*packages: str) -> None:
    """Puts frameworks back as they were before `connect`.

    For a process that goes on without strategies: models of a strategy must not be used afterwards. The next scope
    connects again.

    Args:
        *packages: ``"keras"``, ``"flax"``; also ``"jax"``, the methods that `import mirrored.tf` gives arrays, and
            ``"tf.keras"``, which `mirrored.tf` then does without. Default: the frameworks.

    Raises:
        ArgumentError: There is no such package.

    Example:
        >>> from mirrored import integrations
        >>> integrations.disconnect("keras")
    """
    for package in packages or tuple(_MODULES):
        _check(package, patches.LISTED)
        patches.undo(package)


def _check(package: str, known: object) -> None:
    names = list(known)  # type: ignore[call-overload]
    if package not in names:
        raise ArgumentError(
            "mirrored.integrations.connect",
            found=f"the package {package!r}",
            rule=f"the packages are {', '.join(names)}",
            remedy="name one of these",
        )
