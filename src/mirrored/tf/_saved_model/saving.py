"""`tf.saved_model.save`: exports compiled functions and variables to a folder.

The folder holds ``saved_model.json`` (names, signatures, the object tree), ``programs/`` (one `jax.export` file for
each function and signature) and ``variables/`` (a checkpoint). A loaded program runs on the platforms for which it was
exported, and reads and assigns the loaded variables. It supports first-order gradients if JAX can differentiate it in
reverse mode.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shutil
import tempfile
import warnings
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias
from urllib.parse import quote

import jax
import jax.export  # not part of `import jax`
import jax.numpy as jnp

from mirrored._jax.inlining import calls_python
from mirrored._jax.source_lines import user_stacklevel
from mirrored._jax.traces import canonical_dtype
from mirrored._jax.trees import tree_map
from mirrored._typing import Leaf, PyTree
from mirrored.checkpoint import Checkpoint
from mirrored.checkpoint.sharing import several_workers, writes_here
from mirrored.collectives.host_allgather import host_allgather
from mirrored.compilation import Function
from mirrored.compilation.concrete import ConcreteFunction, Pure, as_pure
from mirrored.errors import ArgumentError, MissingExtraError
from mirrored.tf._host_calls import without_host_calls
from mirrored.tf._ops.open_sizes import NotOpenError, Traced, traced_for
from mirrored.tf._saved_model.functions import SAVED, Signature, functions_of, signatures_of
from mirrored.tf._saved_model.loading import (
    FILE,
    PROGRAMS,
    VARIABLES,
    LoadedFunction,
    LoadedModel,
    LoadedProgram,
    in_order,
)
from mirrored.tf._saved_model.objects import Objects
from mirrored.tf._saved_model.restrictions import not_open_error, restriction
from mirrored.variables import Variable

DEFAULT: Final = "serving_default"
_ENTRIES: Final = (PROGRAMS, VARIABLES, FILE)
_PLATFORMS: Final = ("cpu", "cuda", "tpu")

Signatures: TypeAlias = Function | ConcreteFunction | Mapping[str, Function | ConcreteFunction]
"""A function, or functions by name."""
_Programs: TypeAlias = Mapping[str, Sequence[Signature | LoadedProgram]]


@dataclasses.dataclass(frozen=True)
class SaveOptions:
    """Options of `tf.saved_model.save`; accepted, but ignored.

    Gradients are always saved, and each variable is saved once.
    """

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


def save(
    obj: object,
    export_dir: str | os.PathLike[str],
    signatures: Signatures | None = None,
    options: SaveOptions | None = None,
) -> None:
    """Exports an object's variables and compiled functions to a folder, for `tf.saved_model.load`.

    Context: cross-replica. Several workers call it together; under one path, worker 0 writes.

    Args:
        obj: A `tf.Module`, or any object whose methods and attributes are `tf.function`s with an ``input_signature``,
            or that have been called before; or a Keras model. The loaded object has the variables, modules, lists and
            dicts among the attributes of `obj`, too, but not the functions of these modules.
        export_dir: The folder. An existing saved program is replaced; other files stay, as with TensorFlow.
        signatures: A function, a concrete function, or several by name. They become entries of `signatures` of the
            loaded object, and return dicts. By default the only function of the object, if it has an
            ``input_signature``.
        options: Accepted for compatibility and ignored.

    Raises:
        ArgumentError: A function cannot be saved, such as one that needs an unknown size and was never called; or no
            function of the object has a signature; or the path is a file, or a folder with ``programs`` or
            ``variables`` that do not belong to a saved program.

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

    TensorFlow: `tf.saved_model.save`, in another format. What the program does with an unknown size may constrain that
    size (a reshape to rows of 784 needs a multiple of 784 elements). A function that needs the number itself, as
    ``tf.shape(x)[0]`` does, is saved only for the shapes of its earlier calls, with a warning. For an unknown number of
    dimensions, up to six dimensions are saved. Programs omit `tf.print`, and with a warning the assertions of
    `tf.debugging` on values.
    """
    del options
    functions = {name: signatures_of(name, one) for name, one in functions_of(obj).items()}
    loaded = obj.signatures if isinstance(obj, LoadedModel) else {}
    entries = _entries(functions, (loaded or None) if signatures is None else signatures)
    if functions and not any([*functions.values(), *entries.values()]):
        raise ArgumentError(
            SAVED,
            found=f"{type(obj).__name__} has no tf.function with a signature",
            rule="save can only export functions for known shapes and dtypes",
            remedy="give a tf.function an input_signature=[tf.TensorSpec(...)], or call it once before saving",
        )
    _write(Path(os.fspath(export_dir)), obj, functions, entries)


def _entries(functions: _Programs, signatures: Signatures | Mapping[str, LoadedFunction] | None) -> _Programs:
    """Returns the entries of ``signatures`` to save: the requested ones or, by default, the object's only function."""
    named = signatures if isinstance(signatures, Mapping) else {} if signatures is None else {DEFAULT: signatures}
    entries = {name: signatures_of(name, one) for name, one in named.items()}
    own = [given for given in functions.values() if not any(isinstance(one, LoadedProgram) for one in given)]
    if signatures is None and len(own) == 1:
        entries = {DEFAULT: [one for one in own[0] if isinstance(one, Signature) and one.is_declared]}
    return {name: [one.as_entry() for one in given] for name, given in entries.items() if given}


