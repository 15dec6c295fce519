"""Shortens programs while they are loaded: fewer epochs, and steps of `fit`; the files stay as they are."""

from __future__ import annotations

import ast
import functools
import inspect
import re
from typing import Any, Final

MOST_EPOCHS: Final = 2
MOST_STEPS: Final = 10
_EPOCHS: Final = re.compile(r"(^|_)(num|n|max|total)?_?epochs?$", re.IGNORECASE)
_DEVICE: Final = re.compile(r"\bgpu:(\d)", re.IGNORECASE)
_LISTED: Final = re.compile(r"""(list_logical_devices\(\s*(?:device_type\s*=\s*)?)(['"])GPU\2""")


class _Shortener(ast.NodeTransformer):
    """Bounds numbers that are assigned to names of epochs, or are the default of such an argument."""

    def visit_Assign(self, node: ast.Assign) -> ast.AST:
        names = [one.id for target in node.targets for one in ast.walk(target) if isinstance(one, ast.Name)]
        if names and all(_EPOCHS.search(name) for name in names):
            node.value = _bounded(node.value)
        return self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        texts = [one.value for one in node.args if isinstance(one, ast.Constant) and isinstance(one.value, str)]
        of_epochs = any(_EPOCHS.search(text.replace("-", "_")) for text in texts)
        for keyword in node.keywords:
            if (keyword.arg == "default" and of_epochs) or _EPOCHS.search(keyword.arg or ""):
                keyword.value = _bounded(keyword.value)
        return self.generic_visit(node)


def _bounded(value: ast.expr) -> ast.expr:
    if isinstance(value, ast.Constant) and type(value.value) is int and value.value > MOST_EPOCHS:
        return ast.copy_location(ast.Constant(MOST_EPOCHS), value)
    return value


def shortened(text: str, filename: str) -> ast.Module:
    """Returns the program with at most `MOST_EPOCHS` epochs, where it states their number.

    Args:
        text: The source of the program.
        filename: Its name in errors.

    Raises:
        SyntaxError: The text is not a program.
    """
    module: ast.Module = _Shortener().visit(ast.parse(text, filename))
    return ast.fix_missing_locations(module)


def on_cpus(text: str) -> str:
    """Returns the text with the devices ``GPU:0``, ``GPU:1`` ... replaced by CPUs, for TensorFlow without GPUs.

    Lists of the logical GPUs become lists of the logical CPUs.
    """
    return _LISTED.sub(r"\1\2CPU\2", _DEVICE.sub(r"CPU:\1", text))


def shorten_fit(model: type[Any]) -> None:
    """Bounds the epochs and steps of ``Model.fit``, and the steps of ``evaluate`` and ``predict``.

    Args:
        model: The class ``keras.Model`` or a trainer of it.
    """
    for name, bounds in _BOUNDS.items():
        _bound(model, name, bounds)


_BOUNDS: Final = {
    "fit": {"epochs": MOST_EPOCHS, "steps_per_epoch": MOST_STEPS, "validation_steps": MOST_STEPS},
    "evaluate": {"steps": MOST_STEPS},
    "predict": {"steps": MOST_STEPS},
}


def _bound(model: type[Any], name: str, bounds: dict[str, int]) -> None:
    original = getattr(model, name)
    signature = inspect.signature(original)

    @functools.wraps(original)
    def bounded(*args: Any, **kwargs: Any) -> Any:
        given = signature.bind(*args, **kwargs)
        for option, most in bounds.items():
            if isinstance(given.arguments.get(option), int):
                given.arguments[option] = min(given.arguments[option], most)
        return original(*given.args, **given.kwargs)

    setattr(model, name, bounded)
