"""`python -m mosaic_services.report FOLDER` writes the report of an experiment's folder, and says where.

The operator service starts it: figures need libraries and memory that a service should not keep.
"""

import sys
from pathlib import Path

from mosaic_services.report import ReportError, write_report

if __name__ == "__main__":
    try:
        sys.stdout.write(f"{write_report(Path(sys.argv[1])).index}\n")
    except ReportError as error:
        sys.exit(str(error))