def _write(directory: Path, obj: object, functions: _Programs, entries: _Programs) -> None:
    """Writes a saved model to a folder; the first of several workers writes the files, and the others wait."""
    directory = directory.absolute()  # an absolute path always has a name and parents
    unfinished = directory.with_name(directory.name + ".unfinished")
    _check_replaceable(directory, set(_ENTRIES) if not (directory / FILE).is_file() else set())
    _check_replaceable(unfinished, set(os.listdir(unfinished)) - set(_ENTRIES) if unfinished.is_dir() else set())
    if writes_here(SAVED, directory):  # all workers have checked the path when one starts to replace it
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(parents=True)
        try:
            _write_contents(unfinished, unfinished / VARIABLES, obj, functions, entries)
        except BaseException:
            shutil.rmtree(unfinished, ignore_errors=True)
            raise
        _put_in_place(unfinished, directory)
    else:
        # All workers trace the functions and save the variables together: both compare values between workers.
        with tempfile.TemporaryDirectory() as elsewhere:
            _write_contents(Path(elsewhere), unfinished / VARIABLES, obj, functions, entries)
    if several_workers():
        host_allgather(SAVED, "wait until the program is saved", None)


def _write_contents(
    folder: Path,
    checkpoint: Path,
    obj: object,
    functions: _Programs,
    entries: _Programs,
) -> None:
    """Writes the programs and their description to an empty folder, and the variables to a checkpoint."""
    (folder / PROGRAMS).mkdir()
    variables: dict[int, Variable] = {}
    omitted: set[str] = set()
    restricted: dict[str, str] = {}
    written: dict[str, dict[str, list[Any]]] = {"functions": {}, "signatures": {}}
    for kind, group in (("functions", functions), ("signatures", entries)):
        for name, signatures in group.items():
            file = folder / PROGRAMS / f"{kind}-{quote(name, safe='')}"  # a name may have slashes
            written[kind][name] = [
                entry
                for number, one in enumerate(signatures)
                for path in [file.with_name(f"{file.name}-{number}")]
                for entry in _write_programs(name, path, one, variables, omitted, restricted)
            ]
    _warn_of_checks(omitted)
    for what, name in restricted.items():
        warnings.warn(f"{SAVED}: {name} {what}", stacklevel=user_stacklevel())
    objects = Objects(variables)
    objects.add(obj)
    if variables:
        Checkpoint(variables=list(variables.values())).write(checkpoint)
    about = [{"name": one.name, "trainable": one.trainable} for one in variables.values()]
    document = {"version": 2, "variables": about, "objects": objects.nodes, **written}
    (folder / FILE).write_text(json.dumps(document), encoding="utf-8")


