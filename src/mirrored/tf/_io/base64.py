"""`tf.io.encode_base64` and `decode_base64`, for strings on the host."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from mirrored.tf._data.host_arrays import Texts, as_bytes_array, on_host
from mirrored.tf._errors import InvalidArgumentError

_FORM: Final = re.compile(rb"(?:[\w-]{4})*(?:[\w-]{2}(?:==)?|[\w-]{3}=?)?", re.ASCII)


def encode_base64(input: Texts, pad: bool = False, name: str | None = None) -> Any:
    """Encodes strings in URL-safe base64, with ``-`` and ``_``; appends ``=`` as padding only if `pad` is True."""
    del name
    return _mapped(input, lambda one: base64.urlsafe_b64encode(one).rstrip(b"" if pad else b"="))


def decode_base64(input: Texts, name: str | None = None) -> Any:
    """Decodes strings in URL-safe base64, with ``-`` and ``_``; the padding with ``=`` is optional.

    Raises:
        InvalidArgumentError: A string is not in that form.
    """
    del name
    return _mapped(input, _decoded)


def _decoded(text: bytes) -> bytes:
    if not _FORM.fullmatch(text):
        raise InvalidArgumentError.of(
            "tf.io.decode_base64",
            found=f"the string {text[:80]!r}",
            rule="base64 consists of letters, digits, - and _, with at most two = at its end, in groups of 2 to 4",
            remedy="decode the common form, with + and /, by base64.b64decode in Dataset.map",
        )
    return base64.urlsafe_b64decode(text.rstrip(b"=") + b"=" * (-len(text.rstrip(b"=")) % 4))


def _mapped(texts: Texts, change: Callable[[bytes], bytes]) -> Any:
    given = as_bytes_array(texts)
    made = np.empty(given.shape, object)
    for place in np.ndindex(given.shape):
        made[place] = change(bytes(given[place]))
    return on_host(made[()])


NAMES: Final[dict[str, Any]] = {f"io.{one.__name__}": one for one in (encode_base64, decode_base64)}
