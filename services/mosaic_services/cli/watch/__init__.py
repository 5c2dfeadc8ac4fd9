"""`mosaic watch`: a live view of all runs or of one."""
