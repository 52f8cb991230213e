"""Ranks that poll over uplinks, event by event: worlds whose times are known by hand."""

from collections import Counter
from dataclasses import replace

import pytest

from arfloor.core.plans import Plan
from arfloor.core.polls import CYCLES_A_US, SPREAD_US, Job, KernelCosts, calibrate, play, script, start_of
from arfloor.core.shared_uplink import Uplink

UPLINK = Uplink(write_gbps=53.0, read_gbps=50.0, both_gbps=36.0, flag_us=1.8)
FREE = Uplink(write_gbps=1e5, read_gbps=1e5, both_gbps=1e5, flag_us=1.8)
COSTS = KernelCosts(start_us=1.5)


def plan(shot=1, blocks=33, lookahead=0, **changes):
    return Plan(
        protocol="line", line=512, shot=shot, blocks=blocks, threads=256, lookahead=lookahead, **changes
    )


def job(kib, world=2, shot=1, groups=1, blocks=33, lookahead=0):
    return Job(plan=plan(shot, blocks, lookahead), world=world, nbytes=kib << 10, groups=groups)


@pytest.mark.parametrize("shot", [1, 2])
@pytest.mark.parametrize("lookahead", [0, 1])
def test_a_warp_sends_each_of_its_tiles_once_and_waits_for_those_of_all_others(shot, lookahead):
    world, tiles, made = 4, 30, plan(shot, blocks=1, lookahead=lookahead)
    sent, awaited = Counter(), Counter()
    for rank in range(world):
        for warp in range(made.warps):
            steps = script(made, world, rank, tiles, warp)
            for waits, keys in steps:
                (awaited if waits else sent).update(keys)
            order = [key[0] for waits, keys in steps if waits for key in keys]
            assert len(order) == (world - 1) * shot * len(range(warp, tiles, made.warps))
    assert set(sent.values()) == {1}
    assert set(awaited) == set(sent)  # nobody waits for what nobody sends
    assert all(n == (1 if key[2] >= 0 else world - 1) for key, n in awaited.items())


def test_sending_ahead_comes_before_the_first_wait():
    def waits(lookahead):
        return [waits for waits, _ in script(plan(blocks=1, lookahead=lookahead), 2, 0, 24, 0)]

    assert waits(0) == [False, True, False, True, False, True]
    assert waits(1) == [False, False, True, False, True, True]


@pytest.mark.parametrize("shot", [1, 2])
def test_links_of_no_weight_leave_starts_sends_flags_and_checks(shot):
    least = COSTS.start_us + shot * (COSTS.send_us + FREE.flag_us + COSTS.check_us)
    # at most a poll that came just too early in every phase: a way there and back and its check
    most = least + shot * (2 / 3 * FREE.flag_us + COSTS.check_us) + 2 * SPREAD_US
    played = play(job(8, shot=shot), FREE, COSTS)
    assert least < played.us <= most
    assert 0 < played.in_vain < 0.6


@pytest.mark.parametrize("lag_us", [20, 40])
def test_a_lag_goes_by_before_the_first_poll(lag_us):
    """After so long everything is there: the one poll does not wait for its packet, and none is in vain."""
    late = replace(job(8), plan=plan(lag=round(lag_us * CYCLES_A_US)))
    played = play(late, FREE, COSTS)
    known = COSTS.start_us + COSTS.send_us + lag_us + 2 / 3 * FREE.flag_us + COSTS.check_us
    assert known < played.us < known + SPREAD_US
    assert played.in_vain == 0


def test_odd_ranks_let_a_lag_go_by_before_they_ask_again():
    """A packet that is long on its way out is asked for again and again, less often with a lag between."""
    slow = replace(FREE, write_gbps=0.08)  # a line of 512 bytes takes 6.4 us
    often, seldom = (
        play(Job(plan=plan(lag=round(us * CYCLES_A_US)), world=2, nbytes=496), slow, COSTS) for us in (0, 1)
    )
    assert 0.5 < seldom.in_vain < often.in_vain - 0.02
    # two thirds of a flag's way and a check pass between polls, for odd ranks the lag too
    least = COSTS.start_us + COSTS.send_us + 0.512 / 0.08 + 1 / 3 * FREE.flag_us
    for played in (often, seldom):
        assert least < played.us < least + FREE.flag_us + 2 * COSTS.check_us + 1 + 2 * SPREAD_US


def test_groups_meet_in_the_links_alone():
    free = [play(job(8, groups=groups), FREE, COSTS).us for groups in (1, 2)]
    assert free[0] == pytest.approx(free[1], abs=0.5)  # apart by a poll in vain here and there
    alone, beside = (play(job(128, groups=groups), UPLINK, COSTS).us for groups in (1, 2))
    # another 128 KiB out and in, in part while this group starts and waits
    assert alone + 1 < beside < alone + (1 + 0.6) * 131072 * 512 / 504 / 36e3 * 2


def test_links_are_a_floor_and_polls_in_vain_cost():
    wire = 512 / 504 * 262144 / 1e3
    two = play(job(256, lookahead=1), UPLINK, COSTS, operations=5, seeds=1)
    assert wire / 36 < two.us - COSTS.start_us < 2 * wire / 36
    four = play(job(256, world=4, lookahead=1), UPLINK, COSTS, operations=5, seeds=1)
    assert four.us > 6 * wire / 50
    assert four.us > two.us
    late = replace(COSTS, check_us=0.0)
    slow = play(job(64, world=4), UPLINK, late, operations=5, seeds=1)
    assert slow.us > COSTS.start_us + UPLINK.flag_us + 6 * wire / 4 / 50
    assert slow.in_vain > 0.1


def test_what_two_ranks_were_played_with_is_found_again():
    truth = replace(UPLINK, both_gbps=40.0)
    jobs = [job(kib, shot=shot) for kib in (16, 32, 128) for shot in (1, 2)]
    points = [(j, play(j, truth, COSTS).us) for j in jobs]
    uplink, costs = calibrate(UPLINK, points)
    assert uplink.both_gbps == pytest.approx(40.0, rel=0.06)
    assert costs.start_us == pytest.approx(1.5, abs=0.25)
    pairs = [
        (j, us) for j in (job(16, groups=2),) for us in (play(j, truth, replace(COSTS, start_us=3.0)).us,)
    ]
    assert start_of(uplink, costs, pairs).start_us == pytest.approx(3.0, abs=0.4)
    with pytest.raises(ValueError, match="at least two sizes"):
        calibrate(UPLINK, points[:1])


def test_what_is_not_played_is_refused():
    for made in (plan(pace=25), plan(window=2), Plan(protocol="ll")):
        with pytest.raises(ValueError, match="lines without pace"):
            play(Job(plan=made, world=2, nbytes=1024), UPLINK, COSTS)
    with pytest.raises(ValueError, match="more than 3 operations"):
        play(job(8), UPLINK, COSTS, operations=3)
    with pytest.raises(ValueError, match="one-shot or two-shot"):
        script(plan(shot=4), 4, 0, 8, 0)
