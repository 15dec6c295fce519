"""Concrete functions, and how TensorFlow 2.21 describes them.

`python tests/tf/concrete_function_cases.py` prints the descriptions as JSON, with TensorFlow installed.
"""

from __future__ import annotations

import collections
import json
from collections.abc import Callable
from typing import Any

Point = collections.namedtuple("Point", ["x", "y"])


def cases(tf: Any) -> dict[str, Callable[[], Any]]:
    """Functions that create a concrete function, by name."""
    spec = tf.TensorSpec
    rows = tf.data.Dataset.from_tensor_slices(([1.0, 2.0], [1, 2])).batch(2)
    v = tf.Variable([1.0, 2.0])

    class Model(tf.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = tf.Variable([[1.0], [2.0]])

        @tf.function
        def __call__(self, x, training=False):
            return tf.matmul(x, self.w)

        @tf.function(input_signature=[tf.TensorSpec([None, 2])])
        def predict(self, x):
            return tf.matmul(x, self.w)

    model = Model()

    def of(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Callable[[], Any]:
        return lambda: tf.function(function).get_concrete_function(*args, **kwargs)

    def declared(function: Callable[..., Any], *specs: Any) -> Callable[[], Any]:
        return lambda: tf.function(function, input_signature=specs).get_concrete_function()

    def plus(x, y=2):
        return x + tf.cast(y, x.dtype)

    def keyword(x, *, scale=1.0):
        return x * scale

    def several(*xs, **named):
        return tf.add_n([*xs, *named.values()])

    return {
        "one": of(lambda x: 2.0 * x, spec([2])),
        "named": of(lambda x: 2.0 * x, spec([2], name="features")),
        "a tensor": of(lambda x: 2.0 * x, tf.constant([1.0, 2.0])),
        "default": of(plus, spec([2])),
        "number": of(plus, spec([2], tf.int32), 3),
        "two": of(plus, spec([2]), spec([], tf.int32)),
        "by keyword": of(plus, y=spec([]), x=spec([3])),
        "keyword only": of(keyword, spec([2]), scale=spec([])),
        "keyword default": of(keyword, spec([2])),
        "var": of(several, spec([2]), spec([2])),
        "var keyword": of(several, spec([2]), b=spec([2]), a=spec([2])),
        "dictionary": of(lambda batch: batch["a"] + batch["b"], {"a": spec([]), "b": spec([2])}),
        "tuple": of(lambda batch: batch[0] + batch[1][0], (spec([2]), [spec([])])),
        "namedtuple": of(lambda p: Point(p.y, p.x), Point(spec([2]), spec([], tf.int32))),
        "string": of(lambda mode, x: x, "train", spec([2])),
        "None": of(lambda x, mask: x, spec([2]), None),
        "no arguments": of(lambda: tf.constant(1)),
        "no result": of(lambda x: None, spec([2])),
        "results": of(lambda x: {"a": (x, [tf.reduce_sum(x)]), "b": x}, spec([2])),
        "a result of None": of(lambda x: (x, None), spec([2])),
        "a number": of(lambda x: (x, 1), spec([])),
        "unknown size": declared(lambda x: tf.reduce_sum(x, 1), spec([None, 3])),
        "unknown sizes": declared(lambda x, y: (x + 1, tf.reduce_sum(y, 1)), spec([None, None]), spec([None, 2])),
        "unknown rank": declared(lambda x: 2 * x, spec(None)),
        "declared": declared(lambda x, y: x + y, spec([2], name="x_in"), spec([2])),
        "element spec": declared(lambda x, y: x, *rows.element_spec),
        "variable": of(lambda x: v.assign_add(x), spec([2])),
        "method": lambda: model.__call__.get_concrete_function(spec([4, 2])),
        "method training": lambda: model.__call__.get_concrete_function(spec([4, 2]), training=True),
        "declared method": lambda: model.predict.get_concrete_function(),
        "bool": of(lambda x: x > 0, spec([2, 2], tf.int32)),
    }  # fmt: skip


def described(tf: Any, concrete: Any) -> dict[str, Any]:
    """Returns the descriptions of a concrete function, as JSON has them; inputs without those of variables."""
    inputs = [one for one in concrete.inputs if one.dtype != tf.resource] if hasattr(tf, "raw_ops") else concrete.inputs
    return {
        "structured_input_signature": repr(concrete.structured_input_signature),
        "structured_outputs": repr(tf.nest.map_structure(lambda one: _spec(tf, one), concrete.structured_outputs)),
        "inputs": [repr(_spec(tf, one)) for one in inputs],
        "outputs": [repr(_spec(tf, one)) for one in concrete.outputs],
        "names": [[one.name for one in inputs], [one.name for one in concrete.outputs]],
        "output_shapes": repr(concrete.output_shapes),
        "output_dtypes": repr(concrete.output_dtypes),
        "short": concrete.pretty_printed_signature(verbose=False),
        "long": concrete.pretty_printed_signature().partition("\nCaptures:")[0],
        "parameters": {name: str(one.kind) for name, one in concrete.function_type.parameters.items()},
        "type": repr(concrete.function_type.output),
        "start": repr(concrete).partition(" at 0x")[0],
    }


def _spec(tf: Any, one: Any) -> Any:
    return None if one is None else tf.TensorSpec(one.shape, one.dtype)


def main() -> None:
    import tensorflow as tf

    recorded = {}
    for name, make in cases(tf).items():
        try:
            recorded[name] = described(tf, make())
        except Exception as error:
            recorded[name] = {"error": type(error).__name__, "message": str(error)[:300]}
    print(json.dumps(recorded, indent=1))


if __name__ == "__main__":
    main()
