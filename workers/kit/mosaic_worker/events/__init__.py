"""The event vocabulary: what each line of a run's journal means, in the present dialect and in the older one.

A worker writes these events, and the services read them, so this package has one rule of its own: it imports the
standard library only, and it is the only part of the kit that services import. `models` (strict, for the compliance
suite) needs pydantic and is not imported here. `docs/protocol.md` part 4 is the contract.
"""

from mosaic_worker.events.reading import Event, load_line, malformed, read_event, read_line
from mosaic_worker.events.values import integer, name, number, text
from mosaic_worker.events.vocabulary import TERMINAL_EVENTS, Kind

__all__ = [
    "TERMINAL_EVENTS",
    "Event",
    "Kind",
    "integer",
    "load_line",
    "malformed",
    "name",
    "number",
    "read_event",
    "read_line",
    "text",
]
