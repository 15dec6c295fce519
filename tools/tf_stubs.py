"""Writes the stubs of `mirrored.tf`, whose names come from tables that type checkers cannot read.

    python tools/tf_stubs.py            writes src/mirrored/tf/**/*.pyi
    python tools/tf_stubs.py --check    exits with 1 if a stub differs from what it would write, is missing or is stale

A namespace without namespaces below it is a file (``math/special.pyi``), any other a package (``math/__init__.pyi``).
An object with several names is declared at one of them, and the others import it from there.

What differs from the runtime, because programs that are right need it:

- ``Tensor``, at runtime `jax.Array`, is a subclass with the methods that `mirrored.tf` adds to arrays. Its operators
  and the operations return it.
- A class whose methods return arrays is declared as a subclass whose methods return ``Tensor``.
- The result of `tf.shape` and other host values are ``Any``, and so is a loaded model: see `OPEN`.
- `tf.keras` and what it contains are ``Any``: Keras has no types.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import importlib
import inspect
import sys
import types
import typing
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Final, NamedTuple

import jax

from mirrored import Function, _blocks, _typing
from mirrored.tf import _names, _table
from mirrored.tf._saved_model.loading import LoadedModel
from mirrored.tf._static import StaticTensor

ROOT: Final = "mirrored.tf"
FOLDER: Final = Path(__file__).resolve().parents[1] / "src" / "mirrored" / "tf"
WIDTH: Final = 120
# Where an object's public name is looked for, before the module that defines it.
PUBLIC: Final = (
    "mirrored", "mirrored.data", "mirrored.cluster", "mirrored.collectives", "mirrored.losses", "mirrored.checkpoint",
    "mirrored.errors", "mirrored.strategies", "mirrored.compilation", "mirrored.tape", "mirrored.variables",
)  # fmt: skip
# Results that programs use by members that their class does not have: a loaded model has those of the saved one, and a
# host value takes part in operations like a `jax.Array`.
OPEN: Final = (LoadedModel, StaticTensor)
# Decorators with and without arguments, and what they make of a function: one signature cannot say both.
DECORATORS: Final = {"function": Function, "autograph.experimental.do_not_convert": Callable[..., Any]}
# Unions with a name: the name is shorter, and some members are private to JAX.
UNIONS: Final = {
    name: typing.get_args(one)
    for name, one in vars(_typing).items()
    if typing.get_origin(one) in (types.UnionType, typing.Union)
}
# Keras' own: described by Keras, or not at all.
KERAS: Final = ("keras", "losses", "metrics", "optimizers")

BINARY: Final = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and", "or", "xor")
COMPARISONS: Final = ("lt", "le", "gt", "ge", "eq", "ne")
TENSOR: Final = "\n".join(
    [
        "class Tensor(Array):",
        "    def numpy(self) -> Any: ...",
        "    def get_shape(self) -> TensorShape: ...",
        "    def set_shape(self, shape: Any) -> None: ...",
        "    def __getitem__(self, key: Any) -> Tensor: ...",
        "    def __iter__(self) -> Iterator[Tensor]: ...",
        *(f"    def __{name}__(self) -> Tensor: ..." for name in ("neg", "pos", "abs", "invert")),
        *(f"    def __{r}{name}__(self, other: Any) -> Tensor: ..." for name in BINARY for r in ("", "r")),
        *(
            f"    def __{name}__(self, other: Any) -> Tensor: ..."
            + "  # type: ignore[override]" * (name in ("eq", "ne"))
            for name in COMPARISONS
        ),
    ]
)
MESSAGE: Final = """\
class _Message:
    def SerializeToString(self) -> bytes: ...
    def ParseFromString(self, serialized: bytes) -> int: ...
    @classmethod
    def FromString(cls, s: bytes) -> Self: ...
    def CopyFrom(self, other_msg: Self) -> None: ...
    def MergeFrom(self, other_msg: Self) -> None: ...
    def MergeFromString(self, serialized: bytes) -> int: ...
    def Clear(self) -> None: ...
    def ClearField(self, field_name: str) -> None: ...
    def HasField(self, field_name: str) -> bool: ...
    def WhichOneof(self, oneof_group: str) -> str | None: ...
    def ListFields(self) -> list[Any]: ...
    def ByteSize(self) -> int: ..."""


class Place(NamedTuple):
    """A name of the facade: its namespace ("" is the top) and the name in it."""

    space: str
    leaf: str


class Method(NamedTuple):
    """A method or property of a class: its name, its function, and its decorator or ""."""

    name: str
    function: Callable[..., Any]
    decorator: str


def place_of(path: str) -> Place:
    """Splits ``"math.abs"`` into its namespace and name."""
    space, _, leaf = path.rpartition(".")
    return Place(space, leaf)


def module_of(space: str) -> str:
    """Returns the module's full name."""
    return f"{ROOT}.{space}" if space else ROOT


