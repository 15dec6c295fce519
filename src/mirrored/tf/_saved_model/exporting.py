"""Implements `keras.Model.export` without TensorFlow: saves the forward pass as the endpoint ``serve``."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence
from typing import Any

import jax

from mirrored.compilation.function import Function
from mirrored.errors import ArgumentError
from mirrored.tf._module import Module
from mirrored.tf._saved_model.functions import functions_of, spec_of
from mirrored.tf._saved_model.saving import DEFAULT, save

ENDPOINT = "serve"


class _Archive(Module):
    """The object that `keras.Model.export` saves: its attribute `serve` is the model's forward pass."""

    def __init__(self, serve: Function) -> None:
        super().__init__()
        self.serve = serve


def exporting(original: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps `keras.Model.export` so that it writes the format ``"tf_saved_model"`` without TensorFlow.

    Args:
        original: Keras' method, for other formats.
    """

    @functools.wraps(original)
    def export(
        self: Any,
        filepath: str | os.PathLike[str],
        format: str = "tf_saved_model",
        verbose: bool | None = None,
        input_signature: Sequence[Any] | None = None,
        **kwargs: Any,
    ) -> None:
        if format != "tf_saved_model":
            original(self, filepath, format, verbose, input_signature, **kwargs)
            return
        serve = _serving(self, input_signature)
        save(_Archive(serve), filepath, signatures={ENDPOINT: serve, DEFAULT: serve})
        if verbose in (None, True):
            print(f"Saved artifact at '{filepath}'. Endpoint: {ENDPOINT}")

    return export


def _serving(model: Any, input_signature: Sequence[Any] | None) -> Function:
    if input_signature is not None:
        specs = jax.tree.map(spec_of, list(input_signature), is_leaf=lambda one: hasattr(one, "shape"))
        return Function(lambda *inputs: model(*inputs, training=False), input_signature=specs, name=model.name)
    inference = functions_of(model).get("__call__")
    if isinstance(inference, Function):
        return inference
    raise ArgumentError(
        "Model.export",
        found=f"the model {model.name!r} was never called, so the shapes of its inputs are not known",
        rule="an exported program is traced for known shapes and dtypes",
        remedy="call the model on a batch, or pass input_signature=[keras.InputSpec(shape=(None, 4))]",
    )
