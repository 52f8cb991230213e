"""Predicted sizes as the rows that measured ones have, of origin `predicted`."""

from __future__ import annotations

from arfloor.core.outlook import Outlook
from arfloor.core.predict import Prediction
from arfloor.report.rows import ReportRow, dumps, triple


def render(outlook: Outlook) -> str:
    """The rows as a JSON list. Raises ValueError if a number is not finite."""
    return dumps([row_of(p) for p in outlook.rows])


def row_of(p: Prediction) -> ReportRow:
    """One predicted size as a flat row, of origin `predicted`."""
    nccl, kernels = triple(p.nccl), triple(p.kernels)
    attainable, bound = triple(p.floor.attainable), triple(p.floor.bound)
    by_nccl = p.nccl is not None and p.nccl.value < p.kernels.value
    best = nccl if by_nccl else kernels
    nccl_label = f"nccl {p.nccl_choice}" if p.nccl else None
    return ReportRow(
        world=p.floor.world,
        path=p.path,
        nbytes=p.nbytes,
        dtype=p.floor.dtype,
        mode=p.floor.mode,
        default_us=nccl[0],
        default_us_lo=nccl[1],
        default_us_hi=nccl[2],
        default_case=None,
        default_label=nccl_label,
        best_us=best[0],
        best_us_lo=best[1],
        best_us_hi=best[2],
        best_case=None,
        best_label=nccl_label if by_nccl else f"arfloor {p.kernels_algorithm}",
        attainable_us=attainable[0],
        attainable_us_lo=attainable[1],
        attainable_us_hi=attainable[2],
        attainable_algorithm=p.floor.algorithm,
        bound_us=bound[0],
        bound_us_lo=bound[1],
        bound_us_hi=bound[2],
        headroom_now=nccl[0] / best[0] if nccl[0] and best[0] else None,
        headroom_left=best[0] / attainable[0] if best[0] and attainable[0] else None,
        status="no_data",
        reason="predicted",
        origin="predicted",
        gpus=p.ranks,
    )
