"""Frameworks whose models make variables themselves: connected when a scope opens in a program that uses them."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping

_waiting: dict[str, str] = {}


def set_bridges(bridges: Mapping[str, str]) -> None:
    """Says which module of ours connects a framework, by the module that shows that the program uses it."""
    _waiting.update(bridges)


def connect() -> None:
    """Connects the frameworks that the program has imported since the last call."""
    for framework in [name for name in _waiting if name in sys.modules]:
        importlib.import_module(_waiting.pop(framework))
