"""Patches Keras and Flax so that their models work with strategies, and removes the patches."""

from __future__ import annotations

import importlib
from typing import Final

from mirrored import patches
from mirrored.errors import ArgumentError
from mirrored.runtime import hooks

_MODULES: Final = {"keras": "mirrored.integrations.keras", "flax": "mirrored.integrations.flax"}
_REMOVABLE: Final = [package for package in patches.LISTED if package != "jax functions"]


def connect(*packages: str) -> None:
    """Patches Keras and Flax so that their models work with `mirrored` strategies.

    Opening a strategy's scope does this for the frameworks that the program uses. A second call has no effect.
    `mirrored/patches.py` lists the patches.

    Args:
        *packages: ``"keras"``, ``"flax"``. Default: the frameworks that the program has imported.

    Raises:
        ArgumentError: A name is not a supported framework.
        MissingExtraError: A framework is not installed.

    Example:
        >>> from mirrored import integrations
        >>> integrations.connect("flax")
        >>> integrations.disconnect("flax")
    """
    if not packages:
        hooks.connect()
    for package in packages:
        _check(package, _MODULES)
        importlib.import_module(_MODULES[package]).connect()


def disconnect(*packages: str) -> None:
    """Removes the patches that `connect` applied to Keras and Flax.

    Use it in a process that continues without strategies. Models of a strategy must not be used afterwards. The next
    scope connects the frameworks again.

    Args:
        *packages: ``"keras"``, ``"flax"``; also ``"jax"`` (the methods that `import mirrored.tf` adds to arrays) and
            ``"tf.keras"`` (the patches of `import mirrored.tf.keras`). Default: ``"keras"`` and ``"flax"``.

    Raises:
        ArgumentError: A name is not a supported package.

    Example:
        >>> from mirrored import integrations
        >>> integrations.disconnect("keras")
    """
    for package in packages or tuple(_MODULES):
        _check(package, _REMOVABLE)
        patches.undo(package)


def _check(package: str, known: object) -> None:
    names = list(known)  # type: ignore[call-overload]
    if package not in names:
        raise ArgumentError(
            "mirrored.integrations.connect",
            found=f"the package {package!r} is unknown",
            rule=f"a package must be one of {', '.join(names)}",
            remedy="pass one of these names",
        )
