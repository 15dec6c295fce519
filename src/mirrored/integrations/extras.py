"""Loading an optional package, or the error that says how to get it."""

from __future__ import annotations

import importlib
from typing import Any

from mirrored.errors import MissingExtraError


def load(module: str, *, extra: str) -> Any:
    """An optional module.

    Raises:
        MissingExtraError: It is not installed; names the extra.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        raise MissingExtraError(
            f"mirrored.integrations.{package}",
            found=f"{module} cannot be imported: {error}",
            rule=f'support for {package} needs the extra "{extra}"',
            remedy=f"pip install 'mirrored[{extra}]'",
        ) from error
