"""Probes of compiling programs as they are written."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import primitives
from jax.sharding import AxisType, Mesh, PartitionSpec

from mirrored._jax.bit_identical import jit, without_compiler_options
from mirrored._jax.traces import current_trace, eager, put_trace

SOURCE = str(pathlib.Path(__file__).parents[2] / "src")


def optimised(function: Any, *args: Any, bit_identical: bool) -> str:
    text: str = jit(function, bit_identical=bit_identical).lower(*args).compile().as_text()
    return text


def test_common_subexpressions_are_not_merged() -> None:
    def twice(x: Any) -> Any:
        return jnp.sin(x) * 2 + jnp.sin(x)

    assert optimised(twice, 1.0, bit_identical=True).count(" sine(") == 2
    assert optimised(twice, 1.0, bit_identical=False).count(" sine(") == 1


@pytest.mark.parametrize("devices", [1, 2, 4])
def test_divisions_by_one_scalar_are_the_same_kernels_whatever_the_devices(devices: int) -> None:
    """Merged, the broadcast of the scalar has several users, and all divisions but the last become products."""
    local = 4 // devices

    def body(x: Any, scale: Any) -> Any:
        return jnp.stack([jnp.sum(x[k] / scale, -1) for k in range(local)])

    mesh = Mesh(np.array(jax.devices()[:devices]), ("d",), axis_types=(AxisType.Auto,))
    specs = (PartitionSpec("d"), PartitionSpec())
    mapped = jax.shard_map(body, mesh=mesh, in_specs=specs, out_specs=PartitionSpec("d"), check_vma=False)
    x = np.arange(12.0, dtype="f4").reshape(4, 3)
    function = body if devices == 1 else mapped
    assert optimised(function, x, np.float32(3.0), bit_identical=True).count(" divide(") == local


NUMBERS = np.random.default_rng(0).normal(size=(4, 1003))


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("kind", ["sum", "difference", "square", "cube", "several"])
def test_products_are_rounded_before_they_are_added(kind: str, dtype: str) -> None:
    a, b, c, d = NUMBERS.astype(jnp.dtype(dtype))
    functions: dict[str, Any] = {
        "sum": lambda a, b, c, d: a * b + c,
        "difference": lambda a, b, c, d: c - a * b,
        "square": lambda a, b, c, d: a**2 + c if isinstance(a, np.ndarray) else jax.lax.square(a) + c,
        "cube": lambda a, b, c, d: a * a * a + c if isinstance(a, np.ndarray) else jax.lax.integer_pow(a, 3) + c,
        "several": lambda a, b, c, d: a * b + c * d,
    }
    expected = functions[kind](a, b, c, d)
    np.testing.assert_array_equal(jit(functions[kind], bit_identical=True)(a, b, c, d), expected)
    if dtype == "float32" and kind == "several":  # otherwise the test could not fail
        assert np.any(np.asarray(jax.jit(functions[kind])(a, b, c, d)) != expected)


@pytest.mark.parametrize("kind", ["arguments", "constants", "powers"])
def test_quotients_and_powers_are_rounded_before_they_are_added(kind: str) -> None:
    x, y = NUMBERS[:2].astype("f4")
    s, t, one = np.float32(3.1), np.float32(7.3), np.float32(1)
    functions: dict[str, Any] = {
        "arguments": lambda x, y, s, t: x / s + y / t,
        "constants": lambda x, y, *_: x / 3.1 + y / 7.3,
        "powers": lambda x, y, *_: x**2.0 + jax.lax.pow(y, jnp.full_like(y, 2.0)),
    }
    found = np.asarray(jit(functions[kind], bit_identical=True)(x, y, s, t))
    if kind == "powers":
        candidates = [x * x + y * y]
    else:  # XLA may divide or multiply by the reciprocal
        candidates = [x / s + y / t, x * (one / s) + y * (one / t)]
    assert any(np.array_equal(found, candidate) for candidate in candidates)


def test_programs_for_several_platforms_have_no_conditionals() -> None:
    def products(x: Any, n: Any) -> Any:
        return x * x * 0.5 + x**3 / n, n * n

    shapes = jax.ShapeDtypeStruct((4,), jnp.float32), jax.ShapeDtypeStruct((), jnp.int32)
    exported = jax.export.export(jax.jit(products), platforms=("cpu", "cuda", "tpu"))(*shapes)
    assert "stablehlo.case" not in exported.mlir_module()


def test_complex_products_are_rounded_before_they_are_added() -> None:
    (a, b), (c, d) = (NUMBERS[rows].astype("f4") for rows in ([0, 1], [2, 3]))
    found = np.asarray(jit(lambda x, y: x * y + x, bit_identical=True)(a + 1j * b, c + 1j * d))
    np.testing.assert_array_equal(found.real, a * c - b * d + a)
    np.testing.assert_array_equal(found.imag, a * d + b * c + b)
    scaled = np.asarray(jit(lambda x: x * (0.3 + 0.7j), bit_identical=True)(a + 1j * b))
    np.testing.assert_array_equal(scaled.imag, a * np.float32(0.7) + b * np.float32(0.3))


def test_products_keep_infinities_zeros_and_nan() -> None:
    special = np.array([np.inf, -np.inf, np.nan, 0.0, -0.0, 1e-20, 3e38], "f4")
    a, b = (side.ravel() for side in np.meshgrid(special, special))
    found, expected = jit(jnp.multiply, bit_identical=True)(a, b), jax.jit(jnp.multiply)(a, b)
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(np.signbit(found), np.signbit(expected))


def test_it_runs_without_warnings(capfd: pytest.CaptureFixture[str]) -> None:
    mesh = Mesh(np.array(jax.devices()[:2]), ("d",), axis_types=(AxisType.Auto,))
    summed = jax.shard_map(
        lambda x: jax.lax.psum(x, "d"), mesh=mesh, in_specs=PartitionSpec("d"), out_specs=PartitionSpec()
    )
    step = jit(summed, bit_identical=True)
    assert step(np.ones(2, "f4")).tolist() == [2.0]
    assert capfd.readouterr().err == ""


@pytest.mark.long
def test_what_xla_logs_otherwise_is_as_before() -> None:
    """A program with GSPMD beside it still warns."""
    code = """
