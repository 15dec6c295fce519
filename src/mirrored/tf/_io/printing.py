"""`tf.print`, which formats tensors like TensorFlow."""

from __future__ import annotations

import functools
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import jax
import numpy as np

from mirrored._jax.boxes import payload_of
from mirrored._jax.traces import Tracer
from mirrored._typing import PyTree
from mirrored.tf._asking import inside_function
from mirrored.tf._host_calls import record_if_omitted
from mirrored.tf._table import op
from mirrored.tf._tensors import is_tensor


def tensor_text(array: np.ndarray[Any, Any], summarize: int) -> str:
    """Formats a tensor as TensorFlow prints it, with "..." in place of the middle of long dimensions."""
    if array.ndim == 0:
        return _number_text(array[()])
    separator = " " if array.ndim == 1 else "\n" + (array.ndim > 2) * "\n" * (array.ndim - 2)
    parts = [f'"{_decoded(one)}"' if isinstance(one, bytes | str) else tensor_text(one, summarize) for one in array]
    if 0 <= 2 * summarize < len(parts):
        parts = [*parts[:summarize], "...", *parts[len(parts) - summarize :]]
    body = separator.join(part.replace("\n", "\n ") if array.ndim > 1 else part for part in parts)
    return "[" + (body.replace("\n[", "\n [") if array.ndim > 1 else body) + "]"


def _decoded(text: bytes | str) -> str:
    return text.decode(errors="replace") if isinstance(text, bytes) else text


def _number_text(value: Any) -> str:
    if isinstance(value, bytes | str):
        return _decoded(value)
    if isinstance(value, np.bool_):
        return str(int(value))
    if np.issubdtype(type(value), np.integer):
        return str(int(value))
    if np.iscomplexobj(value):
        return f"({value.real:g},{value.imag:g})"
    return f"{float(value):.9g}" if float(f"{float(value):g}") != float(value) else f"{float(value):g}"


def _text(value: object, summarize: int, *, nested: bool = False) -> str:
    if isinstance(value, (list, tuple)):
        inner = ", ".join(_text(one, summarize, nested=True) for one in value)
        return f"[{inner}]" if isinstance(value, list) else f"({inner})"
    if isinstance(value, Mapping):
        pairs = (f"{_text(k, summarize, nested=True)}: {_text(v, summarize, nested=True)}" for k, v in value.items())
        return "{" + ", ".join(pairs) + "}"
    if isinstance(value, bytes):
        return _decoded(value)
    if isinstance(value, (np.ndarray, np.generic)) or is_tensor(value):
        return tensor_text(np.asarray(value), summarize)
    return repr(value) if nested and isinstance(value, str) else str(value)


def _write(stream: IO[str] | str | None, text: str) -> None:
    if isinstance(stream, str):
        with Path(stream.removeprefix("file://")).open("a", encoding="utf-8") as file:
            file.write(text)
        return
    (stream or sys.stderr).write(text)


@op("print")
def print_(
    *inputs: PyTree,
    output_stream: IO[str] | str | None = None,
    summarize: int = 3,
    sep: str = " ",
    end: str = "\n",
    name: str | None = None,
) -> None:
    """Prints values to stderr, another stream or a file, even from compiled code (`tf.print`).

    A file is named ``file://...``.

    Context: any. Compiled code prints in each execution, once per replica. The order of the lines of several calls is
    not fixed, as JAX orders calls of the host on one device only: print values that belong together in one call.
    Programs of `tf.saved_model` do not print: they cannot contain calls of the host.
    """
    del name
    leaves, treedef = jax.tree.flatten(inputs, is_leaf=lambda one: one is None or isinstance(one, str))
    arrays = {i: one for i, one in enumerate(leaves) if is_tensor(one)}
    others = [None if i in arrays else _as_it_is_now(one) for i, one in enumerate(leaves)]
    write = functools.partial(
        _print_now, others, treedef, sep, end, 10**9 if summarize == -1 else summarize, output_stream
    )
    if record_if_omitted("tf.print"):
        return
    # A program prints at each execution, also text alone: a trace would print it once, and those of all branches.
    if inside_function() or any(isinstance(payload_of(one), Tracer) for one in arrays.values()):
        jax.debug.callback(write, {i: jax.numpy.asarray(one) for i, one in arrays.items()})
    else:
        write({i: np.asarray(one) for i, one in arrays.items()})


def _as_it_is_now(leaf: Any) -> Any:
    """Copies a NumPy array, so that later writes do not change what is printed; returns other values unchanged."""
    return leaf.copy() if isinstance(leaf, np.ndarray) else leaf


def _print_now(
    leaves: list[Any],
    treedef: jax.tree_util.PyTreeDef,
    sep: str,
    end: str,
    summarize: int,
    stream: IO[str] | str | None,
    arrays: Mapping[int, Any],
) -> None:
    filled = [np.asarray(arrays[i]) if i in arrays else one for i, one in enumerate(leaves)]
    inputs = jax.tree.unflatten(treedef, filled)
    _write(stream, sep.join(_text(one, summarize) for one in inputs) + end)
