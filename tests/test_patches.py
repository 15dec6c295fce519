"""What mirrored changes in other packages is listed, and can be taken back."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from mirrored import integrations, patches
from mirrored.errors import ArgumentError

# Every attribute of the classes and modules of a package; classes by identity: packages give them several names.
SNAPSHOT = """
import sys, types
IGNORED = ("__abstractmethods__", "_abc_impl", "__doc__", "__annotate_func__", "__annotations_cache__")

def ours(one):
    return isinstance(one, type) and (one.__module__ or "").split(".")[0] in PACKAGES

def snapshot():
    found = {}
    for module in list(sys.modules.values()):
        if isinstance(module, types.ModuleType) and module.__name__.split(".")[0] in PACKAGES:
            for owner in [module, *filter(ours, list(vars(module).values()))]:
                for name, value in list(vars(owner).items()):
                    if name not in IGNORED:
                        found[(id(owner), name)] = (owner, value)
    return found

def path(owner, name):
    # JAX 0.10 calls its array class jaxlib._jax.Array.
    return f"{getattr(owner, '__qualname__', owner.__name__).removeprefix('jaxlib._jax.')}.{name}"

def changed(before, after):
    gone = {path(before[key][0], key[1]) for key in before.keys() - after.keys()}
    new = {path(owner, key[1]) for key, (owner, value) in after.items()
           if key not in before and not isinstance(value, types.ModuleType)}
    other = {path(owner, key[1]) for key, (owner, value) in after.items()
             if key in before and before[key][1] is not value}
    return gone | new | other
"""


def lines_of(program: str, packages: tuple[str, ...], **environment: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", f"PACKAGES = {packages!r}\n{SNAPSHOT}\n{program}"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "JAX_PLATFORMS": "cpu", **environment},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.splitlines()


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("package", "imports"),
    [("keras", "import keras, keras._tf_keras.keras"), ("flax", "from flax import nnx")],
)
@pytest.mark.long
def test_an_empty_scope_changes_what_is_listed_and_disconnect_takes_it_back(package, imports):
    program = f"""
{imports}
import mirrored as mr
from mirrored import integrations, patches
strategy = mr.OneDeviceStrategy("CPU:0")
before = snapshot()
with strategy.scope():
    pass
print(*sorted(changed(before, snapshot())))
print(*sorted(patches.applied("{package}")))
integrations.disconnect()
print(*sorted(changed(before, snapshot())))
with strategy.scope():
    pass
print(*sorted(patches.applied("{package}")))
"""
    really, applied, left, again = lines_of(program, (package,), KERAS_BACKEND="jax")
    elsewhere = {"keras.layers.experimental", "keras._tf_keras.keras.layers.experimental"}
    elsewhere |= {"Tracer._keras_mask"}
    listed = patches.LISTED[package]
    assert set(applied.split()) == listed
    assert set(really.split()) == listed - elsewhere, "new modules are not looked for"
    assert left == ""
    assert again == applied


@pytest.mark.timeout(300)
@pytest.mark.long
def test_the_facade_changes_arrays_as_listed():
    program = """
import jax, jax.numpy
import mirrored as mr; mr.Variable
before = snapshot()
import mirrored.tf
from mirrored import integrations
print(*sorted(path for path in changed(before, snapshot()) if path.split(".")[0] in ("Array", "ArrayImpl", "Tracer")))
integrations.disconnect("jax")
print(*sorted(path for path in changed(before, snapshot()) if path.split(".")[0] in ("Array", "ArrayImpl", "Tracer")))
"""
    really, left = lines_of(program, ("jax", "jaxlib"))
    assert set(really.split()) == patches.LISTED["jax"]
    assert left == ""


@pytest.mark.timeout(300)
@pytest.mark.long
def test_the_core_changes_functions_of_jax_as_listed():
    program = """
