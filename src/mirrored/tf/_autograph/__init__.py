"""AutoGraph: makes Python's `if`, `while`, `for`, `and`, `or` and `not` over tensors part of compiled programs.

diastatic-malt rewrites the source; it is TensorFlow's AutoGraph, maintained without TensorFlow. This package implements
the operators that the rewritten source calls.
"""