def _warn_of_checks(omitted: set[str]) -> None:
    """Warns of assertions that the saved programs omit; does not warn of omitted `tf.print` and `tf.summary`."""
    checks = sorted(one for one in omitted if one != "tf.print" and not one.startswith("tf.summary."))
    if checks:
        warnings.warn(
            f"{SAVED}: the saved programs omit the checks of {', '.join(checks)}, because a saved program cannot call "
            "Python to report a failure. Check the arguments before you call a loaded function, or let it return the "
            "condition.",
            stacklevel=user_stacklevel(),
        )


def _check_replaceable(folder: Path, not_ours: set[str]) -> None:
    """Raises an error if saving to a path would remove something other than a saved program.

    Args:
        folder: The path.
        not_ours: Names that the folder must not contain.
    """
    taken = sorted(name for name in not_ours if os.path.lexists(folder / name))
    if taken or (os.path.lexists(folder) and not folder.is_dir()):
        raise ArgumentError(
            SAVED,
            found=f"{folder} {f'has {taken[0]}, and is not a saved program' if taken else 'is a file'}",
            rule="a saved program can replace only another saved program",
            remedy="pass another path, or move the existing files",
        )


def _put_in_place(unfinished: Path, directory: Path) -> None:
    """Moves a completely written saved model to its path; keeps unrelated files in the folder at that path.

    The file that identifies a program is removed first and moved last. A process that is killed in between leaves no
    program, instead of a mixture of two.
    """
    if not directory.exists():
        unfinished.rename(directory)
        return
    (directory / FILE).unlink(missing_ok=True)
    for name in _ENTRIES:
        shutil.rmtree(directory / name, ignore_errors=True)
        if (unfinished / name).exists():
            (unfinished / name).rename(directory / name)
    shutil.rmtree(unfinished, ignore_errors=True)


def _write_programs(
    name: str,
    file: Path,
    signature: Signature | LoadedProgram,
    variables: dict[int, Variable],
    omitted: set[str],
    restricted: dict[str, str],
) -> list[Any]:
    """Writes the programs of one signature to files whose names begin with `file`, and returns their descriptions.

    Adds to `omitted` the checks that the programs omit, and to `restricted` what to warn of, with the function's name.
    """
    if isinstance(signature, LoadedProgram):
        path = file.with_name(f"{file.name}-0")
        path.write_bytes(signature.serialized())
        return [{**signature.entry, "file": path.name, **_numbered(signature, variables)}]

    def trace(inputs: PyTree) -> tuple[Pure, bytes]:
        inputs = tree_map(_computed, inputs)
        with without_host_calls(omitted):
            pure = as_pure(signature.function, inputs, SAVED, aggregates=True)
            return pure, _exported(pure, inputs)

    try:
        programs = traced_for(signature.inputs, signature.seen, trace)
    except NotOpenError as error:
        raise not_open_error(name, signature, error.reason) from error.reason
    if (what := restriction(signature, programs)) is not None:
        restricted.setdefault(what, name)  # a function is written before the entry of `signatures` for it
    return [
        _written(file.with_name(f"{file.name}-{way}"), signature, one, variables) for way, one in enumerate(programs)
    ]


def _written(
    path: Path, signature: Signature, traced: Traced[tuple[Pure, bytes]], variables: dict[int, Variable]
) -> dict[str, Any]:
    pure, program = traced.program
    path.write_bytes(program)
    return {
        "file": path.name,
        "names": signature.names,
        "keywords": list(signature.keywords),
        "defaults": {name: _to_json(value) for name, value in signature.defaults.items()},
        "inputs": _to_json(traced.inputs),
        "output": _to_json(pure.output),
        "conditions": list(traced.conditions),
        **_numbered(pure, variables),
    }


