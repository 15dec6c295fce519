"""The state of code in a strategy scope or run: current strategy and replica, variable stores, replica threads.

- `ambient`: one object per thread with the current strategy, replica, variable store, replica runner and listeners.
- `variable_store`: where a variable is read from and written to in a run or a traced function.
- `overlay_store`: a store over another one, for a function that is differentiated.
- `lockstep`: `run_merge`, the only way from replica to cross-replica context, and the threads of local replicas.
- `atomic`: undoes the assignments of a merge or run that raises.
- `hooks`: what upper layers register here, so that this layer does not import them.

The layers above implement the interfaces: `strategies` the replica runners, `variables` the variables.
"""
