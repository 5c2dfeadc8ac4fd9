"""`python -m mosaic_services.report FOLDER BUS` writes the report of an experiment's folder, and says where.

The operator service starts it: figures need libraries and memory that a service should not keep.
"""

import sys
from pathlib import Path

from mosaic_bus import Bus
from mosaic_bus.errors import BusError
from mosaic_bus.wire.address import Address
from mosaic_services.report import ReportError, write_report
from mosaic_services.report.trainings import read_trainings

if __name__ == "__main__":
    folder = Path(sys.argv[1])
    try:
        with Bus(Address.parse(sys.argv[2])) as bus:
            trainings = read_trainings(bus, folder)
        sys.stdout.write(f"{write_report(folder, trainings=trainings).index}\n")
    except (BusError, ReportError) as error:
        sys.exit(str(error))
