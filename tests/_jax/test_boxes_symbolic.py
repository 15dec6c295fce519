from __future__ import annotations

import jax
import jax.export
import jax.numpy as jnp
import pytest

from mirrored._jax.boxes import InconclusiveDimensionOperation


def test_a_question_about_an_unknown_size_is_refused_by_it():
    (size,) = jax.export.symbolic_shape("n")
    with pytest.raises(InconclusiveDimensionOperation, match="is inconclusive"):
        jax.make_jaxpr(lambda x: jnp.zeros(3) if x.shape[0] > 7 else x)(jax.ShapeDtypeStruct((size,), jnp.float32))
