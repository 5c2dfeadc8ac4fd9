"""The command `mosaic play`."""
