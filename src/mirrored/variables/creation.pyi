"""Variable creation for type checkers: the metaclass has no `__call__` here, so that they see the constructor."""

import abc
import inspect
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

Creator = Callable[..., Any]

class VariableMeta(abc.ABCMeta):
    @property
    def __signature__(cls) -> inspect.Signature: ...

def variable_creator_scope(creator: Callable[..., Any]) -> AbstractContextManager[None]: ...
