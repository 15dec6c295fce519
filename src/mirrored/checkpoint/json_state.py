"""Converts numbers and the positions of iterators to JSON, the form in which manifests store them."""

from __future__ import annotations

import base64
import json
from typing import Any

import numpy as np

from mirrored.errors import ArgumentTypeError


def encode(value: object, owner: str) -> Any:
    """Converts a value to JSON-serializable data; tuples and bytes become dicts such as ``{"__tuple__": [...]}``.

    Raises:
        ArgumentTypeError: The value contains an unsupported type.
    """
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {key: encode(one, owner) for key, one in value.items()}
    if isinstance(value, list):
        return [encode(one, owner) for one in value]
    if isinstance(value, tuple):
        return {"__tuple__": [encode(one, owner) for one in value]}
    if isinstance(value, bytes):
        return {"__bytes__": base64.b64encode(value).decode()}
    if isinstance(value, complex):
        return {"__complex__": [value.real, value.imag]}
    if isinstance(value, (np.ndarray, np.generic)) and value.dtype.kind in "biuf":
        encoded = {"__array__": value.tolist(), "dtype": str(value.dtype)}
        # The lists of an empty array lack dims, and a number is a NumPy scalar.
        lacks_shape = isinstance(value, np.ndarray) and (value.size == 0 or value.ndim == 0)
        return {**encoded, "shape": list(value.shape)} if lacks_shape else encoded
    raise ArgumentTypeError(
        "Checkpoint.save",
        found=f"the state of {owner} contains a {type(value).__name__}",
        rule="the result of get_state() must consist of None, numbers, strings, bytes, NumPy arrays, lists, tuples "
        "and dicts with string keys",
        remedy="return only these types from get_state()",
    )


def decode(value: object) -> Any:
    """Converts a result of `encode` back to the original value."""
    if isinstance(value, list):
        return [decode(one) for one in value]
    if not isinstance(value, dict):
        return value
    if value.keys() == {"__tuple__"}:
        return tuple(decode(one) for one in value["__tuple__"])
    if value.keys() == {"__bytes__"}:
        return base64.b64decode(value["__bytes__"])
    if value.keys() == {"__complex__"}:
        return complex(*value["__complex__"])
    if value.keys() == {"__array__", "dtype"}:
        return np.asarray(value["__array__"], value["dtype"])[()]
    if value.keys() == {"__array__", "dtype", "shape"}:
        return np.asarray(value["__array__"], value["dtype"]).reshape(value["shape"])
    return {key: decode(one) for key, one in value.items()}


def to_json(value: object) -> str:
    """Serializes a value to one line of JSON text; equal values give equal texts."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"))