def everything() -> dict[str, Any]:
    """Returns every name of the facade with its object, in the tables' order; Keras' modules are None."""
    lazy = {path: None if path in KERAS else load() for path, load in _names.LAZY.items()}
    return {**_names.NAMES, **lazy}


@dataclasses.dataclass
class Stub:
    """One stub: what it imports and declares."""

    space: str
    names: set[str]
    imports: set[str] = dataclasses.field(default_factory=set)
    from_imports: set[tuple[str, str, str]] = dataclasses.field(default_factory=set)
    classes: dict[str, str] = dataclasses.field(default_factory=dict)
    functions: dict[str, str] = dataclasses.field(default_factory=dict)
    values: dict[str, str] = dataclasses.field(default_factory=dict)
    aliases: dict[str, str] = dataclasses.field(default_factory=dict)  # last: what they name is declared above

    def bring(self, module: str, name: str) -> str:
        """Imports a name for use in annotations, under another name if the stub declares a different object by it."""
        if module == "builtins" and name not in self.names:
            return name
        if module == "builtins":
            self.imports.add("builtins")
            return f"builtins.{name}"
        if module == module_of(self.space):
            return name
        if name in self.names:
            self.from_imports.add((module, name, f"_{name}"))
            return f"_{name}"
        self.from_imports.add((module, name, ""))
        return name

    def text(self) -> str:
        """Returns the stub, in the shape that the formatter gives it."""
        title = f"tf.{self.space}" if self.space else "tf"
        imported = {one for one in self.from_imports if one[2] or (one[0], one[1], one[1]) not in self.from_imports}
        stub = [f'"""Type stub of `{title}`, written by tools/tf_stubs.py."""']
        stub += _import_lines(self.imports, imported)
        stub += ["\n".join(text for _, text in sorted(self.values.items()))] if self.values else []
        stub += [text for _, text in sorted(self.classes.items())]
        stub += ["\n".join(text for _, text in sorted(self.functions.items()))] if self.functions else []
        stub += ["\n".join(text for _, text in sorted(self.aliases.items()))] if self.aliases else []
        return "\n\n".join(stub) + "\n"


def _import_lines(plain: Iterable[str], named: Iterable[tuple[str, str, str]]) -> list[str]:
    """Returns one block of imports per section, ordered like the linter orders them."""
    sections: dict[int, list[str]] = {}
    for module in sorted(plain):
        sections.setdefault(_section(module), []).append(f"import {module}")
    together: dict[str, list[str]] = {}
    for module, name, alias in sorted(named, key=lambda one: (one[0], _member_order(one[1]), one[2])):
        section = sections.setdefault(_section(module), [])
        if alias or name == "*":
            section.append(f"from {module} import {name}" + (f" as {alias}" if alias else "  # noqa: F403"))
            continue
        if module not in together:
            section.append(module)
        together.setdefault(module, []).append(name)
    return [
        "\n".join(_names_from(one, together[one]) if one in together else one for one in section)
        for _, section in sorted(sections.items())
    ]


def _names_from(module: str, names: list[str]) -> str:
    line = f"from {module} import {', '.join(names)}"
    return line if len(line) <= WIDTH else f"from {module} import (\n" + "".join(f"    {one},\n" for one in names) + ")"


