"""`python -m arfloor` is the command `arfloor`."""

import sys

from arfloor.cli import main

sys.exit(main())
