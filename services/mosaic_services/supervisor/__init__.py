"""The supervisor: runs attempts on one host and bridges their journals onto the bus."""
