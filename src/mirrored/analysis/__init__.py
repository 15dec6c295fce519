"""Static analysis of jaxprs: dataflow, value numbering, the replication check, mismatched collectives, loss scaling."""
