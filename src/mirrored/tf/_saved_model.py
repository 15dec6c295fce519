"""`tf.saved_model`: a program and its variables as a folder that needs none of the code that made it.

The folder holds ``saved_model.json`` (names, signatures), ``programs/`` (one file of `jax.export` for each function and
signature) and ``variables/`` (a checkpoint). A loaded program runs on the platforms that it was exported for, may be
differentiated once, and reads and assigns the loaded variables.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import json
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import jax
import jax.export  # not part of `import jax`
import jax.numpy as jnp
import numpy as np

from mirrored.checkpoint import Checkpoint, CheckpointReader
from mirrored.errors import ArgumentError, MissingExtraError
from mirrored.function import Function
from mirrored.function.exporting import Pure, as_pure
from mirrored.tf._errors import NotFoundError
from mirrored.tf._module import Module
from mirrored.tf._shapes import TensorSpec
from mirrored.variables import Variable

DEFAULT: Final = "serving_default"
_FILE: Final = "saved_model.json"
_PROGRAMS: Final = "programs"
_VARIABLES: Final = "variables"
_PLATFORMS: Final = ("cpu", "cuda", "tpu")
_SAVED: Final = "tf.saved_model.save"
_MOST_ADDED: Final = 8  # columns that a program may add to its input before it meets weights


@dataclasses.dataclass(frozen=True)
class SaveOptions:
    """Options of `save`, accepted for TensorFlow's sake: gradients are always saved, variables always once."""

    namespace_whitelist: Any = None
    save_debug_info: bool = False
    function_aliases: Any = None
    experimental_debug_stripper: bool = False
    experimental_io_device: str | None = None
    experimental_variable_policy: Any = None
    experimental_custom_gradients: bool = True
    experimental_image_format: bool = False
    experimental_skip_saver: bool = False
    extra_tags: Any = None


@dataclasses.dataclass(frozen=True)
class LoadOptions:
    """Options of `load`, accepted for TensorFlow's sake."""

    allow_partial_checkpoint: bool = False
    experimental_io_device: str | None = None
    experimental_skip_checkpoint: bool = False
    experimental_variable_policy: Any = None
    experimental_load_function_aliases: bool = False


# Saving


def save(obj: Any, export_dir: Any, signatures: Any = None, options: Any = None) -> None:
    """Saves an object's functions with their variables.

    Context: cross-replica.

    Args:
        obj: A `tf.Module`, or any object whose methods and attributes are `tf.function`s with an ``input_signature``,
            or that have been called before; or a Keras model.
        export_dir: The folder; replaced if it is there.
        signatures: A function, or functions by name: entries of `signatures` of what is loaded.
        options: Accepted for TensorFlow's sake.

    Raises:
        ArgumentError: There is no function to save, or one cannot be saved.

    Example:
        >>> import mirrored.tf as tf, tempfile
        >>> class Scale(tf.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.factor = tf.Variable(3.0)
        ...
        ...     @tf.function(input_signature=[tf.TensorSpec([None], tf.float32)])
        ...     def __call__(self, x):
        ...         return self.factor * x
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     tf.saved_model.save(Scale(), folder + "/scale")
        ...     loaded = tf.saved_model.load(folder + "/scale")
        >>> loaded(tf.constant([1.0, 2.0])).numpy()
        array([3., 6.], dtype=float32)

    TensorFlow: `tf.saved_model.save`, in another format.
    """
    del options
    functions = {name: _signatures_of(name, one) for name, one in _functions(obj).items()}
    named = {DEFAULT: signatures} if isinstance(signatures, Function) else dict(signatures or {})
    entries = {name: _signatures_of(name, one) for name, one in named.items()}
    if not named and "__call__" in functions:
        entries = {DEFAULT: functions["__call__"][:1]}
    if not any([*functions.values(), *entries.values()]):
        raise ArgumentError(
            _SAVED,
            found=f"{type(obj).__name__} has no tf.function with a signature",
            rule="what is saved are functions, for shapes and dtypes that are known",
            remedy="give it an input_signature=[tf.TensorSpec(...)], or call it once before",
        )
    _write(Path(os.fspath(export_dir)), functions, entries)