import jax, jax.numpy, optax
before = snapshot()
import mirrored as mr; mr.Variable
after = {key: value for key, value in snapshot().items() if key in before}  # without modules that are loaded only now
print(*sorted(changed({key: before[key] for key in after}, after)))
"""
    (really,) = lines_of(program, ("jax", "jaxlib"))
    only_in_0_10 = {"jax._src.core.canonicalize_value_dtype"}
    assert set(really.split()) | only_in_0_10 == patches.LISTED["jax functions"]


MODEL = "keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])"
ORDERS = {
    "keras first": f"""
import keras
import mirrored as mr
with mr.OneDeviceStrategy("CPU:0").scope():
    model = {MODEL}
""",
    "mirrored first": f"""
import mirrored as mr
strategy = mr.OneDeviceStrategy("CPU:0")
import keras
with strategy.scope():
    model = {MODEL}
""",
    "inside the scope": f"""
import mirrored as mr
with mr.OneDeviceStrategy("CPU:0").scope():
    import keras
    model = {MODEL}
""",
}


@pytest.mark.sampled(3)
@pytest.mark.timeout(300)
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.long
def test_the_order_of_imports_does_not_matter(order):
    program = f"{ORDERS[order]}\nprint(type(model.weights[0]).__name__)"
    assert lines_of(program, ("keras",), KERAS_BACKEND="jax") == ["StrategyVariable"]


@pytest.mark.long
def test_mirrored_before_keras_chooses_the_backend():
    program = "import mirrored, keras; print(keras.backend.backend())"
    assert lines_of(program, (), KERAS_BACKEND="") == ["jax"]


OTHER_BACKEND = """
import warnings, types, sys
keras = types.ModuleType("keras")
keras.backend = types.SimpleNamespace(backend=lambda: "torch")
sys.modules["keras"] = keras
import mirrored as mr
"""


@pytest.mark.long
def test_a_scope_with_keras_on_another_backend_says_what_to_write():
    program = f"""{OTHER_BACKEND}
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    for _ in range(2):
        with mr.OneDeviceStrategy("CPU:0").scope():
            pass
print(len(caught), caught[0].message)
"""
    told = "\n".join(lines_of(program, ()))
    assert told.startswith("1 keras uses the backend 'torch'")
    assert "import os; os.environ['KERAS_BACKEND'] = 'jax'" in told


@pytest.mark.long
def test_the_bridge_to_keras_on_another_backend_says_what_to_write():
    program = f"""{OTHER_BACKEND}
try:
    import mirrored.integrations.keras
except mr.errors.ContextError as error:
    print(error)
"""
    assert "import os; os.environ['KERAS_BACKEND'] = 'jax'" in "\n".join(lines_of(program, ()))


@pytest.mark.timeout(300)
@pytest.mark.long
def test_nnx_may_be_imported_inside_the_scope():
    program = """
import mirrored as mr
with mr.OneDeviceStrategy("CPU:0").scope():
    from flax import nnx
    model = nnx.Linear(2, 3, rngs=nnx.Rngs(0))
from mirrored.integrations.flax.connecting import is_mirrored
print(is_mirrored(model.kernel), [one for one in sys.meta_path if "mirrored" in type(one).__module__])
"""
    assert lines_of(program, ("flax",)) == ["True []"]


MODULES = {
    "indirect.py": "from flax import nnx\ndef make(): return nnx.Linear(2, 1, rngs=nnx.Rngs(0))\n",
    "late.py": "import flax\ndef make():\n    from flax import nnx\n    return nnx.Linear(2, 1, rngs=nnx.Rngs(0))\n",
    "made.py": "from flax import nnx\nmodel = nnx.Linear(2, 1, rngs=nnx.Rngs(0))\ndef make(): return model\n",
    "deep.py": "from flax.nnx.nn.linear import Linear\nfrom flax.nnx import Rngs\n"
    "def make(): return Linear(2, 1, rngs=Rngs(0))\n",
}
OPENED = {
    "scope": "with strategy.scope():\n    model = imported()\n",
    "set for the process": "mr.experimental_set_strategy(strategy)\n"
    "model = imported()\n"
    "mr.experimental_set_strategy(None)\n",
    "another thread": "with strategy.scope():\n"
    "    thread = threading.Thread(target=__import__, args=(NAME,))\n"
    "    thread.start()\n"
    "    thread.join()\n"
    "    model = imported()\n",
}


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("module", "opened"),
    [
        ("indirect.py", "scope"),
        ("late.py", "set for the process"),
        pytest.param("made.py", "scope", marks=pytest.mark.slow),
        pytest.param("deep.py", "another thread", marks=pytest.mark.slow),
    ],
)
@pytest.mark.long
def test_a_package_that_imports_nnx_may_be_imported_in_the_scope(module, opened, tmp_path):
    """The first import of NNX in the process; gradients of the model are those of mirrored variables."""
    (tmp_path / module).write_text(MODULES[module])
    program = f"""
