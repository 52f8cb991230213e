"""Other tools' measurements, told apart by their content."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from arfloor.ingest import aiconfigurator, nccl_tests_text, nvbandwidth
from arfloor.ingest.imported import Hints, Imported
from arfloor.ingest.outside import IngestError

Reader = Callable[[str, Hints], Imported]

READERS: Mapping[str, tuple[Callable[[str], bool], Reader]] = MappingProxyType(
    {
        "nvbandwidth": (nvbandwidth.looks_like, nvbandwidth.read),
        "aiconfigurator": (aiconfigurator.looks_like, aiconfigurator.read),
        "nccl-tests": (nccl_tests_text.looks_like, nccl_tests_text.read),
    }
)
"""name -> (whether a text looks like it, its reader); a new format is one line here and one file."""


def read_run(text: str, hints: Hints, form: str | None = None) -> Imported:
    """The measurements of a text, of the format named or told from the content.

    Raises IngestError when no format fits, or the text is not of it.
    """
    if form is None:
        if text.startswith("version https://git-lfs"):
            raise IngestError(
                "a Git LFS pointer, not the file itself: run `git lfs pull` where it comes from"
            )
        form = next((name for name, (fits, _) in READERS.items() if fits(text)), None)
    if form is None:
        raise IngestError(
            f"expected the output of {', '.join(READERS)}, found none of them; name it with --format"
        )
    return READERS[form][1](text, hints)