import jax, numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from mirrored._jax.bit_identical import jit
jit(lambda x: x + 1, bit_identical=True)(1.0)
mesh = Mesh(np.array(jax.devices()), ("d",), axis_types=(AxisType.Auto,))
x = jax.device_put(np.ones(2, "f4"), NamedSharding(mesh, PartitionSpec("d")))
jax.config.update("jax_use_shardy_partitioner", False)
jax.jit(lambda x: x.sum())(x)
"""
    two_devices = {"XLA_FLAGS": "--xla_force_host_platform_device_count=2", "JAX_PLATFORMS": "cpu"}
    uncached = {"JAX_ENABLE_COMPILATION_CACHE": "false"}  # XLA warns when it compiles
    environment = {**os.environ, **two_devices, **uncached, "PYTHONPATH": SOURCE}
    ended = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], env=environment, capture_output=True, text=True, timeout=50
    )
    assert ended.returncode == 0, ended.stderr
    assert "GSPMD" in ended.stderr


@pytest.mark.parametrize(("flags", "level"), [("", 0), ("--xla_gpu_autotune_level=4", None)])
def test_bit_identical_programs_are_not_autotuned_unless_xla_flags_say_so(flags, level, monkeypatch) -> None:
    monkeypatch.setenv("XLA_FLAGS", flags)
    given = {}
    monkeypatch.setattr(jax, "jit", lambda function, **options: given.update(options))
    jit(lambda x: x, bit_identical=True)
    found = given["compiler_options"]
    assert found.get("xla_gpu_autotune_level") == level
    assert found["xla_gpu_deterministic_ops"]
    assert {"cse", "dot-merger"} <= set(str(found["xla_disable_hlo_passes"]).split(","))


class Noting(jax.core.Trace):
    """A trace that notes the parameters of `jit`, and applies each primitive eagerly, as a tape does."""

    def __init__(self) -> None:
        super().__init__()
        self.params: list[dict[str, object]] = []

    def process_primitive(self, primitive, args, params, /):
        self.params.append(params)
        with eager():
            return primitive.bind(*args, **params)


def test_compiler_options_are_taken_out_of_the_parameters_of_jit() -> None:
    trace, step = Noting(), jit(lambda x: x + 1.0, bit_identical=True)
    before = current_trace()
    put_trace(trace)
    try:
        step(1.0)
    finally:
        put_trace(before)
    (params,) = trace.params
    assert params["compiler_options_kvs"], "the name of the parameter has changed"
    inside = without_compiler_options(params)
    assert jax.jit(lambda x: primitives.jit_p.bind(x, **inside)[0])(1.0) == 2.0
    with pytest.raises(ValueError, match="compiler_options"):
        jax.jit(lambda x: primitives.jit_p.bind(x, **params)[0])(1.0)