import importlib, threading
sys.path.insert(0, {str(tmp_path)!r})
NAME = {module.removesuffix(".py")!r}
import jax.numpy as jnp
import mirrored as mr
strategy = mr.MirroredStrategy(["CPU:0"], num_replicas=2)
imported = lambda: importlib.import_module(NAME).make()
{OPENED[opened]}
from flax import nnx

def replica_step(x):
    with mr.GradientTape() as tape:
        loss = mr.losses.average_loss(model(x)[:, 0])
    return tape.gradient(loss, nnx.state(model, nnx.Param))["kernel"][...]

found = strategy.run(replica_step, args=(jnp.ones((2, 2)),))
print([one.tolist() for one in strategy.local_results(found)], len(model.kernel._raw_value.values))
print([one for one in sys.meta_path if "mirrored" in type(one).__module__])
"""
    assert lines_of(program, ("flax",)) == ["[[[0.5], [0.5]], [[0.5], [0.5]]] 2", "[]"]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("opened", ["scope", *(pytest.param(one, marks=pytest.mark.slow) for one in list(OPENED)[1:])])
@pytest.mark.long
def test_keras_and_equinox_may_be_imported_in_the_scope_by_another_package(opened, tmp_path):
    (tmp_path / "indirect.py").write_text(
        "import equinox, jax, keras\n"
        "def make():\n"
        "    import mirrored as mr\n"
        "    return mr.mirror(equinox.nn.Linear(2, 1, key=jax.random.key(0))), keras.layers.Dense(1)\n"
    )
    program = f"""
import importlib, threading
sys.path.insert(0, {str(tmp_path)!r})
NAME = "indirect"
import mirrored as mr
strategy = mr.MirroredStrategy(["CPU:0"], num_replicas=2)

def imported():
    linear, dense = importlib.import_module(NAME).make()
    dense.build((None, 2))
    return linear, dense

{OPENED[opened]}
linear, dense = model
print(len(linear.weight.values), type(dense.kernel).__name__, len(dense.kernel.mirrored.values))
"""
    assert lines_of(program, ("keras",), KERAS_BACKEND="") == ["2 StrategyVariable 2"]


def test_what_is_not_listed_is_refused():
    class Layer:
        pass

    with pytest.raises(AssertionError, match="is not listed"):
        patches.replace("keras", Layer, "forgotten", None)


def test_an_unknown_package_is_named():
    with pytest.raises(ArgumentError, match="'torch'"):
        integrations.disconnect("torch")


@pytest.mark.long
def test_a_bridge_may_be_the_first_to_import_its_framework_in_a_scope():
    program = (
        "import mirrored as mr\n"
        "strategy = mr.MirroredStrategy(['CPU:0'])\n"
        "with strategy.scope():\n"
        "    from mirrored.integrations import keras\n"
        "    from mirrored.integrations import flax\n"
        "    import keras as framework\n"
        "    layer = framework.layers.Dense(2)\n"
        "    layer.build((None, 3))\n"
        "print(type(layer.kernel).__name__)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=55, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "StrategyVariable\n"
