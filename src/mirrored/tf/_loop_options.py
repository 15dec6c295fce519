"""`tf.autograph.experimental.set_loop_options`, a directive that AutoGraph finds in the source code of a loop."""

from __future__ import annotations


def set_loop_options(
    parallel_iterations: object = None,
    swap_memory: object = None,
    maximum_iterations: object = None,
    shape_invariants: object = None,
) -> None:
    """Sets options of the enclosing loop, such as a maximum number of iterations; call it first in the loop's body.

    As in TensorFlow, it has no effect on loops that run in Python.

    Args:
        parallel_iterations: Ignored: XLA schedules the operations of an iteration.
        swap_memory: Ignored.
        maximum_iterations: After how many iterations a `while` loop ends.
        shape_invariants: Ignored: the shapes of a loop's variables do not change.

    Raises:
        UnimplementedError: `maximum_iterations` in a `for` loop over a tensor or a traced range.

    TensorFlow: `tf.autograph.experimental.set_loop_options`; in such a `for` loop, `maximum_iterations` has no effect.
    """
