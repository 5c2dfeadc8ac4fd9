"""The command `mosaic eval`."""