def _section(module: str) -> int:
    root = module.partition(".")[0]
    return 0 if root in sys.stdlib_module_names else 2 if root == "mirrored" else 1


def _member_order(name: str) -> tuple[int, str]:
    kind = 0 if name.isupper() and len(name) > 1 else 1 if name[:1].isupper() else 2
    return kind, name.lower()


class Writer:
    """Builds the stubs of all namespaces.

    Args:
        names: Every name with its object.

    Attributes:
        names: The same.
        spaces: The namespaces, "" for the top.
        stubs: What is known of each namespace's stub.
    """

    def __init__(self, names: dict[str, Any]) -> None:
        self.names = names
        spaces = {""} | {place_of(path).space for path in names}
        spaces |= {".".join(one.split(".")[:depth]) for one in spaces if one for depth in range(1, one.count(".") + 1)}
        self.spaces = sorted(spaces | {"experimental.numpy", "experimental.numpy.random"})
        places: dict[str, list[str]] = {space: [] for space in self.spaces}
        for path in names:
            places[place_of(path).space].append(place_of(path).leaf)
        for space in filter(None, self.spaces):
            places[place_of(space).space].append(place_of(space).leaf)
        self.stubs = {space: Stub(space, set(places[space])) for space in self.spaces}
        self._home = self._homes()
        self._retyped = self._classes_with_tensors()

    def _homes(self) -> dict[int, Place]:
        """Returns where each object is declared: at the name that it has itself, else at its first."""
        found: dict[int, list[str]] = {}
        for path, value in self.names.items():
            if isinstance(value, (type, types.FunctionType, types.MethodType)) and self._is_described(value):
                found.setdefault(id(value), []).append(path)
        homes = {}
        for paths in found.values():
            value = self.names[paths[0]]
            own = [path for path in paths if place_of(path).leaf == value.__name__ and ".experimental" not in path]
            homes[id(value)] = place_of(min(own or paths, key=lambda path: path.startswith("compat.")))
        homes[id(jax.Array)] = Place("", "Tensor")
        return homes

    def _classes_with_tensors(self) -> set[type]:
        """Returns the public classes with a method that returns an array or such a class."""
        classes = {value for value in self.names.values() if isinstance(value, type) and _is_ours(value)}
        found: set[type] = set()
        while True:
            more = {
                one
                for one in classes - found
                if any(self._retypes(one, found, function) for _, function, _ in self._own_methods(one))
            }
            if not more:
                return found
            found |= more

    def _own_methods(self, owner: type) -> Iterable[Method]:
        """Returns the methods of a class and of its bases that are not public."""
        found: dict[str, Method] = {}
        for base in owner.__mro__:
            if base is owner or (_is_ours(base) and id(base) not in self._home and _importable(base)[0] not in PUBLIC):
                found = {one.name: one for one in _methods(base)} | found
        return found.values()

    def _retypes(self, owner: type, retyped: set[type], method: Callable[..., Any]) -> bool:
        mentioned = set(_mentioned(signature_of(method).return_annotation))
        return bool(mentioned & {jax.Array, *retyped} - {owner}) or (owner in retyped and owner in mentioned)

    def write(self) -> dict[Path, str]:
        """Returns the text of every stub by its path below the package."""
        for path, value in self.names.items():
            self._enter(path, value)
        for space in filter(None, self.spaces):
            above, leaf = place_of(space)
            self.stubs[above].from_imports.add((module_of(above), leaf, leaf))
        self._enter_numpy()
        return {self.path(space): stub.text() for space, stub in self.stubs.items()} | {Path("keras.pyi"): _KERAS_STUB}

    def path(self, space: str) -> Path:
        """Returns where the stub of a namespace lies."""
        folder = Path(*space.split("."))
        if not space or any(other.startswith(f"{space}.") for other in self.spaces):
            return folder / "__init__.pyi"
        return folder.with_suffix(".pyi")

    def _enter(self, path: str, value: Any) -> None:
        place = place_of(path)
        stub = self.stubs[place.space]
        if path == "keras":
            stub.from_imports.add((ROOT, "keras", "keras"))
        elif path in KERAS:
            stub.values[place.leaf] = f"{place.leaf}: {stub.bring('typing', 'Any')}"
        elif isinstance(value, types.ModuleType):
            pass  # a namespace with a stub of its own
        elif isinstance(value, (type, types.FunctionType, types.MethodType)) and self._is_described(value):
            self._declare(stub, place, value)
        elif value is Any:
            alias, anything = stub.bring("typing", "TypeAlias"), stub.bring("typing", "Any")
            stub.values[place.leaf] = f"{place.leaf}: {alias} = {anything}"
        elif isinstance(value, types.BuiltinFunctionType | type):
            self._assign(stub, place.leaf, value.__module__, value.__name__)
        else:
            stub.values[place.leaf] = f"{place.leaf}: {self._of_type(stub, value)}"

    def _is_described(self, value: Any) -> bool:
        return value is jax.Array or _is_ours(value) or _is_message(value)

    def _of_type(self, stub: Stub, value: Any) -> str:
        return "None" if value is None else self._class(stub, type(value))

    def _declare(self, stub: Stub, place: Place, value: Any) -> None:
        """Declares a class or function at its home, or imports it from there."""
        home = self._home[id(value)]
        if home != place:
            self._assign(stub, place.leaf, module_of(home.space), home.leaf)
        elif value is jax.Array:
            for module, name in (("jax", "Array"), ("typing", "Any"), ("collections.abc", "Iterator")):
                stub.bring(module, name)
            stub.classes[place.leaf] = TENSOR
        elif _is_message(value):
            self._declare_message(stub, place.leaf, value)
        elif isinstance(value, type) and value in self._retyped:
            self._declare_retyped(stub, place.leaf, value)
        elif isinstance(value, type) or self._is_public_elsewhere(value):
            self._assign(stub, place.leaf, *_importable(value))
        elif ".".join(filter(None, place)) in DECORATORS:
            stub.functions[place.leaf] = self._decorator(stub, place, value)
        else:
            stub.functions[place.leaf] = self._function(stub, place.leaf, value, indent="")

    def _decorator(self, stub: Stub, place: Place, value: Any) -> str:
        made, function = DECORATORS[".".join(filter(None, place))], Callable[..., Any]
        signature = signature_of(value)
        first, *rest = signature.parameters.values()
        without = signature.replace(
            parameters=[first.replace(annotation=None), *rest], return_annotation=Callable[[function], made]
        )
        applied = signature.replace(
            parameters=[first.replace(annotation=function, default=first.empty), *rest], return_annotation=made
        )
        mark = f"@{stub.bring('typing', 'overload')}\n"
        return "\n".join(mark + self._signed(stub, place.leaf, one, indent="") for one in (without, applied))

    def _is_public_elsewhere(self, function: Any) -> bool:
        """Returns whether a public module has the function, and its annotations are right for the facade too."""
        returned = set(_mentioned(signature_of(function).return_annotation))
        return _importable(function)[0] in PUBLIC and not returned & {jax.Array, *self._retyped}

    def _assign(self, stub: Stub, leaf: str, module: str, name: str) -> None:
        if name == leaf:
            stub.from_imports.add((module, name, name))
        else:
            stub.aliases[leaf] = f"{leaf} = {stub.bring(module, name)}"

    def _declare_message(self, stub: Stub, name: str, message: Any) -> None:
        anything, own = stub.bring("typing", "Any"), stub.bring("typing", "Self")
        assert (anything, own) == ("Any", "Self")
        stub.classes["_Message"] = MESSAGE
        fields = [field.name for field in message.DESCRIPTOR.fields]
        head = "def __init__"
        arguments = ["self", "*", *(f"{field}: Any = None" for field in fields)]
        lines = [*(f"    {field}: Any" for field in fields), _def("    ", head, arguments, "None")]
        stub.classes[name] = f"class {name}(_Message):\n" + "\n".join(lines)

    def _declare_retyped(self, stub: Stub, name: str, value: type) -> None:
        if _is_declared(value):
            module, original = _importable(value)
            base = f"_{original}"
            stub.from_imports.add((module, original, base))
        else:
            base = self._class(stub, value.__base__)
        lines = []
        if "__new__" in vars(value):  # the original's returns the original, whose methods return arrays
            anything, own = stub.bring("typing", "Any"), stub.bring("typing", "Self")
            lines.append(f"    def __new__(cls, *args: {anything}, **kwargs: {anything}) -> {own}: ...")
        if "__new__" in vars(value) or not _is_declared(value):
            lines.append(self._function(stub, "__init__", vars(value)["__init__"], indent="    "))
        for method, function, kind in self._own_methods(value):
            if self._retypes(value, self._retyped, function):
                lines += [f"    @{kind}"] if kind else []
                text = self._function(stub, method, function, indent="    ")
                # A list of the subclass is not a list of the original.
                lines.append(text + "  # type: ignore[override]" * ("-> list[" in text))
        stub.classes[name] = f"class {name}({base}):\n" + "\n".join(lines)

    def _function(self, stub: Stub, name: str, function: Any, *, indent: str) -> str:
        return self._signed(stub, name, signature_of(function), indent=indent, of=getattr(function, "__self__", None))

    def _signed(self, stub: Stub, name: str, signature: inspect.Signature, *, indent: str, of: Any = None) -> str:
        returned = self._annotation(stub, signature.return_annotation, of=of)
        return _def(indent, f"def {name}", list(self._arguments(stub, signature)), returned)

    def _arguments(self, stub: Stub, signature: inspect.Signature) -> Iterator[str]:
        positional = starred = False
        for one in signature.parameters.values():
            if positional and one.kind is not one.POSITIONAL_ONLY:
                yield "/"
            positional = one.kind is one.POSITIONAL_ONLY
            if one.kind is one.KEYWORD_ONLY and not starred:
                yield "*"
            starred = starred or one.kind in (one.VAR_POSITIONAL, one.KEYWORD_ONLY)
            stars = {one.VAR_POSITIONAL: "*", one.VAR_KEYWORD: "**"}.get(one.kind, "")
            if one.name in ("self", "cls"):
                yield one.name
                continue
            default = "" if one.default is one.empty else f" = {_default(one.default)}"
            yield f"{stars}{one.name}: {self._annotation(stub, one.annotation, tensors=False)}{default}"
        if positional:
            yield "/"

    def _annotation(self, stub: Stub, what: Any, *, of: Any = None, tensors: bool = True) -> str:
        """Returns the source of an annotation. Arrays are ``Tensor`` where `tensors`, else `jax.Array`."""

        def inner(one: Any) -> str:
            return self._annotation(stub, one, of=of, tensors=tensors)

        if isinstance(what, list):  # the parameters of a Callable
            return f"[{', '.join(map(inner, what))}]"
        origin, arguments = typing.get_origin(what), typing.get_args(what)
        if origin in (types.UnionType, typing.Union):
            return " | ".join(self._members(stub, arguments, inner))
        if origin is not None:
            return f"{self._class(stub, origin)}[{', '.join(map(inner, arguments))}]"
        if what is typing.Self:
            return self._class(stub, of) if isinstance(of, type) else stub.bring("typing", "Self")
        if what is jax.Array and not tensors:
            return stub.bring("jax", "Array")
        if what in _WRITTEN:
            return _WRITTEN[what]
        if what is inspect.Signature.empty or not isinstance(what, type):
            return stub.bring("typing", "Any")
        return self._class(stub, what)

    def _members(self, stub: Stub, members: Iterable[Any], source: Callable[[Any], str]) -> Iterator[str]:
        """Yields the sources of a union's members, and the names of the unions that are part of it."""
        rest = list(members)
        for name, named in UNIONS.items():
            if all(one in rest for one in named):
                yield stub.bring(_typing.__name__, name)
                rest = [one for one in rest if one not in named]
        yield from map(source, rest)

    def _class(self, stub: Stub, what: Any) -> str:
        home = self._home.get(id(what))
        if what in OPEN:
            return stub.bring("typing", "Any")
        if home is not None:
            return stub.bring(module_of(home.space), home.leaf)
        if _is_ours(what) and issubclass(what, tuple) and hasattr(what, "_fields"):
            return self._named_tuple(stub, what)
        return stub.bring(*_importable(what))

    def _named_tuple(self, stub: Stub, what: Any) -> str:
        """Declares the type of a result with several parts, which is not public."""
        name = f"_{what.__name__.lstrip('_')}"
        if name not in stub.classes:
            base = stub.bring("typing", "NamedTuple")
            hints = typing.get_type_hints(what)
            fields = [
                f"    {field}: {self._annotation(stub, hints[field])}"
                + "  # type: ignore[assignment]" * hasattr(tuple, field)
                for field in what._fields
            ]
            stub.classes[name] = f"class {name}({base}):\n" + "\n".join(fields)
        return name

    def _enter_numpy(self) -> None:
        """Describes `tf.experimental.numpy`: all of `jax.numpy`, and what only TensorFlow has."""
        module = self.names["experimental.numpy"]
        stub = self.stubs["experimental.numpy"]
        stub.names |= set(dir(jax.numpy))
        stub.from_imports.add(("jax.numpy", "*", ""))
        functions = {name: one for name, one in vars(module).items() if isinstance(one, types.FunctionType)}
        for name, function in functions.items():
            stub.functions[name] = self._function(stub, name, function, indent="")
        stub = self.stubs["experimental.numpy.random"]
        for name, function in vars(module.random).items():
            if isinstance(function, types.FunctionType):
                stub.functions[name] = self._function(stub, name, function, indent="")


