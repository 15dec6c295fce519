"""`tf.saved_model.load`: loads an exported model without the Python code that created it."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Never

import jax
import jax.export  # not part of `import jax`
import numpy as np

from mirrored._jax.traces import Tracer
from mirrored._jax.trees import tree_map
from mirrored._typing import Leaf, PyTree
from mirrored.checkpoint import CheckpointReader
from mirrored.errors import ArgumentError, TapeError
from mirrored.tf._errors import NotFoundError
from mirrored.tf._module import Module
from mirrored.tf._saved_model.objects import rebuilt
from mirrored.tf._shapes import TensorSpec
from mirrored.tf._tensors import as_tensor
from mirrored.variables import Variable

FILE: Final = "saved_model.json"
PROGRAMS: Final = "programs"
VARIABLES: Final = "variables"
ORDERED: Final = "ordered"  # a dict that JAX does not flatten in the order of its sorted keys: an OrderedDict


@dataclasses.dataclass(frozen=True)
class LoadOptions:
    """Options of `tf.saved_model.load`; accepted, but ignored."""

    allow_partial_checkpoint: bool = False
    experimental_io_device: str | None = None
    experimental_skip_checkpoint: bool = False
    experimental_variable_policy: Any = None
    experimental_load_function_aliases: bool = False


def load(export_dir: str | os.PathLike[str], tags: object = None, options: LoadOptions | None = None) -> LoadedModel:
    """Loads a model that `tf.saved_model.save` exported, without the Python code that created the model.

    Context: cross-replica. In a strategy's scope the variables are mirrored.

    Args:
        export_dir: The folder.
        tags: Accepted for compatibility and ignored.
        options: Accepted for compatibility and ignored.

    Raises:
        NotFoundError: The folder has no saved model.
        DamagedCheckpointError: The variables are not as they were written.
    """
    del tags, options
    directory = Path(os.fspath(export_dir))
    if not (directory / FILE).is_file():
        raise NotFoundError.of(
            "tf.saved_model.load",
            found=f"{directory} has no {FILE}",
            rule="the folder must have been written by tf.saved_model.save",
            remedy="pass the folder that was passed to save",
        )
    about = json.loads((directory / FILE).read_text(encoding="utf-8"))
    reader = CheckpointReader(directory / VARIABLES) if about["variables"] else None
    variables = [
        Variable(reader.read(f"variables/{number}"), trainable=one["trainable"], name=one["name"].removesuffix(":0"))
        for number, one in enumerate(about["variables"])
        if reader is not None
    ]

    def made(entries: Mapping[str, list[Any]]) -> dict[str, LoadedFunction]:
        return {
            name: LoadedFunction(name, [_program(directory, one, variables) for one in all_])
            for name, all_ in entries.items()
        }

    model = LoadedModel(variables, made(about["functions"]), made(about["signatures"]))
    rebuilt(about["objects"], variables, model)
    return model


def contains_saved_model(export_dir: str | os.PathLike[str]) -> bool:
    """Returns whether a folder contains a model that `tf.saved_model.save` exported."""
    return (Path(os.fspath(export_dir)) / FILE).is_file()


@dataclasses.dataclass(frozen=True)
class LoadedProgram:
    """A program that was exported for one signature, with the variables that it reads and assigns.

    Attributes:
        exported: The program.
        entry: Its description in the file of the saved model.
        names: The names of the parameters that `inputs` are the arguments of, followed by other ones with a default.
        keywords: The names of those that can be passed by keyword only.
        defaults: The defaults of parameters, by name.
        inputs: The arguments, with a `tf.TensorSpec` for each array.
    """

    exported: jax.export.Exported
    entry: Mapping[str, Any]
    names: list[str]
    keywords: list[str]
    defaults: dict[str, Any]
    inputs: Any
    output: Any
    conditions: list[str]
    reads: list[Variable]
    assigns: list[Variable]

    @functools.cached_property
    def call(self) -> Callable[..., Any]:
        """The program as a function of the variables' values and the arrays; a gradient through it needs its VJP."""
        if self.exported.has_vjp():
            return self.exported.call
        call = jax.custom_vjp(self.exported.call)
        call.defvjp(lambda state, arrays: (self.exported.call(state, arrays), None), _refuse_gradient)
        return call

    @property
    def dtypes(self) -> list[Any]:
        """The dtypes of the program's arrays: those of `inputs`, of 32 bits if it was saved without x64."""
        return [one.dtype for one in self.exported.in_avals[len(self.reads) :]]

    def serialized(self) -> bytes:
        """Returns the program as a serialized JAX export, with its VJP if the program was saved with one."""
        return bytes(self.exported.serialize(vjp_order=1 if self.exported.has_vjp() else 0))

    def arguments(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Splits the program's arguments, `inputs`, into positional and keyword arguments."""
        named = dict(zip(self.names, self.inputs, strict=False))
        by_keyword = {name: one for name, one in named.items() if name in self.keywords}
        return tuple(self.inputs[: len(self.inputs) - len(by_keyword)]), by_keyword

    def described(self) -> str:
        """Formats the program's arguments for an error message."""
        args, kwargs = self.arguments()
        return ", ".join([str(args), *(f"{name}={value}" for name, value in kwargs.items())])

    def as_entry(self) -> LoadedProgram:
        """Returns the program with a dict as its result, as TensorFlow requires for the entries of ``signatures``."""
        kind, content = next(iter(self.entry["output"].items()))
        if kind in ("dict", ORDERED):
            return self
        output = in_order({f"output_{at}": leaf for at, leaf in enumerate(_leaves(kind, content))})
        return dataclasses.replace(self, entry={**self.entry, "output": output}, output=_from_json(output))


def _refuse_gradient(residuals: None, cotangents: PyTree) -> Never:
    raise TapeError(
        "GradientTape.gradient",
        found="the backward pass goes through a loaded function that was saved without its derivative",
        rule="tf.saved_model.save omits the derivative of a function that JAX cannot differentiate in reverse mode, "
        "such as a loop whose length depends on tensors",
        remedy="save a function whose loops have a fixed length, or exclude its result with tf.stop_gradient",
    )


def in_order(parts: dict[str, Any]) -> dict[str, Any]:
    """Encodes a dict as a JSON node that preserves the order of the keys, which JAX would sort."""
    return {"dict" if list(parts) == sorted(parts) else ORDERED: parts}


def _leaves(kind: str, content: Any) -> list[Any]:
    """Returns the arrays and static values of a JSON-encoded structure, in the order of the program's results."""
    if kind in ("array", "static"):
        return [{kind: content}] if content is not None else []
    if kind == "dict":
        inside = [content[key] for key in sorted(content)]
    else:
        inside = content.values() if kind == ORDERED else content
    return [leaf for one in inside for leaf in _leaves(*next(iter(one.items())))]


def _program(directory: Path, entry: Mapping[str, Any], variables: Sequence[Variable]) -> LoadedProgram:
    names, inputs = entry["names"], _from_json(entry["inputs"])
    return LoadedProgram(
        jax.export.deserialize(bytearray((directory / PROGRAMS / entry["file"]).read_bytes())),
        entry,
        [*names, *(f"args_{place}" for place in range(len(names), len(inputs)))],
        entry.get("keywords", []),  # earlier versions saved neither these nor defaults
        {name: _from_json(one) for name, one in entry.get("defaults", {}).items()},
        inputs,
        _from_json(entry["output"]),
        entry["conditions"],
        [variables[at] for at in entry["reads"]],
        [variables[at] for at in entry["assigns"]],
    )


def _from_json(value: Mapping[str, Any]) -> Any:
    (kind, inner), *_ = value.items()
    if kind == "array":
        return TensorSpec(inner["shape"], inner["dtype"])
    if kind in ("list", "tuple"):
        items = [_from_json(one) for one in inner]
        return items if kind == "list" else tuple(items)
    if kind in ("dict", ORDERED):
        parts = {key: _from_json(one) for key, one in inner.items()}
        return OrderedDict(parts) if kind == ORDERED else parts
    return inner


class LoadedFunction:
    """A function of a loaded model, with one compiled program per exported signature."""

    def __init__(self, name: str, programs: Sequence[LoadedProgram]) -> None:
        self.__name__ = name
        self._loaded = list(programs)

    @property
    def programs(self) -> list[LoadedProgram]:
        """The programs, one for each exported signature."""
        return list(self._loaded)

    @property
    def structured_input_signature(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments of the function's first signature, with a `tf.TensorSpec` for each array."""
        return self._loaded[0].arguments()

    @property
    def structured_outputs(self) -> Any:
        """The result of the function's first signature, with a `tf.TensorSpec` for each array."""
        return self._loaded[0].output

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the program whose signature matches the arguments.

        Raises:
            ArgumentError: No signature matches.
        """
        for has_same_types in (True, False):  # True == 1 == 1.0, but they may have programs of their own
            for program in self._loaded:
                arrays = _fitted(program, args, kwargs, has_same_types)
                if arrays is not None:
                    return _run(program, arrays)
        known = "; ".join(program.described() for program in self._loaded)
        raise ArgumentError(
            self.__name__,
            found=f"it was called with {_shown(args)}{f' and {_shown(kwargs)}' if kwargs else ''}",
            rule=f"the arguments must match a saved signature: {known}",
            remedy="pass arrays of these shapes and dtypes",
        )

    def __repr__(self) -> str:
        return f"<loaded function {self.__name__!r} with {len(self._loaded)} signatures>"


def _run(program: LoadedProgram, arrays: Sequence[Any]) -> Any:
    try:
        outs = program.call([variable.read_value() for variable in program.reads], list(arrays))
    except ValueError as error:
        if not program.conditions:
            raise
        raise ArgumentError(
            "a loaded function",
            found=f"it was called with the arrays {_shown(list(arrays))}",
            rule=f"the arguments must match {program.inputs}, where sizes d0, d1, ... satisfy "
            f"{', '.join(program.conditions)}",
            remedy="pass arrays whose sizes satisfy these conditions",
        ) from error
    for variable, value in zip(program.assigns, outs, strict=False):
        variable.assign(value, read_value=False)
    remaining = iter(outs[len(program.assigns) :])
    return tree_map(
        lambda leaf: next(remaining) if isinstance(leaf, TensorSpec) else leaf, program.output, is_leaf=_is_leaf
    )


def _fitted(
    program: LoadedProgram, args: tuple[Any, ...], kwargs: dict[str, Any], has_same_types: bool
) -> list[Any] | None:
    """Returns the array arguments of a call if all its arguments match the program's signature, otherwise None.

    Args:
        program: The program.
        args: The arguments by position.
        kwargs: The arguments by keyword.
        has_same_types: Whether other arguments than arrays must have the types of those of the program.
    """
    values = _bound(program, args, kwargs, has_same_types)
    if values is None:
        return None
    values = [
        _of_list(value, spec) if isinstance(spec, TensorSpec) and isinstance(value, (list, tuple)) else value
        for spec, value in zip(program.inputs, values, strict=True)
    ]
    specs, spec_tree = jax.tree.flatten(tuple(program.inputs), is_leaf=_is_leaf)
    values = [_with_dict_types_of(spec, value) for spec, value in zip(program.inputs, values, strict=True)]
    leaves, tree = jax.tree.flatten(tuple(values), is_leaf=lambda one: one is None)
    if bool(tree != spec_tree):  # type: ignore[operator]
        return None
    arrays: list[Any] = []
    dtypes = program.dtypes
    for spec, leaf in zip(specs, leaves, strict=True):
        if not isinstance(spec, TensorSpec):
            if not _is_fixed(spec, leaf, has_same_types):
                return None
            continue
        array = _as(spec, leaf, dtypes[len(arrays)])
        if array is None:
            return None
        arrays.append(array)
    return arrays


def _bound(
    program: LoadedProgram, args: tuple[Any, ...], kwargs: dict[str, Any], has_same_types: bool
) -> list[Any] | None:
    """Returns the arguments of a call in the order of `program.inputs`, filled with defaults; None if they do not fit.

    A parameter that is not among the inputs can only be passed its default.
    """
    positional = [name for name in program.names if name not in program.keywords]
    if len(args) > len(positional) or any(name not in program.names for name in kwargs):
        return None
    given = dict(zip(positional, args, strict=False))
    if given.keys() & kwargs.keys():
        return None
    given.update(kwargs)
    count, defaults = len(program.inputs), program.defaults
    for name in program.names[count:]:
        if name in given and not (name in defaults and _is_fixed(defaults[name], given[name], has_same_types)):
            return None
    return [given[name] if name in given else defaults.get(name) for name in program.names[:count]]


def _is_fixed(wanted: object, value: object, has_same_types: bool) -> bool:
    """Returns whether an argument equals the static value `wanted`; False for tracers and non-scalar arrays."""
    if isinstance(value, Tracer) or (has_same_types and type(wanted) is not type(value)):
        return False
    return not (hasattr(value, "ndim") and value.ndim) and bool(wanted == value)


def _with_dict_types_of(spec: Any, value: Any) -> Any:
    """Converts each dict in `value` to the type of the corresponding dict in `spec`: `dict` or `OrderedDict`."""
    if isinstance(spec, dict) and isinstance(value, dict) and value.keys() == spec.keys():
        parts = {key: _with_dict_types_of(one, value[key]) for key, one in spec.items()}
        return OrderedDict(parts) if isinstance(spec, OrderedDict) else parts
    if type(value) in (list, tuple) and type(spec) is type(value) and len(spec) == len(value):
        return type(value)(map(_with_dict_types_of, spec, value))
    return value


def _of_list(value: Sequence[Any], spec: TensorSpec) -> Any:
    """Converts a list to an array of a spec's dtype; returns None if its numbers cannot be converted."""
    dtype = np.dtype(spec.dtype.as_numpy_dtype)
    if dtype.kind not in "biufc":
        return np.asarray(value, dtype)
    try:
        return np.asarray(as_tensor(list(value), dtype))
    except (TypeError, ValueError):
        return None


def _as(spec: TensorSpec, leaf: Leaf, dtype: Any) -> Any:
    """Converts an argument to an array of a program's `dtype`; returns None if it has another dtype or shape."""
    if leaf is None or isinstance(leaf, str):
        return None
    value = leaf.read_value() if isinstance(leaf, Variable) else leaf
    try:
        array = value if isinstance(value, jax.Array) else as_tensor(value, None if hasattr(value, "dtype") else dtype)
    except (TypeError, ValueError):  # a number that the dtype does not have
        return None
    sizes = tuple(spec.shape)
    alike = len(sizes) == array.ndim and all(a is None or a == b for a, b in zip(sizes, array.shape, strict=True))
    return array if alike and array.dtype == dtype else None


def _is_leaf(value: object) -> bool:
    return value is None or isinstance(value, TensorSpec)


def _shown(value: PyTree) -> str:
    return str(tree_map(lambda one: f"{one.dtype}{list(one.shape)}" if hasattr(one, "shape") else one, value))


class LoadedModel(Module):
    """The model that `tf.saved_model.load` returns.

    It has the exported functions as attributes, `variables`, and `signatures`.
    """

    _not_saved = frozenset({"signatures", "_loaded_variables"})  # attributes that `load` makes

    def __init__(
        self, variables: list[Variable], functions: dict[str, LoadedFunction], signatures: dict[str, LoadedFunction]
    ) -> None:
        super().__init__(name="loaded_model")
        self._loaded_variables = variables
        self._call = functions.pop("__call__", None)
        self.signatures = signatures
        for name, one in functions.items():
            setattr(self, name, one)

    def named_call(self) -> dict[str, LoadedFunction]:
        """Returns the saved object's `__call__` as ``{"__call__": function}``; an empty dict if it had none."""
        return {} if self._call is None else {"__call__": self._call}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the `__call__` of the object that was saved.

        Raises:
            ArgumentError: The saved object had no `__call__`.
        """
        if self._call is None:
            raise ArgumentError(
                "the loaded model",
                found="it was called, but the saved object had no tf.function `__call__`",
                rule="a loaded model can only be called if the saved object had a tf.function `__call__`",
                remedy="call a function of the model, or an entry of model.signatures "
                f"({', '.join(self.signatures) or 'which is empty'})",
            )
        return self._call(*args, **kwargs)
