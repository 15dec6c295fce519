"""Distributed values: `PerReplica` (one component per replica) and `Mirrored` (equal on all replicas).

- `distributed_values`: the two classes, and the form that a per-replica value has inside a compiled run.
- `stacking`: components to one array ``[replicas, ...]`` over all devices, and back.
- `structures`: pytrees of distributed values: selects one replica's part, and regroups the replicas' results.
- `provenance`: where a per-replica value comes from, for messages.
- `operators`: arithmetic on variables and mirrored values.
- `index_checks`: finds out-of-range indices in eager code.
- `sparse_rows`, `tensor_shape`: some rows of a larger array, and TensorFlow's shapes.
- `html`: HTML of objects for notebooks.
"""
