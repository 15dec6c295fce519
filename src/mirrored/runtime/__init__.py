"""Runtime: the ambient context, variable stores, the lock-step runner, merges, and read and write listeners."""
