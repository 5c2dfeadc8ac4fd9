"""`mosaic watch`: follow the runs live, all of them or one closely."""
