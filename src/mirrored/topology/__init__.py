"""Topology: devices by name, and the assignment of replicas to devices."""
