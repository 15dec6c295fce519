"""Bridges to frameworks. They depend on the core, never the reverse.

What they change in the frameworks is listed in `mirrored/patches.py`. It is changed when a strategy's scope opens in a
program that uses the framework, in whatever order things are imported, and `disconnect` takes it back.
"""

from mirrored.integrations.connecting import connect as connect
from mirrored.integrations.connecting import disconnect as disconnect

__all__ = ["connect", "disconnect"]
