"""AutoGraph: Python's `if`, `while`, `for`, `and`, `or`, `not` over tensors, as parts of compiled programs.

The rewriting of the source is diastatic-malt's, which is TensorFlow's own AutoGraph, maintained without TensorFlow.
What the rewritten statements do is written here.
"""
