"""`python -m goliath_actors`, the same as the command `goliath-actors`."""

from __future__ import annotations

import sys

from .cli import main

if __name__ == "__main__":
    sys.exit(main())
