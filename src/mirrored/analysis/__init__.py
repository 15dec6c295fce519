"""Analysis of jaxprs: value numbering, dataflow, the replication check, mismatched collectives, the scale of losses."""