@dataclasses.dataclass(frozen=True)
class _Signature:
    """A function for certain arguments."""

    function: Callable[..., Any]
    names: list[str]
    inputs: tuple[Any, ...]


def _functions(obj: Any) -> dict[str, Function]:
    keras = sys.modules.get("keras")
    if keras is not None and isinstance(obj, keras.Model):
        return {"__call__": _keras_call(obj)}
    names = [name for kind in reversed(type(obj).__mro__) for name in vars(kind)] + list(getattr(obj, "__dict__", {}))
    found: dict[str, Function] = {}
    for name in dict.fromkeys(names):
        if isinstance(inspect.getattr_static(obj, name), Function):
            found[name] = getattr(obj, name)
    return found


def _keras_call(model: Any) -> Function:
    """A Keras model's inference."""
    inputs = model.inputs
    specs = [TensorSpec(one.shape, one.dtype) for one in inputs]

    def call(*arrays: Any) -> Any:
        return model(arrays[0] if len(inputs) == 1 else list(arrays), training=False)

    return Function(call, input_signature=specs, name=model.name)


def _signatures_of(name: str, function: Any) -> list[_Signature]:
    if not isinstance(function, Function):
        raise ArgumentError(
            _SAVED,
            found=f"the signature {name!r} is {function!r}"[:200],
            rule="signatures are tf.functions",
            remedy="decorate it with @tf.function(input_signature=[...])",
        )
    python, names = function.traced_function, _argument_names(function.python_function)
    if function.input_signature is not None:
        return [_Signature(python, names, _described(function.input_signature))]
    return [_Signature(python, names, _positional(names, *traced)) for traced in function.traced_inputs()]


