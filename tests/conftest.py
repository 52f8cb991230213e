"""Settings of all tests: property tests judge results, never how long a busy machine took for one."""

import os
from collections import Counter

from hypothesis import settings

settings.register_profile("arfloor", deadline=None, derandomize="CI" in os.environ, print_blob=True)
settings.load_profile("arfloor")

os.environ["COLUMNS"] = "160"  # texts of commands: not as wide as the terminal that tests run in


def pytest_terminal_summary(terminalreporter):
    """Says in a line why tests were skipped: of hundreds that need GPUs, a count alone tells nothing."""
    skipped = Counter(
        report.longrepr[2].removeprefix("Skipped: ")
        for report in terminalreporter.stats.get("skipped", ())
        if isinstance(report.longrepr, tuple)
    )
    if skipped:
        told = "; ".join(f"{count} {reason}" for reason, count in skipped.most_common(6))
        terminalreporter.write_line(f"skipped: {told}{'; and others' if len(skipped) > 6 else ''}")
