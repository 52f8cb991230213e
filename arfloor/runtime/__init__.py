"""Processes and devices: supervision, workers, groups, timing, health, run-time compilation, memory slabs."""
