"""`mosaic sweep`: many runs from one file, as a group."""
