"""Static analysis of jaxprs during tracing: which values differ between replicas, and how losses are scaled.

In the order in which one module builds on the other:

- `dataflow`: which operands an output of an equation depends on, and which results of a program on given inputs.
- `varying`: which values vary between devices, and the path by which each came to vary.
- `value_numbering`: which variables hold the same value, for the virtual replicas of one device.
- `replication_check`: the proof that the replicas assign equal values, and the error that explains why they do not.
- `divisions`: which divisions by the number of replicas average gradients over replicas.
- `loss_scaling`: losses that are averaged over the per-replica batch although their gradients are summed over replicas.
- `loss_scale_check`: the warning about them.

`strategies.compiled` calls the checks after it has traced the body of a run.
"""
