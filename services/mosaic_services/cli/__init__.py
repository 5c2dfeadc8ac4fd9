"""The mosaic command."""
