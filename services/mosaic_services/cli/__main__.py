"""Run the command line without its script: `python -m mosaic_services.cli`."""

from __future__ import annotations

import sys

from mosaic_services.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
