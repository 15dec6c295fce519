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

from mirrored.checkpoint.saved_numbers import is_number

LIMIT: Final = 10_000  # descriptions in one checkpoint: a vocabulary can have millions of texts
_LONGEST: Final = 100
_SHOWN: Final = 5
_KINDS: Final = (
    str, bytes, type(None), enum.Enum, datetime.date, datetime.time, datetime.timedelta, decimal.Decimal,
    fractions.Fraction, uuid.UUID, pathlib.PurePath, np.generic, bytearray, array.array,
)  # fmt: skip

_log: Final = logging.getLogger("mirrored.checkpoint")


def description_of(value: object) -> str | None:
    """Returns a text that is equal for equal values in every process; None for values that are not of these kinds.

    Sets of more than `LIMIT` items have none either, nor sets of other objects.

    Args:
        value: An attribute or item of an object of the program, other than a number that the checkpoint saves.
    """
    if isinstance(value, (np.random.BitGenerator, np.random.SeedSequence)):
        return _shortened(f"{type(value).__name__}({value.state})")
    if isinstance(value, (set, frozenset)):
        if len(value) > LIMIT or not all(is_number(one) or isinstance(one, _KINDS) for one in value):
            return None
        return _shortened(f"{{{', '.join(sorted(map(_text, value)))}}}")
    return _shortened(_text(value)) if isinstance(value, _KINDS) else None


def _text(value: object) -> str:
    if isinstance(value, (str, bytes, bytearray, array.array)) and len(value) > _LONGEST:
        return f"{value[:_LONGEST]!r}... ({_digest(value)})"
    return str(value) if isinstance(value, enum.Enum) else repr(value)


def _digest(value: str | bytes | bytearray | array.array[Any]) -> str:
    data = value.encode(errors="backslashreplace") if isinstance(value, str) else bytes(value)
    return hashlib.sha256(data).hexdigest()[:16]


def _shortened(text: str) -> str:
    return text if len(text) <= 2 * _LONGEST else f"{text[:_LONGEST]}... ({_digest(text)})"


def log_unrestored(called: str, place: str, saved: Mapping[str, str], here: Mapping[str, str], held: set[str]) -> None:
    """Warns of values that the checkpoint describes, and that differ from those of the program.

    Args:
        called: The function that restores, for messages.
        place: Where the checkpoint is.
        saved: The descriptions in the checkpoint, by name.
        here: Those of the program.
        held: The names of the program's objects: an item that one of them lacks differs, too.
    """
    differ = [
        f"{name} ({text} in the checkpoint, {here.get(name, 'nothing')} in the program)"
        for name, text in saved.items()
        if (text != here[name] if name in here else text != "None" and name.rpartition("/")[0] in held)
    ]
    if differ:
        more = f" and {len(differ) - _SHOWN} more" if len(differ) > _SHOWN else ""
        _log.warning(
            "%s of %s did not restore %s%s: checkpoints have numbers, arrays and variables, not texts, dates, enums, "
            "sets and bit generators. If these values are state, keep numbers (phase=1), a numpy.random.Generator, or "
            "an object with get_state and set_state, whose state can have texts",
            called, place, ", ".join(differ[:_SHOWN]), more,
        )  # fmt: skip
