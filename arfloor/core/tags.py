"""The tags of `line` packets, as arfloor/kernels/line.cu computes them: for tests and for studying tears.

A line is `lanes` times four 32-bit words; its last one or two words are the tag: the sum over lanes of a
hash of each lane's words, plus a salt of sequence and epoch. All arrays have shape (..., lanes, 4), uint32.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.uint32]
Tags = npt.NDArray[np.uint64]

_KEYS = (
    0x243F6A89,
    0x85A308D3,
    0x13198A2F,
    0x03707345,
    0xA4093823,
    0x299F31D1,
    0x082EFA99,
    0xEC4E6C89,
)
_LANE = 0x9E3779B1
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)


def digest(line: Words, tag_bits: int) -> Tags:
    """Sum over lanes of the hash of each lane's words, tag words counting as zero; shape (...,)."""
    lanes = line.shape[-2]
    words = line.astype(np.uint64)
    words[..., -1, 4 - tag_bits // 32 :] = 0
    lane = (np.arange(lanes, dtype=np.uint64) * np.uint64(_LANE)) & _LOW

    def factor(word: int, key: int) -> Tags:
        keyed: Tags = (words[..., word] + ((lane + np.uint64(_KEYS[key])) & _LOW)) & _LOW
        return keyed

    with np.errstate(over="ignore"):
        first = factor(0, 0) * factor(1, 1) + factor(2, 2) * factor(3, 3)
        if tag_bits == 32:
            folded = (first ^ (first >> _HALF)) & _LOW
            narrow: Tags = folded.sum(axis=-1, dtype=np.uint64) & _LOW
            return narrow
        second = factor(0, 4) * factor(3, 5) + factor(1, 6) * factor(2, 7)
        mixed = first ^ ((second << _HALF) | (second >> _HALF))
        wide: Tags = mixed.sum(axis=-1, dtype=np.uint64)
        return wide


def salt(sequence: int, epoch: int, tag_bits: int) -> int:
    """What a tag adds to the digest."""
    if tag_bits == 32:
        return (sequence * 0x9E3779B1 + epoch * 0x85EBCA77) & 0xFFFFFFFF
    return (sequence * 0x9E3779B97F4A7C15 + epoch * 0xC2B2AE3D27D4EB4F) & 0xFFFFFFFFFFFFFFFF


def seal(line: Words, sequence: int, epoch: int, tag_bits: int) -> Words:
    """The line with its tag words set."""
    sealed = line.copy()
    modulus = np.uint64((1 << tag_bits) - 1)
    with np.errstate(over="ignore"):
        tag = (digest(line, tag_bits) + np.uint64(salt(sequence, epoch, tag_bits))) & modulus
    sealed[..., -1, 3] = tag >> _HALF if tag_bits == 64 else tag
    if tag_bits == 64:
        sealed[..., -1, 2] = tag & _LOW
    return sealed


def is_whole(line: Words, sequence: int, epoch: int, tag_bits: int) -> npt.NDArray[np.bool_]:
    """Whether a line's tag fits its words and the sequence; shape (...,)."""
    fits: npt.NDArray[np.bool_] = np.all(seal(line, sequence, epoch, tag_bits) == line, axis=(-2, -1))
    return fits
