"""The state of code in a strategy's scope or `run`: current strategy and replica, variable stores, replica threads.

- `ambient`: one object per thread with the current strategy, replica, variable store, replica runner and listeners.
- `variable_store`: where a variable is read from and written to in a run or a traced function; undoes
  assignments.
- `staged_values`: the values that a store has staged, and their derivatives.
- `overlay_store`: a store over another one, for a function that is differentiated.
- `merge`: `run_merge`, the only way from replica to cross-replica context.
- `rollback`: undoes the assignments of a run or merge that raises.
- `replica_runner`, `lockstep`: the interface of what executes a run, and the threads of local replicas.
- `component_reads`, `function_key`: reads of components that tapes record; functions compared between replicas.
- `closure_key`: the functions that a function driven from Python passes to `run`, compared between calls.
- `entry_point`: restores the thread's state when a public function raises.
- `hooks`: what upper layers register here, so that this layer does not import them.

The layers above implement the interfaces: `strategies` the replica runners, `variables` the variables.
"""
