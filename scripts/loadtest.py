"""A thin door to `goliath-actors loadtest`, for a checkout: `scripts/loadtest.py --help`."""

import sys

from goliath_actors.cli import main

if __name__ == "__main__":
    sys.exit(main(["loadtest", *sys.argv[1:]]))
