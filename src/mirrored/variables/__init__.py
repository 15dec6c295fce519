"""Variables with a copy on every replica: mirrored (always equal), or one component per replica.

A read goes through `Variable.read_value` to `access.read`, an assignment through `Variable.assign` to `access.write`:

- `variable`: the class; `operators`: its operators; `component`: the view of one replica's copy.
- `access`: finds the variable store of the context, checks that the context allows the access, and reads or assigns.
- `assignment`: one assignment: checks the value, and computes the variable's new value.
- `sync_on_read`: variables with a component per replica, in cross-replica context.
- `rules`: synchronization, aggregation, and dtypes of assigned values.
- `storage`, `state_lock`: the stored value, and the lock under which it is replaced.
- `former`: the old values, which variables get back if a step that donates no buffers, or eager code, fails later.
- `creation`, `copying`: creation by all replicas together, and copies.
- `assigned`: finds the replicas' copies of an array that an assignment has returned outside of a run.
- `scattering`, `slicing`: scatter updates, and slices that can be assigned.
- `display`: HTML of variables for notebooks.
"""

from mirrored.variables.component import VariableComponent as VariableComponent
from mirrored.variables.copying import Reference as Reference
from mirrored.variables.creation import variable_creator_scope as variable_creator_scope
from mirrored.variables.rules import VariableAggregation as VariableAggregation
from mirrored.variables.rules import VariableSynchronization as VariableSynchronization
from mirrored.variables.variable import DistributedVariable as DistributedVariable
from mirrored.variables.variable import Variable as Variable