_WRITTEN: Final = {None: "None", type(None): "None", Ellipsis: "..."}
_KERAS_STUB: Final = '''\
"""Type stub of `tf.keras`, written by tools/tf_stubs.py: every name is Keras' own."""

from typing import Any

def __getattr__(name: str) -> Any: ...
'''


def _is_ours(value: Any) -> bool:
    return str(getattr(value, "__module__", "")).partition(".")[0] == "mirrored" and not _is_message(value)


def _is_declared(value: type) -> bool:
    """Returns whether a class statement defines the class, which a call may do as well."""
    return "<locals>" not in vars(value).get("__init__", _is_declared).__qualname__


def _is_message(value: Any) -> bool:
    return hasattr(value, "DESCRIPTOR")


def _methods(owner: type) -> Iterator[Method]:
    """Yields the public methods and properties that a class itself defines."""
    for name, value in vars(owner).items():
        if name.startswith("_") and name not in ("__call__", "__enter__"):
            continue
        if isinstance(value, property) and value.fget is not None:
            yield Method(name, value.fget, "property")
        elif isinstance(value, (classmethod, staticmethod)) and _is_ours(value.__func__):
            yield Method(name, value.__func__, type(value).__name__)
        elif isinstance(value, types.FunctionType):
            yield Method(name, value, "")