def _positional(names: list[str], args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    """Keyword arguments in their places; one after a default that was left out stays as it is written."""
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    if list(given) != names[: len(given)] and set(given) != set(names[: len(given)]):
        raise ArgumentError(
            _SAVED,
            found=f"a call with the keyword arguments {', '.join(kwargs)}, and defaults before them",
            rule="what is saved is called by position",
            remedy="call the function once with all arguments up to the last one that is given",
        )
    return tuple(given[name] for name in names[: len(given)]) if kwargs else args


def _argument_names(function: Callable[..., Any]) -> list[str]:
    parameters = list(inspect.signature(function).parameters.values())
    if hasattr(function, "__wrapped__") and parameters and parameters[0].name == "self":
        parameters = parameters[1:]
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [one.name for one in parameters if one.kind in kinds]


def _described(specs: Sequence[Any]) -> tuple[Any, ...]:
    """The specs with ``jax.ShapeDtypeStruct``; sizes that are not known get a letter each."""
    unknown = iter(f"d{number}" for number in range(1000))
    scope = jax.export.SymbolicScope()

    def describe(spec: Any) -> jax.ShapeDtypeStruct:
        shape = spec.shape
        if getattr(shape, "rank", 0) is None or shape is None:
            raise ArgumentError(
                _SAVED,
                found=f"a spec without a shape: {spec!r}",
                rule="the number of dimensions is known; sizes may be None",
                remedy="write tf.TensorSpec([None, None], ...)",
            )
        sizes = [next(unknown) if size is None else str(int(size)) for size in tuple(shape)]
        shape = jax.export.symbolic_shape(",".join(sizes), scope=scope) if sizes else ()
        return jax.ShapeDtypeStruct(shape, jnp.dtype(getattr(spec.dtype, "as_numpy_dtype", spec.dtype)))

    return tuple(jax.tree.map(describe, list(specs), is_leaf=lambda one: hasattr(one, "shape")))


def _write(directory: Path, functions: Mapping[str, list[_Signature]], entries: Mapping[str, list[_Signature]]) -> None:
    unfinished = directory.with_name(directory.name + ".unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    (unfinished / _PROGRAMS).mkdir(parents=True)
    variables: dict[int, Variable] = {}
    written: dict[str, dict[str, list[Any]]] = {"functions": {}, "signatures": {}}
    for kind, group in (("functions", functions), ("signatures", entries)):
        for name, signatures in group.items():
            written[kind][name] = [
                _write_program(unfinished / _PROGRAMS / f"{kind}-{name}-{number}", one, variables)
                for number, one in enumerate(signatures)
            ]
    Checkpoint(variables=list(variables.values())).write(unfinished / _VARIABLES)
    about = [{"name": one.name, "trainable": one.trainable} for one in variables.values()]
    (unfinished / _FILE).write_text(json.dumps({"version": 1, "variables": about, **written}), encoding="utf-8")
    shutil.rmtree(directory, ignore_errors=True)
    unfinished.rename(directory)


def _write_program(path: Path, signature: _Signature, variables: dict[int, Variable]) -> dict[str, Any]:
    pure, inputs = _program_of(signature)
    for variable in (*pure.reads, *pure.assigns):
        variables.setdefault(id(variable), variable)
    order = list(variables)
    path.write_bytes(_exported(pure, inputs))
    return {
        "file": path.name,
        "names": signature.names,
        "inputs": _to_json(inputs),
        "output": _to_json(pure.output),
        "reads": [order.index(id(variable)) for variable in pure.reads],
        "assigns": [order.index(id(variable)) for variable in pure.assigns],
    }


def _program_of(signature: _Signature) -> tuple[Pure, Any]:
    """The pure program, and the inputs that it is for.

    A size that the signature leaves open may be one that the program does not: ``(x - mean) / deviation`` with 30 means
    is for 30 columns, where TensorFlow finds out when it runs. Then the number that it asks for is taken.
    """
    try:
        return as_pure(signature.function, signature.inputs, _SAVED), signature.inputs
    except (TypeError, ValueError) as error:
        for inputs in _narrowed(signature.inputs, str(error)):
            try:
                return as_pure(signature.function, inputs, _SAVED), inputs
            except (TypeError, ValueError):
                continue
        raise


def _narrowed(inputs: Any, complaint: str) -> Iterator[Any]:
    """The inputs with numbers for their one open size behind the first dimension.

    The numbers are those that a complaint names, and a little less, for programs that add columns of their own.
    """
    arrays = [leaf for leaf in jax.tree.leaves(inputs) if isinstance(leaf, jax.ShapeDtypeStruct)]
    open_sizes = {str(size) for one in arrays for size in one.shape[1:] if not isinstance(size, int)}
    if len(open_sizes) != 1:
        return
    (letter,) = open_sizes
    named = sorted({int(number) for number in re.findall(r"(?<![\w.])\d+", complaint)}, reverse=True)
    for number in dict.fromkeys(one - less for one in named for less in range(_MOST_ADDED) if one - less > 1):
        yield jax.tree.map(functools.partial(_with_size, letter=letter, number=number), inputs)


def _with_size(leaf: Any, *, letter: str, number: int) -> Any:
    if not isinstance(leaf, jax.ShapeDtypeStruct):
        return leaf
    return jax.ShapeDtypeStruct([number if str(size) == letter else size for size in leaf.shape], leaf.dtype)


def _exported(pure: Pure, inputs: Any) -> bytes:
    state = [jax.ShapeDtypeStruct(variable.shape, variable.dtype) for variable in pure.reads]
    arrays = [leaf for leaf in jax.tree.leaves(inputs) if isinstance(leaf, jax.ShapeDtypeStruct)]
    program = jax.jit(lambda values, operands: pure.call(values, operands))
    try:
        exported = jax.export.export(program, platforms=_PLATFORMS)(state, arrays)
    except NotImplementedError:  # an operation that one of the platforms lacks
        exported = jax.export.export(program)(state, arrays)
    floats = [jnp.issubdtype(one.dtype, jnp.inexact) for one in (*exported.in_avals, *exported.out_avals)]
    try:
        return bytes(exported.serialize(vjp_order=1 if any(floats) else 0))
    except ImportError as error:
        raise MissingExtraError(
            _SAVED,
            found=f"the package flatbuffers cannot be imported: {error}",
            rule="jax.export writes programs with it",
            remedy="pip install flatbuffers",
        ) from error


def _to_json(value: Any) -> Any:
    """A structure whose arrays are described; what is written is what `_from_json` reads."""
    if isinstance(value, jax.ShapeDtypeStruct):
        shape = [size if isinstance(size, int) else None for size in value.shape]
        return {"array": {"shape": shape, "dtype": str(value.dtype)}}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return {"dict": {name: _to_json(one) for name, one in zip(value._fields, value, strict=True)}}
    if isinstance(value, (list, tuple)):
        return {"tuple" if isinstance(value, tuple) else "list": [_to_json(one) for one in value]}
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return {"dict": {key: _to_json(one) for key, one in value.items()}}
    if value is None or isinstance(value, (bool, int, float, str)):
        return {"static": value}
    raise ArgumentError(
        _SAVED,
        found=f"a {type(value).__name__} among a function's arguments or results",
        rule="these are arrays, None, numbers and strings, in lists, tuples and dicts by strings",
        remedy="take other objects apart before",
    )


# Loading


def load(export_dir: Any, tags: Any = None, options: Any = None) -> LoadedModel:
    """Loads what `save` saved; the code that made it is not needed.

    Context: cross-replica. In a strategy's scope the variables are mirrored.

    Args:
        export_dir: The folder.
        tags: Accepted for TensorFlow's sake.
        options: Accepted for TensorFlow's sake.

    Raises:
        NotFoundError: There is none.
        DamagedCheckpointError: Its variables are not as they were written.
    """
    del tags, options
    directory = Path(os.fspath(export_dir))
    if not (directory / _FILE).is_file():
        raise NotFoundError.of(
            "tf.saved_model.load",
            found=f"{directory} has no {_FILE}",
            rule="the folder was written by tf.saved_model.save",
            remedy="give the folder that was given to save",
        )
    about = json.loads((directory / _FILE).read_text(encoding="utf-8"))
    reader = CheckpointReader(directory / _VARIABLES) if about["variables"] else None
    variables = [
        Variable(reader.read(f"variables/{number}"), trainable=one["trainable"], name=one["name"].removesuffix(":0"))
        for number, one in enumerate(about["variables"])
        if reader is not None
    ]

    def made(entries: Mapping[str, list[Any]]) -> dict[str, LoadedFunction]:
        return {name: LoadedFunction(name, _programs(directory, all_, variables)) for name, all_ in entries.items()}

    return LoadedModel(variables, made(about["functions"]), made(about["signatures"]))


def contains_saved_model(export_dir: Any) -> bool:
    """Whether there is a saved model in a folder."""
    return (Path(os.fspath(export_dir)) / _FILE).is_file()


@dataclasses.dataclass(frozen=True)
class _LoadedProgram:
    call: Callable[[Sequence[Any], Sequence[Any]], list[Any]]
    names: list[str]
    inputs: Any
    output: Any
    reads: list[Variable]
    assigns: list[Variable]


def _programs(directory: Path, entries: Iterable[Any], variables: Sequence[Variable]) -> list[_LoadedProgram]:
    return [
        _LoadedProgram(
            jax.export.deserialize(bytearray((directory / _PROGRAMS / one["file"]).read_bytes())).call,
            one["names"],
            _from_json(one["inputs"]),
            _from_json(one["output"]),
            [variables[at] for at in one["reads"]],
            [variables[at] for at in one["assigns"]],
        )
        for one in entries
    ]


def _from_json(value: Mapping[str, Any]) -> Any:
    (kind, inner), *_ = value.items()
    if kind == "array":
        return TensorSpec(inner["shape"], inner["dtype"])
    if kind in ("list", "tuple"):
        items = [_from_json(one) for one in inner]
        return items if kind == "list" else tuple(items)
    return {key: _from_json(one) for key, one in inner.items()} if kind == "dict" else inner


class LoadedFunction:
    """A function that was loaded: one program for each signature that was saved."""

    def __init__(self, name: str, programs: Sequence[_LoadedProgram]) -> None:
        self.__name__ = name
        self._loaded = list(programs)

    @property
    def structured_input_signature(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The positional and keyword arguments of its first signature."""
        return tuple(self._loaded[0].inputs), {}

    @property
    def structured_outputs(self) -> Any:
        """The result of its first signature."""
        return self._loaded[0].output

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the program whose signature fits the arguments.

        Raises:
            ArgumentError: None does.
        """
        for program in self._loaded:
            arrays = _fitted(program, args, kwargs)
            if arrays is not None:
                return _run(program, arrays)
        known = "; ".join(str(program.inputs) for program in self._loaded)
        raise ArgumentError(
            self.__name__,
            found=f"arguments {_shown(args)}{_shown(kwargs) if kwargs else ''}",
            rule=f"it was saved for {known}",
            remedy="pass arrays of these shapes and dtypes",
        )

    def __repr__(self) -> str:
        return f"<loaded function {self.__name__!r} with {len(self._loaded)} signatures>"


def _run(program: _LoadedProgram, arrays: Sequence[Any]) -> Any:
    outs = program.call([variable.read_value() for variable in program.reads], list(arrays))
    for variable, value in zip(program.assigns, outs, strict=False):
        variable.assign(value, read_value=False)
    remaining = iter(outs[len(program.assigns) :])
    return jax.tree.map(
        lambda leaf: next(remaining) if isinstance(leaf, TensorSpec) else leaf, program.output, is_leaf=_is_leaf
    )


def _fitted(program: _LoadedProgram, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any] | None:
    """The arrays among the arguments, None if they do not fit."""
    places = {name: place for place, name in enumerate(program.names)}
    values = list(args) + [None] * (len(program.inputs) - len(args))
    if len(args) > len(program.inputs) or any(places.get(name, -1) < len(args) for name in kwargs):
        return None
    for name, value in kwargs.items():
        if places[name] >= len(values):
            return None
        values[places[name]] = value
    values = [
        np.asarray(value, spec.dtype.as_numpy_dtype)
        if isinstance(spec, TensorSpec) and isinstance(value, (list, tuple))
        else value
        for spec, value in zip(program.inputs, values, strict=True)
    ]
    specs, spec_tree = jax.tree.flatten(tuple(program.inputs), is_leaf=_is_leaf)
    leaves, tree = jax.tree.flatten(tuple(values), is_leaf=lambda one: one is None)
    if bool(tree != spec_tree):  # type: ignore[operator]
        return None
    arrays = []
    for spec, leaf in zip(specs, leaves, strict=True):
        if not isinstance(spec, TensorSpec):
            if spec != leaf:
                return None
            continue
        array = _as(spec, leaf)
        if array is None:
            return None
        arrays.append(array)
    return arrays


def _as(spec: TensorSpec, leaf: Any) -> Any:
    dtype = np.dtype(spec.dtype.as_numpy_dtype)
    if leaf is None or isinstance(leaf, str):
        return None
    value = leaf.read_value() if isinstance(leaf, Variable) else leaf
    array = value if isinstance(value, jax.Array) else jnp.asarray(value, None if hasattr(value, "dtype") else dtype)
    sizes = tuple(spec.shape)
    alike = len(sizes) == array.ndim and all(a is None or a == b for a, b in zip(sizes, array.shape, strict=True))
    return array if alike and array.dtype == dtype else None


def _is_leaf(value: Any) -> bool:
    return value is None or isinstance(value, TensorSpec)


def _shown(value: Any) -> str:
    return str(jax.tree.map(lambda one: f"{one.dtype}{list(one.shape)}" if hasattr(one, "shape") else one, value))


class LoadedModel(Module):
    """What `load` returns: the functions as attributes, `variables`, and `signatures`."""

    def __init__(
        self, variables: list[Variable], functions: dict[str, LoadedFunction], signatures: dict[str, LoadedFunction]
    ) -> None:
        super().__init__(name="loaded_model")
        self._loaded_variables = variables
        self._call = functions.pop("__call__", None)
        self.signatures = signatures
        for name, one in functions.items():
            setattr(self, name, one)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls what was saved as `__call__`.

        Raises:
            ArgumentError: Nothing was.
        """
        if self._call is None:
            raise ArgumentError(
                "the loaded model",
                found="a call",
                rule="the object that was saved had no tf.function __call__",
                remedy=f"call one of its functions, or model.signatures[...] ({', '.join(self.signatures) or 'none'})",
            )
        return self._call(*args, **kwargs)
