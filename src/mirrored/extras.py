"""Optional packages: imported where they are needed, or the error that says how to get them."""

from __future__ import annotations

import importlib
from typing import Any

from mirrored.errors import MissingExtraError


def load(module: str, *, called: str, extra: str, package: str | None = None, otherwise: str = "") -> Any:
    """An optional module.

    Args:
        module: Its name, with dots.
        called: What needs it, as the user wrote it: ``"tf.summary.create_file_writer"``.
        extra: The extra of mirrored that brings it.
        package: The package as indexes call it; default the first part of `module`.
        otherwise: What can be done instead of installing it: ``"give override_client"``.

    Raises:
        MissingExtraError: It cannot be imported.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = package or module.partition(".")[0]
        raise MissingExtraError(
            called,
            found=f"the package {package} cannot be imported: {error}",
            rule=f'this needs the extra "{extra}"',
            remedy=f"pip install 'mirrored[{extra}]'" + (f", or {otherwise}" if otherwise else ""),
        ) from error
