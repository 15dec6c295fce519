"""Holds the arrows of docs/architecture.md: imports point one way, and private names are taken in one place each."""

from __future__ import annotations

import ast
import dataclasses
import functools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from mirrored.patches import LISTED

SOURCE = Path(__file__).parent.parent / "src" / "mirrored"

# Lowest first; a package imports only from lines above its own, and from itself.
LEVELS = [
    {"errors", "_blocks", "_threads", "_typing"},
    {"patches", "settings"},
    {"_jax", "config", "extras", "transport"},
    {"watchdog"},
    {"topology"},
    {"values"},
    {"runtime"},
    {"analysis"},
    {"collectives"},
    {"variables", "tape"},
    {"compilation"},
    {"strategies"},
    {"_core"},  # the names of all these, which `import mirrored` offers
    {"cluster", "data", "losses", "optimizers", "progress"},
    {"checkpoint", "gradients"},
    {"integrations", "elastic"},
    {"tf", "testing", "launcher", "perf_model"},
    {""},  # mirrored itself: __init__.py gathers the public names
    {"cli"},
]
LEVEL = {package: level for level, packages in enumerate(LEVELS) for package in packages}

UNSTABLE = ("jax.core", "jax.extend", "jax.interpreters", "jax._src")

# Private parts of other packages, as the code spells them, and the modules that may name them.
PRIVATE = {
    r"jax\._src": {"_jax/private.py"},
    r"keras\.(src|_tf_keras)": {"integrations/keras/private.py"},
    r"(flax\.)?nnx\.[a-z_]+\.\w+": {"integrations/flax/private.py"},
}

# What may be imported inside functions, because it may not be installed or because it would make every start slow.
OPTIONAL = {"grain", "orbax", "keras", "flax", "equinox", "matplotlib", "sklearn", "torch", "tensorflow"}
LAZY = {
    "cli": "`mirrored --help` must not wait for JAX",
    "testing/plugin.py": "pytest loads it in every session, also in those that use nothing of it",
}

# Names of TensorFlow beyond its current strategies, variables and datasets, by the modules outside of the facade that
# define them (docs/architecture.md has the reasons).
TENSORFLOW_NAMES = {
    "strategies/older_names.py": {
        "configure",
        "experimental_distribute_datasets_from_function",
        "experimental_run",
        "make_dataset_iterator",
        "make_input_fn_iterator",
        "unwrap",
        "update_config_proto",
    },
    "data/legacy.py": {"InputIterator", "make_dataset_iterator", "make_input_fn_iterator"},
    "runtime/hooks.py": {"make_dataset_iterator", "make_input_fn_iterator"},
    "variables/scattering.py": {f"scatter_{how}" for how in ("add", "div", "max", "min", "mul", "sub", "update")}
    | {f"scatter_nd_{how}" for how in ("add", "max", "min", "sub", "update")}
    | {"batch_scatter_update", "gather_nd", "sparse_read"},
    "values/tensor_shape.py": {"TensorShape"},
}
FACADE_NAMES = {"IndexedSlices", "SparseTensor", "TensorArray", "TensorSpec", "experimental_make_numpy_dataset"}


@dataclasses.dataclass(frozen=True)
class Import:
    target: str  # dotted, absolute
    line: int
    in_function: bool
    type_checking: bool


