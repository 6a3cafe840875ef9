"""Entry point of `python -m evolve`."""

import sys

from evolve.cli.app import main

if __name__ == "__main__":
    sys.exit(main())
