# SPDX-License-Identifier: Apache-2.0
"""Arrays of JAX: the same bits as NumPy arrays, through DLPack. CI runs it where JAX is."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable

import ml_dtypes
import numpy as np
import pytest

import dlsim
from dlsim.arrays._dtypes import VALUES, source_of

jax = pytest.importorskip("jax")
jnp = jax.numpy

BASE = np.random.default_rng(5).standard_normal((6, 20, 30), dtype=np.float32) * np.float32(1e-4)
SR = {"rounding": "sr", "seed": 11}
SHAPES = [(6, 20, 30), (3600,), (60, 60), (), (0, 3), (1,)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float16, jnp.bfloat16])
def test_jax_arrays_give_the_codes_of_numpy(dtype: type, shape: tuple[int, ...]) -> None:
    array = np.resize(BASE, shape).astype(dtype)
    values = jnp.asarray(array)
    codes = dlsim.encode(values, "cb16", 2.0**20, **SR)
    assert isinstance(codes, jax.Array)
    assert (codes.dtype, codes.shape, codes.device) == (jnp.uint16, shape, values.device)
    expected = dlsim.encode(array, "cb16", 2.0**20, **SR)
    np.testing.assert_array_equal(codes, expected)
    back = dlsim.decode(codes, "cb16")
    assert isinstance(back, jax.Array)
    np.testing.assert_array_equal(back, dlsim.decode(expected, "cb16"))
    quantized = dlsim.quantize(values, "cb16", 2.0**20, **SR)
    assert (quantized.dtype, quantized.shape) == (jnp.float32, shape)
    np.testing.assert_array_equal(quantized, dlsim.quantize(array, "cb16", 2.0**20, **SR))
    assert dlsim.measure(values, "cb16", **SR) == dlsim.measure(array, "cb16", **SR)
    np.testing.assert_array_equal(values, array)


def test_jax_arrays_are_not_copied_and_results_are_taken_over() -> None:
    values = jnp.asarray(BASE)
    bits = source_of(values, "values", VALUES).bits
    assert bits.ctypes.data == values.unsafe_buffer_pointer()
    source = source_of(values, "values", VALUES)
    memory = source.empty("uint16")
    assert source.wrap(memory, "uint16").unsafe_buffer_pointer() == memory.ctypes.data


def test_transposed_arrays_are_in_c_order() -> None:
    values = jnp.asarray(BASE).T
    np.testing.assert_array_equal(dlsim.encode(values, "fp16"), dlsim.encode(BASE.T, "fp16"))


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16, jnp.float8_e4m3fn, jnp.float8_e5m2])
def test_formats_that_are_dtypes_can_be_given_and_had_as_such(dtype: type) -> None:
    values = jnp.asarray(BASE)
    mine = dlsim.encode(values, dtype, 4096, as_dtype=True)
    assert isinstance(mine, jax.Array)
    assert mine.dtype == dtype
    expected = (BASE * np.float32(4096)).astype(np.dtype(dtype))
    np.testing.assert_array_equal(np.asarray(mine), expected)
    np.testing.assert_array_equal(dlsim.decode(mine), expected.astype(np.float32))


def test_results_work_in_jitted_functions() -> None:
    double = jax.jit(lambda x: x * 2)
    values = dlsim.quantize(jnp.asarray(BASE), "bf16")
    np.testing.assert_array_equal(double(values), np.asarray(values) * 2)


def test_out_may_be_numpy() -> None:
    codes = np.empty(BASE.shape, np.uint16)
    assert dlsim.encode(jnp.asarray(BASE), "cb16", out=codes) is codes
    np.testing.assert_array_equal(codes, dlsim.encode(BASE, "cb16"))


def inside_jit() -> None:
    jax.jit(lambda x: dlsim.encode(x, "fp16"))(jnp.ones(3))


def inside_grad() -> None:
    jax.grad(lambda x: dlsim.quantize(x, "fp16").sum())(jnp.ones(3))


def deleted() -> None:
    values = jnp.ones(3)
    values.delete()
    dlsim.encode(values, "fp16")


BAD_CALLS: dict[str, tuple[type[Exception], str, Callable[[], object]]] = {
    "inside jit": (TypeError, "^values: traced by JAX", inside_jit),
    "inside grad": (TypeError, "^values: traced by JAX", inside_grad),
    "integers": (
        TypeError,
        "^values: bad element type, .*int32$",
        lambda: dlsim.encode(jnp.arange(3), "fp16"),
    ),
    "booleans": (
        TypeError,
        "^values: bad element type, .*",
        lambda: dlsim.encode(jnp.ones(3, bool), "fp16"),
    ),
    "complex": (
        TypeError,
        "^values: bad element type, .*",
        lambda: dlsim.encode(jnp.ones(3, jnp.complex64), "fp16"),
    ),
    "out of JAX": (
        TypeError,
        "^out: expected a NumPy array or a PyTorch tensor, got jax",
        lambda: dlsim.encode(np.ones(3), "fp16", out=jnp.zeros(3, jnp.uint16)),
    ),
    "deleted": (RuntimeError, "deleted", deleted),
}


@pytest.mark.parametrize("name", BAD_CALLS)
def test_bad_arguments_are_refused(name: str) -> None:
    error, message, call = BAD_CALLS[name]
    with pytest.raises(error, match=message):
        call()


def test_several_devices_are_refused() -> None:
    # Two CPU devices exist only in a process that asked for them before JAX began.
    code = (
        "import jax, dlsim, jax.numpy as jnp\n"
        "mesh = jax.make_mesh((2,), ('x',))\n"
        "spec = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec('x'))\n"
        "try: dlsim.encode(jax.device_put(jnp.ones(4), spec), 'fp16')\n"
        "except dlsim.UsageError as error: print(error)\n"
    )
    environment = os.environ | {"XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment
    )
    assert run.stdout.startswith("values: wrong device, expected one CPU device, got ")


def test_dtypes_of_jax_name_formats() -> None:
    np.testing.assert_array_equal(
        dlsim.encode(BASE, jnp.bfloat16), dlsim.encode(BASE, ml_dtypes.bfloat16)
    )
