"""The command `mirrored doctor`: checks the machine of every worker, and names hosts with a fault."""
