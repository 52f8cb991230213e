"""Settings of all tests: property tests judge results, never how long a busy machine took for one."""

import os

from hypothesis import settings

settings.register_profile("arfloor", deadline=None, derandomize="CI" in os.environ, print_blob=True)
settings.load_profile("arfloor")

os.environ["COLUMNS"] = "160"  # texts of commands: not as wide as the terminal that tests run in
