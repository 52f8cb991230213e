"""Pure decisions and arithmetic: no processes, files, clocks or devices.

Everything here imports on a laptop without torch, CUDA or MPI; import-linter holds that.
"""
