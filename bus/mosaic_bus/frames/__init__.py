"""Reading a run's live frames: from shared memory on its host, as JPEG off the bus elsewhere."""

from mosaic_bus.frames.reader import Frame, FrameFacts, FrameReader

__all__ = ["Frame", "FrameFacts", "FrameReader"]
