"""The synthetic tensor-parallel decode step."""
