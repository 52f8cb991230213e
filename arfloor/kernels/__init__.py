"""CUDA sources of our own protocols, one `.cu` a protocol; the rest is chosen by -D macros."""