def signature_of(function: Callable[..., Any]) -> inspect.Signature:
    """Returns the signature with evaluated annotations; that of an operation of the tables comes from its row."""
    plain = inspect.unwrap(function)
    if getattr(plain, "__code__", None) is not None:
        known = inspect.getclosurevars(plain).nonlocals if plain.__module__ == "mirrored.tf._table" else {}
        if "parameters" in known:
            return _signature_of_row(known["parameters"], known["target"])
    signature = _evaluated(inspect.signature(function), getattr(plain, "__globals__", {}))
    code = getattr(function, "__code__", None)
    if code is not None and code.co_filename in (contextlib.__file__, _blocks.__file__):
        (yielded,) = typing.get_args(signature.return_annotation)
        return signature.replace(return_annotation=AbstractContextManager[yielded])  # of @contextmanager
    return signature


def _evaluated(signature: inspect.Signature, names: dict[str, Any]) -> inspect.Signature:
    """Evaluates annotations one by one: a name that only type checkers import makes its annotation `Any`."""

    def value(annotation: Any) -> Any:
        try:
            return eval(annotation, names) if isinstance(annotation, str) else annotation
        except NameError:
            return Any

    parameters = [one.replace(annotation=value(one.annotation)) for one in signature.parameters.values()]
    return signature.replace(parameters=parameters, return_annotation=value(signature.return_annotation))


