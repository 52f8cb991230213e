"""Implementations of all-reduce, one file each, behind the `Backend` protocol of `arfloor.backends.base`."""
