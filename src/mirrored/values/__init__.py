"""Distributed values: `PerReplica` (one component per replica) and `Mirrored` (equal on all replicas).

- `distributed_values`: the two classes, and the form that a per-replica value has inside a compiled run.
- `stacking`: components to one array ``[slots, ...]`` over all devices, and back.
- `structures`: pytrees of distributed values: selects one replica's part, and regroups the replicas' results.
- `belonging`: checks that a per-replica value has one component for each replica of the strategy that uses it.
- `provenance`, `reprs`: where a per-replica value comes from, for messages, and how it is printed.
- `operators`: arithmetic on variables and mirrored values.
- `index_checks`: finds out-of-range indices in eager code.
- `sparse_rows`, `tensor_shape`: some rows of a larger array, and TensorFlow's shapes.
- `html`: HTML of objects for notebooks.
"""
