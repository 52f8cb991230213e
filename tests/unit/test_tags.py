"""The tags of lines detect tears: mirrored in Python, and tried on the payloads that simple sums miss."""

from __future__ import annotations

import numpy as np
import pytest

from arfloor.core import tags

LANES = {32: 2, 64: 4, 128: 8, 512: 32}


def bf16_pairs(values: np.ndarray) -> np.ndarray:
    """float32 values, the last axis of even length, as 32-bit words of two bfloat16 each."""
    half = (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint32)
    return half[..., 0::2] | (half[..., 1::2] << np.uint32(16))


def lines(rng: np.random.Generator, count: int, lanes: int) -> np.ndarray:
    return bf16_pairs(rng.standard_normal((count, lanes, 8)))


def torn(new: np.ndarray, old: np.ndarray, cut: int) -> np.ndarray:
    """The first `cut` lanes as they were before."""
    mixed = new.copy()
    mixed[:, :cut] = old[:, :cut]
    return mixed


@pytest.mark.parametrize("tag_bits", [32, 64])
@pytest.mark.parametrize("line", LANES)
def test_a_whole_line_is_taken_and_an_old_or_foreign_one_is_not(line: int, tag_bits: int) -> None:
    rng = np.random.default_rng(line)
    made = tags.seal(lines(rng, 100, LANES[line]), 7, 1, tag_bits)
    assert tags.is_whole(made, 7, 1, tag_bits).all()
    for sequence, epoch in ((5, 1), (6, 1), (8, 1), (9, 1), (7, 0), (7, 2)):
        assert not tags.is_whole(made, sequence, epoch, tag_bits).any()


@pytest.mark.parametrize("tag_bits", [32, 64])
@pytest.mark.parametrize("line", LANES)
def test_every_tear_between_lanes_is_seen(line: int, tag_bits: int) -> None:
    rng = np.random.default_rng(line + tag_bits)
    lanes = LANES[line]
    # what operations two apart may have in common: all but a sign, one bit, one element, a permutation
    plain = lines(rng, 300, lanes)
    signs = plain ^ (rng.integers(0, 2, plain.shape, dtype=np.uint32) << np.uint32(31))
    both = plain ^ np.uint32(0x80008000)
    bit = plain ^ (np.uint32(1) << rng.integers(0, 32, plain.shape).astype(np.uint32))
    swapped = plain[:, :, ::-1]
    rolled = np.roll(plain, 1, axis=1)
    constant = np.broadcast_to(bf16_pairs(np.ones((1, lanes, 8))), plain.shape).copy()
    constant[::2] *= 2
    for other in (signs, both, bit, swapped, rolled, lines(rng, 300, lanes), constant, np.zeros_like(plain)):
        new = tags.seal(plain, 9, 0, tag_bits)
        old = tags.seal(other.astype(np.uint32), 7, 0, tag_bits)
        for cut in range(1, lanes):
            mixed = torn(new, old, cut)
            changed = (mixed != new).any(axis=(1, 2))
            assert not (tags.is_whole(mixed, 9, 0, tag_bits) & changed).any()


def test_sums_of_words_times_odd_constants_would_miss_two_flipped_signs() -> None:
    """Why the hash multiplies words with each other: the simpler hash fails where this one does not."""
    rng = np.random.default_rng(3)
    plain = lines(rng, 200, 8)
    flipped = plain.copy()
    flipped[:, 0, 0] ^= np.uint32(1 << 31)
    flipped[:, 1, 2] ^= np.uint32(1 << 31)
    odd = rng.integers(0, 1 << 32, (8, 4), dtype=np.uint64).astype(np.uint32) | np.uint32(1)

    def simple(x: np.ndarray) -> np.ndarray:
        return (x * odd).sum(axis=(1, 2), dtype=np.uint32)

    assert (simple(plain) == simple(flipped)).all()
    for tag_bits in (32, 64):
        assert (tags.digest(plain, tag_bits) != tags.digest(flipped, tag_bits)).all()


@pytest.mark.parametrize("tag_bits", [32, 64])
def test_the_tags_of_alike_lines_spread_evenly(tag_bits: int) -> None:
    """Differences of digests of lines that differ by flipped signs: any 12 bits of them collide by chance."""
    rng = np.random.default_rng(11)
    count = 40_000
    plain = lines(rng, count, 8)
    flips = rng.integers(0, 2, plain.shape, dtype=np.uint32) << np.uint32(31)
    with np.errstate(over="ignore"):
        change = tags.digest(plain, tag_bits) - tags.digest(plain ^ flips, tag_bits)
    for shift in range(0, tag_bits, 12):
        bits = (change >> np.uint64(shift)) & np.uint64(0xFFF)
        width = min(12, tag_bits - shift)
        expected = count / (1 << width)
        zeros = int((bits & np.uint64((1 << width) - 1) == 0).sum())
        assert zeros < expected + 6 * np.sqrt(expected) + 6, shift


@pytest.mark.parametrize("tag_bits", [32, 64])
def test_cleared_memory_is_never_whole_when_an_epoch_begins(tag_bits: int) -> None:
    for lanes in LANES.values():
        empty = np.zeros((1, lanes, 4), np.uint32)
        for epoch in range(50):
            for sequence in (1, 2, 0xFFFFFFFF):
                assert not tags.is_whole(empty, sequence, epoch, tag_bits).any()
