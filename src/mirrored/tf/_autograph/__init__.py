"""AutoGraph: compiles Python's `if`, `while`, `for`, `and`, `or` and `not` on tensors.

diastatic-malt rewrites the source; it is TensorFlow's AutoGraph, maintained without TensorFlow. This package implements
the operators that the rewritten source calls.
"""
