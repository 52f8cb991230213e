"""The one table of reason codes: why a case has no latency, and why a comparison or verdict is as it is."""

from __future__ import annotations

REASONS: dict[str, str] = {
    # why a case was not measured, or not believed
    "wrong_result": "its result differs from the reference; its latency is not reported",
    "below_bound": "it was faster than the bound, which is impossible: the probe or the timing is at fault",
    "worker_died": "the process measuring it died",
    "worker_hung": "it outran its deadline and was killed",
    "illegal_address": "it poisoned the GPU context with an illegal access",
    "device_error": "the device reported an error",
    "peer_failed": "another rank failed while measuring it",
    "prepare_failed": "the library refused to set it up",
    "raised": "it raised an error while running",
    "not_installed": "the package it needs is not installed",
    "not_measured": "arfloor knows its conditions, but does not run it",
    "needs_gpu": "it needs GPUs",
    "needs_p2p": "it needs peer access between the GPUs",
    "needs_nvlink": "it needs NVLink between the GPUs",
    "needs_multicast": "it needs NVLink multicast, which is absent or forbidden here",
    "needs_peer_atomics": "it needs atomics on peer memory, which this link does not offer",
    "world_size": "it does not support this number of ranks",
    "dtype": "it does not support this dtype",
    "mode": "it cannot be measured in this mode",
    "size": "it does not support this size",
    "compute_capability": "it does not support this GPU architecture",
    "memory": "not enough memory",
    "budget": "the time budget ran out first",
    "interrupted": "the run was interrupted first",
    "dry_run": "only planned",
    # why a verdict is as it is
    "best_beats_default": "another correct case beats the default, and the interval excludes chance",
    "default_at_floor": "the default is within 1.25 of what is attainable",
    "best_at_floor": "the best case is within 1.25 of what is attainable",
    "above_floor": "the best case is more than 1.25 of what is attainable",
    "interval_meets_band": "the interval of the ratio meets the band of equality",
    "medians_disagree": "by its latency the best is faster, compared pair by pair it is slower",
    "interval_meets_floor": "the interval of best / attainable contains 1.25, the limit of `at_floor`",
    "no_default": "the default was not measured",
    "no_best": "no correct case was measured",
    "no_floor": "no link primitives were measured, so no floor is known",
    "predicted": "no latency was measured: every figure is predicted from a description of the box",
    # why a comparison is as it is
    "faster": "the whole interval lies below the band of equality",
    "slower": "the whole interval lies above the band of equality",
    "same": "the whole interval lies within the band of equality",
    "aa_spread": "the difference is within what two measurements of the same case differ by",
    "not_paired": "the two share no round of a launch, so they cannot be paired",
    "no_interval": "at least one of the two states no interval, so chance cannot be excluded",
    "unpaired": "the two were measured in different runs",
    "only_in_a": "only the first run has it",
    "only_in_b": "only the second run has it",
    "not_ok": "at least one of the two has no correct measurement",
}


def explain(reason: str | None) -> str:
    """Sentence for a reason code; an unknown code explains itself as unknown rather than raising."""
    if reason is None:
        return ""
    return REASONS.get(reason, f"unknown reason code {reason!r}")