def _signature_of_row(parameters: Iterable[Any], target: Callable[..., Any]) -> inspect.Signature:
    found = [
        inspect.Parameter(
            one.name,
            inspect.Parameter.POSITIONAL_OR_KEYWORD,
            default=one.default if _is_plain(one.default) else inspect.Parameter.empty,
            annotation=_table.accepted(one.kind) if one.kind in _table.ACCEPTED else Any,
        )
        for one in parameters
    ]
    if all(one.name != "name" for one in parameters):
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        found.append(inspect.Parameter("name", kind, default=None, annotation=str | None))
    return inspect.Signature(found, return_annotation=jax.Array if _returns_array(target) else Any)


def _returns_array(target: Callable[..., Any]) -> bool:
    try:
        returned = inspect.signature(target).return_annotation
    except (TypeError, ValueError):
        return False
    return returned in (jax.Array, "Array", "jax.Array")


def _mentioned(annotation: Any) -> Iterator[Any]:
    yield annotation if not isinstance(annotation, list) else None
    for one in typing.get_args(annotation):
        if not isinstance(one, list):
            yield from _mentioned(one)


def _importable(value: Any) -> tuple[str, str]:
    """Returns a module and a name to import an object by: a public module's where there is one."""
    owner = value.__module__
    for module in (*PUBLIC, owner):
        if (
            _is_ours(value)
            and module in PUBLIC
            and getattr(importlib.import_module(module), value.__name__, None) is value
        ):
            return module, value.__name__
    if getattr(jax, value.__name__, None) is value:
        return "jax", value.__name__
    if owner in ("builtins", "typing", "collections.abc"):
        return owner, value.__name__
    if value in (AbstractContextManager,):
        return "contextlib", value.__name__
    if owner.startswith("unittest"):
        return "unittest", "main"
    return owner, value.__name__


