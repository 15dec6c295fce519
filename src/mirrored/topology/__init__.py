"""Device names, and the assignment of replicas to devices.

- `device_assignment`: R replicas on D devices, R / D virtual replicas on each, rounded up or down, over one mesh axis.
- `slots`: the places of the replicas in a compiled program, which has the same number of them on each device.
- `independent_processes`: detects processes that a launcher started and that do not form a job.
"""