def imports_of(tree: ast.AST, in_function: bool = False, type_checking: bool = False) -> Iterator[Import]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.expr):  # contains no import
            continue
        inside = in_function or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        typing_only = type_checking or (isinstance(node, ast.If) and dotted(node.test).endswith("TYPE_CHECKING"))
        if isinstance(node, ast.Import):
            yield from (Import(alias.name, node.lineno, inside, typing_only) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"relative import in line {node.lineno}: write it in full"
            for alias in node.names:
                yield Import(f"{node.module}.{alias.name}", node.lineno, inside, typing_only)
        else:
            yield from imports_of(node, inside, typing_only)


def sources() -> list[Path]:
    return sorted(SOURCE.rglob("*.py"))


def short(path: Path) -> str:
    return path.relative_to(SOURCE).as_posix()


def package_of(path: Path) -> str:
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return "" if parts == ("__init__",) else parts[0]


def target_package(target: str) -> str | None:
    """The package of mirrored that an import goes to; None if it goes elsewhere."""
    root, _, rest = target.partition(".")
    if root != "mirrored":
        return None
    first = rest.partition(".")[0]
    return first if (SOURCE / first).is_dir() or (SOURCE / f"{first}.py").is_file() else ""


def upward(package: str, target: str) -> bool:
    to = target_package(target)
    return to is not None and to != package and LEVEL[to] >= LEVEL[package]


@functools.cache  # every file is searched several times
def names_in(tree: ast.AST) -> list[str]:
    """Returns what a module imports, and its attributes: ``a.b.c``, or ``().b.c`` of a call's result."""
    found = [one.target for one in imports_of(tree)]
    return found + [dotted(node) for node in ast.walk(tree) if isinstance(node, ast.Attribute)]


def dotted(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else "()"


def unstable_names(tree: ast.AST) -> list[str]:
    """What a module takes from JAX's unstable parts, by import or by attribute."""
    found = names_in(tree)
    return [name for name in found if any(name == bad or name.startswith(f"{bad}.") for bad in UNSTABLE)]


def defined(tree: ast.AST) -> set[str]:
    """The names of a module's functions, methods and classes."""
    kinds = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
    return {node.name for node in ast.walk(tree) if isinstance(node, kinds)}


def private_names(tree: ast.AST) -> list[tuple[str, str]]:
    """What a module takes from other packages' private parts, with the pattern: by import or by attribute."""
    found = list(names_in(tree))
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and node.args]
    found += [str(ast.literal_eval(one.args[0])) for one in calls if _imports_a_constant(one)]
    return [(name, pattern) for name in found for pattern in PRIVATE if re.search(rf"(^|\.){pattern}(\.|$)", name)]


def _imports_a_constant(call: ast.Call) -> bool:
    return dotted(call.func).endswith(("import_module", "__import__")) and isinstance(call.args[0], ast.Constant)


def foreign_attributes(tree: ast.AST, patched: set[str], own: bool = False) -> Iterator[ast.Attribute]:
    """Attributes with an underscore of objects of other packages.

    Those of a class of the module itself are left out, and those that mirrored sets or replaces.
    """
    for node in ast.iter_child_nodes(tree):
        inside = own or isinstance(node, ast.ClassDef)
        if isinstance(node, ast.Attribute) and re.match(r"_[^_]", node.attr):
            is_own = inside and ast.unparse(node.value) in ("self", "cls", "super()")
            if not is_own and node.attr not in patched and not node.attr.startswith("_mirrored"):
                yield node
        yield from foreign_attributes(node, patched, inside)


def cycles(graph: dict[str, set[str]]) -> list[list[str]]:
    """One cycle through each back edge, by depth-first search."""
    done: set[str] = set()
    found: list[list[str]] = []

    def visit(node: str, path: list[str]) -> None:
        if node in path:
            found.append([*path[path.index(node) :], node])
        elif node not in done:
            for other in sorted(graph.get(node, ())):
                visit(other, [*path, node])
            done.add(node)

    for node in sorted(graph):
        visit(node, [])
    return found


def module_name(path: Path) -> str:
    parts = ["mirrored", *path.relative_to(SOURCE).with_suffix("").parts]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@functools.cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def test_no_module_is_long():
    lengths = {path.relative_to(SOURCE).as_posix(): len(path.read_text().splitlines()) for path in sources()}
    assert {name: lines for name, lines in lengths.items() if lines > 450} == {}


def test_every_package_has_a_level():
    assert {package_of(path) for path in sources()} <= set(LEVEL)


@pytest.mark.parametrize("path", sources(), ids=short)
def test_imports_point_downward(path):
    package = package_of(path)
    imports = [one for one in imports_of(parsed(path)) if not one.type_checking]
    wrong = [f"line {one.line}: {one.target}" for one in imports if upward(package, one.target)]
    assert not wrong, f"{short(path)} imports from its own level or above (docs/architecture.md): {wrong}"


@pytest.mark.long
def test_no_cycle_between_modules():
    modules = {module_name(path): path for path in sources()}
    graph: dict[str, set[str]] = {}
    for name, path in modules.items():
        targets = [one.target for one in imports_of(parsed(path)) if not one.type_checking and not one.in_function]
        reached = {target if target in modules else target.rpartition(".")[0] for target in targets}
        graph[name] = (reached & set(modules)) - {name, "mirrored"}
    assert not cycles(graph)


@pytest.mark.parametrize("path", sources(), ids=short)
def test_no_import_inside_a_function(path):
    if short(path) in LAZY or package_of(path) in LAZY:
        return
    inside = [one for one in imports_of(parsed(path)) if one.in_function]
    wrong = [f"line {one.line}: {one.target}" for one in inside if one.target.partition(".")[0] not in OPTIONAL]
    assert not wrong, f"{short(path)} imports inside a function: {wrong}"


@pytest.mark.parametrize("path", sources(), ids=short)
def test_only_the_shims_touch_unstable_jax(path):
    if package_of(path) == "_jax":
        return
    assert not unstable_names(parsed(path)), f"{short(path)}: go through a shim in mirrored/_jax"


def test_the_core_defines_names_of_tensorflow_only_where_they_cannot_move():
    names = FACADE_NAMES.union(*TENSORFLOW_NAMES.values())
    found = {short(path): names & defined(parsed(path)) for path in sources() if package_of(path) != "tf"}
    assert {path: here for path, here in found.items() if here} == TENSORFLOW_NAMES


@pytest.mark.parametrize("path", sources(), ids=short)
def test_private_names_are_taken_in_one_module_of_each_package(path):
    found = [name for name, pattern in private_names(parsed(path)) if short(path) not in PRIVATE[pattern]]
    assert not found, f"{short(path)} names private parts: take them from {sorted(set().union(*PRIVATE.values()))}"


@pytest.mark.parametrize("path", [one for one in sources() if package_of(one) == "integrations"], ids=short)
def test_bridges_read_private_attributes_in_one_module(path):
    if path.name == "private.py":
        return
    patched = {name.rpartition(".")[2] for names in LISTED.values() for name in names}
    found = [f"line {node.lineno}: {ast.unparse(node)}" for node in foreign_attributes(parsed(path), patched)]
    assert not found, f"{short(path)} reads private attributes: add helpers to private.py beside it"


# The checks themselves: each sees what it is there to see.


@pytest.mark.parametrize(
    "program",
    [
        "import jax.core",
        "from jax import core",
        "from jax._src import config as c",
        "import jax\njax.core.Tracer",
        "def f():\n    from jax.extend.core import Var",
        "import jax\nx: jax.interpreters.mlir.ir.Type",
    ],
)
def test_unstable_names_are_seen(program):
    assert unstable_names(ast.parse(program))


def test_stable_names_are_let_through():
    assert not unstable_names(
        ast.parse("import jax\nfrom jax import lax\njax.jit(lax.add)\nfrom jax.corelike import x")
    )


@pytest.mark.parametrize(
    "program",
    [
        "from jax._src import config",
        "import keras\nkeras.src.backend.Variable",
        "from keras.src.backend import Variable",
        "importlib.import_module('keras._tf_keras.keras')",
        "connected.keras.src",
        "from flax.nnx.tracers import TraceState",
        "nnx.tracers.current_jax_trace()",
    ],
)
def test_private_names_are_seen(program):
    assert private_names(ast.parse(program))


def test_public_names_are_let_through():
    program = "import keras\nfrom flax import nnx\nkeras.Variable\nnnx.Optimizer.update\nnnx.state(model).flat"
    assert not private_names(ast.parse(f"{program}\n'see keras.src for more'"))


def test_private_attributes_of_other_objects_are_seen():
    program = (
        "def wrap(self):\n    self._theirs = 1\n    self._mirrored_ours = model._patched\n"
        "class Own:\n    def f(self, model):\n        return self._own, model._also_theirs, self.__dict__"
    )
    found = [node.attr for node in foreign_attributes(ast.parse(program), {"_patched"})]
    assert found == ["_theirs", "_also_theirs"]


def test_upward_imports_are_seen():
    assert upward("tape", "mirrored.variables.Variable")
    assert upward("runtime", "mirrored.strategies.MirroredStrategy")
    assert upward("data", "mirrored.Variable")
    assert not upward("strategies", "mirrored.topology.device_assignment.DeviceAssignment")
    assert not upward("tape", "mirrored.tape.records")
    assert not upward("runtime", "jax.numpy")


def test_imports_are_seen_wherever_they_stand():
    program = (
        "if TYPE_CHECKING:\n    import a\nclass C:\n    def f(self):\n        import b\nwith x:\n    from c import d"
    )
    seen = {one.target: (one.in_function, one.type_checking) for one in imports_of(ast.parse(program))}
    assert seen == {"a": (False, True), "b": (True, False), "c.d": (False, False)}


def test_cycles_are_seen():
    assert cycles({"a": {"b"}, "b": {"c"}, "c": {"a"}}) == [["a", "b", "c", "a"]]
    assert cycles({"a": {"b", "c"}, "b": {"c"}}) == []