def _is_plain(value: Any) -> bool:
    if isinstance(value, tuple):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, (bool, int, str)) or (isinstance(value, float) and abs(value) < 1e300)


def _default(value: Any) -> str:
    if not _is_plain(value) or isinstance(value, types.EllipsisType):
        return "..."
    return f'"{repr(value)[1:-1]}"' if isinstance(value, str) and '"' not in value else repr(value)


def _def(indent: str, head: str, arguments: list[str], returned: str) -> str:
    tail = f") -> {returned}: ..."
    line = f"{indent}{head}({', '.join(arguments)}{tail}"
    if len(line) <= WIDTH:
        return line
    line = f"{indent}    {', '.join(arguments)}"
    if len(line) <= WIDTH:
        return f"{indent}{head}(\n{line}\n{indent}{tail}"
    return f"{indent}{head}(\n" + "".join(f"{indent}    {one},\n" for one in arguments) + f"{indent}{tail}"


def stubs() -> dict[Path, str]:
    """Returns the text of every stub by its path below `src/mirrored/tf`."""
    return Writer(everything()).write()


def differences(expected: dict[Path, str], folder: Path) -> list[str]:
    """Returns one line per stub that is missing, differs or belongs to no namespace."""
    there = {path.relative_to(folder): path.read_text(encoding="utf-8") for path in folder.rglob("*.pyi")}
    found = [f"{path}: missing" for path in sorted(expected.keys() - there.keys())]
    found += [f"{path}: no such namespace" for path in sorted(there.keys() - expected.keys())]
    return found + [f"{path}: out of date" for path in sorted(there) if expected.get(path, there[path]) != there[path]]


def main(arguments: list[str] | None = None) -> int:
    """Writes or checks the stubs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if a stub is out of date")
    options = parser.parse_args(arguments)
    expected = stubs()
    found = differences(expected, FOLDER)
    if options.check:
        print("\n".join([*found, "run: python tools/tf_stubs.py"] if found else [f"{len(expected)} stubs are current"]))
        return bool(found)
    for path in FOLDER.rglob("*.pyi"):
        if path.relative_to(FOLDER) not in expected:
            path.unlink()
    for path, text in expected.items():
        target = FOLDER / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
    print(f"wrote {len(expected)} stubs")
    return 0


if __name__ == "__main__":
    sys.exit(main())
