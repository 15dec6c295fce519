"""Device names, and the assignment of replicas to devices.

- `device_assignment`: R replicas on D devices, K = R / D virtual replicas on each, over one mesh axis.
- `independent_processes`: detects processes that a launcher started and that do not form a job.
"""
