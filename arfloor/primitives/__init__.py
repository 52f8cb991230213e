"""Link probes: what the wires beneath an all-reduce can do."""
