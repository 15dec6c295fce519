"""Values that a checkpoint does not save, such as texts, dates and sets. A restore reports those that have changed.

A text in a program is usually configuration, such as a path, which a restore must not replace. It can also be state,
such as the phase of a training, so that the manifest has a description of each text, which a restore compares.
"""

from __future__ import annotations

import array
import datetime
import decimal
import enum
import fractions
import hashlib
import logging
import pathlib
import uuid
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from mirrored.checkpoint.json_state import encode, to_json
from mirrored.checkpoint.saved_numbers import is_number

LIMIT: Final = 10_000  # descriptions in one checkpoint: a vocabulary can have millions of texts
_LONGEST: Final = 100
_SHOWN: Final = 5
_OF_PYTHON: Final[tuple[type, ...]] = (
    datetime.timedelta, decimal.Decimal, fractions.Fraction, uuid.UUID, pathlib.PurePath,
)  # fmt: skip
_KINDS: Final[tuple[type, ...]] = (
    str, bytes, type(None), enum.Enum, datetime.date, datetime.time, np.generic, bytearray, array.array, *_OF_PYTHON,
)  # fmt: skip

_log: Final = logging.getLogger("mirrored.checkpoint")


def description_of(value: object) -> str | None:
    """Returns a text that is equal for equal values in every process; None for values that are not of these kinds.

    Sets of more than `LIMIT` items have none either, nor sets of other objects, nor values whose methods fail: a save
    must not depend on the `__repr__` of the program's classes.

    Args:
        value: An attribute or item of an object of the program, other than a number that the checkpoint saves.
    """
    try:
        return _description(value)
    except Exception:
        return None


def _description(value: object) -> str | None:
    if isinstance(value, (np.random.BitGenerator, np.random.SeedSequence)):
        # Not the `repr` of the state, in which arrays are printed as `numpy.set_printoptions` says.
        return _shortened(f"{type(value).__name__}({to_json(encode(value.state, 'a bit generator'))})")
    if isinstance(value, (set, frozenset)):
        if len(value) > LIMIT or not all(is_number(one) or isinstance(one, _KINDS) for one in value):
            return None
        return _shortened(f"{{{', '.join(sorted(map(_text, value)))}}}")
    return _shortened(_text(value)) if isinstance(value, _KINDS) else None


def _text(value: object) -> str:
    """Returns a text for a value, made by the methods of its kind: those of a subclass can print its address."""
    if isinstance(value, str):
        value = str.__str__(value)
    elif isinstance(value, (bytes, bytearray)):
        value = bytes(memoryview(value))
    if isinstance(value, (str, bytes, array.array)) and len(value) > _LONGEST:
        return f"{value[:_LONGEST]!r}... ({_digest(value)})"
    if isinstance(value, enum.Enum):
        return f"{type(value).__name__}.{value._name_ or value._value_}"
    if isinstance(value, (datetime.date, datetime.time)):
        return value.isoformat()  # not the `repr`, which has that of the time zone
    kind: Any = next((kind for kind in _OF_PYTHON if isinstance(value, kind)), type(value))
    return str(kind.__repr__(value))


def _digest(value: str | bytes | array.array[Any]) -> str:
    data = value.encode(errors="backslashreplace") if isinstance(value, str) else bytes(value)
    return hashlib.sha256(data).hexdigest()[:16]


def _shortened(text: str) -> str:
    return text if len(text) <= 2 * _LONGEST else f"{text[:_LONGEST]}... ({_digest(text)})"


def log_unrestored(
    called: str, place: str, saved: Mapping[str, str], here: Mapping[str, str | None], held: set[str]
) -> None:
    """Warns of values that the checkpoint describes, and that differ from those of the program.

    Args:
        called: The function that restores, for messages.
        place: Where the checkpoint is.
        saved: The descriptions in the checkpoint, by name.
        here: Those of the program; None for those that are not compared.
        held: The names of the program's objects: an item that one of them lacks differs, too.
    """
    differ = [
        f"{name} ({text} in the checkpoint, {here.get(name, 'nothing')} in the program)"
        for name, text in saved.items()
        if (here[name] not in (text, None) if name in here else text != "None" and name.rpartition("/")[0] in held)
    ]
    if differ:
        more = f" and {len(differ) - _SHOWN} more" if len(differ) > _SHOWN else ""
        _log.warning(
            "%s of %s did not restore %s%s: checkpoints have numbers, arrays and variables, not texts, dates, enums, "
            "sets and bit generators. If these values are state, keep numbers (phase=1), a numpy.random.Generator, or "
            "an object with get_state and set_state, whose state can have texts",
            called, place, ", ".join(differ[:_SHOWN]), more,
        )  # fmt: skip
