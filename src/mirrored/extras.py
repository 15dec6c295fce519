"""Imports optional packages on demand, with an error that says how to install a missing one."""

from __future__ import annotations

import importlib
from typing import Any

from mirrored.errors import MissingExtraError


def load(module: str, *, called: str, extra: str, package: str | None = None, otherwise: str = "") -> Any:
    """Imports a module of an optional package; if the package is missing, raises an error with the install command.

    Args:
        module: The dotted name of the module.
        called: What needs it, as the user wrote it: ``"tf.summary.create_file_writer"``.
        extra: The extra of mirrored that installs it.
        package: The name of the package in indexes. Default: the first part of `module`.
        otherwise: An alternative to installing it: ``"give override_client"``.

    Raises:
        MissingExtraError: The module cannot be imported.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = package or module.partition(".")[0]
        raise MissingExtraError(
            called,
            found=f"the package {package} cannot be imported: {error}",
            rule=f'this needs the extra "{extra}"',
            remedy=f"run pip install 'mirrored[{extra}]'" + (f", or {otherwise}" if otherwise else ""),
        ) from error