def _numbered(program: Pure | LoadedProgram, variables: dict[int, Variable]) -> dict[str, list[int]]:
    """Returns the indices in `variables` of those that a program reads and assigns; appends missing variables."""
    for variable in (*program.reads, *program.assigns):
        variables.setdefault(id(variable), variable)
    order = list(variables)
    return {
        "reads": [order.index(id(variable)) for variable in program.reads],
        "assigns": [order.index(id(variable)) for variable in program.assigns],
    }


def _computed(leaf: Leaf) -> Leaf:
    """Returns a description of an array with the dtype in which JAX computes: of 32 bits, unless x64 is enabled."""
    return leaf.update(dtype=canonical_dtype(leaf.dtype)) if isinstance(leaf, jax.ShapeDtypeStruct) else leaf


def _exported(pure: Pure, inputs: PyTree) -> bytes:
    state = [jax.ShapeDtypeStruct(variable.component_shape, variable.dtype) for variable in pure.reads]
    arrays = [leaf for leaf in jax.tree.leaves(inputs) if isinstance(leaf, jax.ShapeDtypeStruct)]
    program = jax.jit(lambda values, operands: pure.call(values, operands))
    if any(map(calls_python, program.trace(state, arrays).jaxpr.eqns)):
        raise ArgumentError(
            SAVED,
            found="a function calls Python while it runs (jax.debug.print, a callback, or tf.py_function)",
            rule="a saved program can contain only operations of JAX; only tf.print and assertions are omitted",
            remedy="save a function without this call",
        )
    try:
        exported = jax.export.export(program, platforms=_PLATFORMS)(state, arrays)
    except NotImplementedError:  # one of the platforms lacks an operation
        exported = jax.export.export(program)(state, arrays)
    floats = [jnp.issubdtype(one.dtype, jnp.inexact) for one in (*exported.in_avals, *exported.out_avals)]
    try:
        return _serialized(exported, has_vjp=any(floats))
    except ImportError as error:
        raise MissingExtraError(
            SAVED,
            found=f"the package flatbuffers cannot be imported: {error}",
            rule='the extra "export" must be installed: jax.export writes programs with flatbuffers',
            remedy="run pip install 'mirrored[export]'",
        ) from error


def _serialized(exported: jax.export.Exported, *, has_vjp: bool) -> bytes:
    """Serializes a program with its VJP, or without it if JAX has none, such as for a loop of unknown length."""
    if has_vjp:
        with contextlib.suppress(ValueError, TypeError, NotImplementedError):
            return bytes(exported.serialize(vjp_order=1))
    return bytes(exported.serialize(vjp_order=0))


def _to_json(value: PyTree) -> Any:
    """Encodes a structure as JSON for `load`; an array becomes its shape and dtype."""
    if isinstance(value, jax.ShapeDtypeStruct):
        shape = [size if isinstance(size, int) else None for size in value.shape]
        return {"array": {"shape": shape, "dtype": str(value.dtype)}}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return in_order({name: _to_json(one) for name, one in zip(value._fields, value, strict=True)})
    if isinstance(value, (list, tuple)):
        return {"tuple" if isinstance(value, tuple) else "list": [_to_json(one) for one in value]}
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        parts = {key: _to_json(one) for key, one in value.items()}
        return in_order(parts) if isinstance(value, OrderedDict) else {"dict": parts}
    if value is None or isinstance(value, (bool, int, float, str)):
        return {"static": value}
    raise ArgumentError(
        SAVED,
        found=f"the arguments or results of a function contain a {type(value).__name__}",
        rule="they can only be arrays, None, numbers and strings, in lists, tuples and dicts with string keys",
        remedy="convert the object to these types",
    )
