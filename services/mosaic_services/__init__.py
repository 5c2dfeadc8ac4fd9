"""MOSAIC's services, one folder each, and the command line."""
