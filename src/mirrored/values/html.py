"""HTML of objects for notebooks: a title and a table, without scripts and with few styles."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from typing import Any, Final

import jax
import numpy as np

from mirrored.topology.device_assignment import name_device
from mirrored.values.attributes import attribute

_MOST_ELEMENTS: Final = 1000
_MOST_CHARACTERS: Final = 300
_LEFT: Final = 'style="text-align: left"'


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]], note: str = "") -> str:
    """Returns an HTML table with a title above it and an optional note below it."""
    head = "".join(f"<th {_LEFT}>{html.escape(column)}</th>" for column in columns)
    body = "".join(
        "<tr>" + "".join(f"<td {_LEFT}>{html.escape(str(cell))}</td>" for cell in row) + "</tr>" for row in rows
    )
    below = f"<div>{html.escape(note)}</div>" if note else ""
    return (
        f"<div><div><b>{html.escape(title)}</b></div><table><thead><tr>{head}</tr></thead>"
        f"<tbody>{body}</tbody></table>{below}</div>"
    )


def text(words: str) -> str:
    """Returns a text, such as a `repr`, as preformatted HTML.

    It replaces the table where no table is possible, for example while JAX traces.
    """
    return f"<pre>{html.escape(words)}</pre>"


def outline(value: object) -> str:
    """Returns the dtype and shape of an array, such as ``float32[3,4]``, or the type name of another object."""
    dtype, shape = attribute(value, "dtype"), attribute(value, "shape")
    if dtype is None or shape is None:
        return type(value).__name__
    return f"{dtype}[{','.join(map(str, shape))}]"


def short(value: object) -> str:
    """Returns an array's elements as one short line, or only their number if there are more than 1,000."""
    size = attribute(value, "size")
    if isinstance(size, int) and size > _MOST_ELEMENTS:
        return f"({size:,} elements)"
    try:
        words = np.array2string(np.asarray(value), threshold=12, edgeitems=3, precision=5, separator=", ")
    except TypeError:  # Keys of random generators are not NumPy arrays.
        words = repr(value)
    line = " ".join(words.split())
    return line if len(line) <= _MOST_CHARACTERS else f"{line[:_MOST_CHARACTERS]} ..."


def place(value: object) -> str:
    """Returns the names of an array's devices, such as ``CPU:0``; ``host`` for a value that is not a JAX array."""
    if not isinstance(value, jax.Array):
        return "host"
    return " ".join(str(name_device(device)) for device in sorted(value.devices(), key=lambda device: device.id))


def components(title: str, values: Sequence[Any]) -> str:
    """Returns an HTML table of the replicas' values: the replica, device, dtype, shape and elements of each."""
    rows = [(replica, place(value), outline(value), short(value)) for replica, value in enumerate(values)]
    return table(title, ("replica", "device", "array", "elements"), rows)


def counted(number: int, word: str) -> str:
    """Returns a number with a noun, in the plural unless the number is 1."""
    return f"{number} {word}{'s' * (number != 1)}"
