"""`mosaic frames`: the frames of a run, listed, drawn in the terminal, or saved."""
