"""`mirrored doctor`: checks every worker's machine, and names the hosts with a fault."""
