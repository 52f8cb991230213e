"""What a change to the all-reduces of a decode step would be worth, in tokens a second.

A step is observed (tok/s, and a profiled share where there is one), partitioned into what is known
about its reduces, and then passed through interventions, one file each. Interventions change counts,
bytes or exposure, in the order given; times are computed at the end, so nothing is counted twice.
Every uncertain number is a named `Input`, and `propagate` carries its interval to the answer.
"""
