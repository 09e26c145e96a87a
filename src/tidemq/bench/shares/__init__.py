"""One workload by several generators: threads of this process, or processes elsewhere."""
