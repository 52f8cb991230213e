"""What does a graph save?

    torchrun --standalone --nproc-per-node=2 microbench/graph_saves.py
    NCCL_P2P_DISABLE=1 torchrun --standalone --nproc-per-node=2 microbench/graph_saves.py

NCCL's all-reduce three ways: launched by the host one after the other (eager), as nodes of a CUDA graph
(graph), both as the slope over chained operations; and one alone in a graph behind a barrier of the
GPUs, with nothing before or after it to wait for (isolated).

What to look for: eager is what Python and the driver take to launch, until the message is large enough
to hide it. Graph less isolated is what a chain adds: the start of the next kernel.

About 20 s a path on two GPUs, of which ten are starting; a row is printed when it is measured. What two H200s
gave stands in docs/measurements.md.
"""

from __future__ import annotations

from gpu_ranks import add_sizes, command_line, join

from arfloor.core.cases import Mode

SIZES = [1 << 10, 8 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20]
MODES: tuple[Mode, ...] = ("eager", "graph", "isolated")


def main() -> None:
    parser = command_line(__doc__, limit_s=90)
    add_sizes(parser, SIZES)
    chosen = parser.parse_args()
    ranks = join(chosen.limit_s)
    ranks.say(f"NCCL default, {ranks.world} GPUs, path {ranks.path}, bfloat16, us")
    ranks.say(f"{'size':>9}  " + "  ".join(f"{mode:>10}" for mode in MODES) + "  eager / graph")
    for nbytes in chosen.sizes:
        if ranks.over(f"{nbytes} B"):
            break
        found = {mode: ranks.nccl("default", nbytes, mode) for mode in MODES}
        shown = "  ".join(f"{found[mode].value:>10.1f}" for mode in MODES)
        ranks.say(f"{nbytes:>9}  {shown}  {found['eager'].value / found['graph'].value:>13.2f}")
    ranks.leave()


if __name__ == "__main__":
    main()
