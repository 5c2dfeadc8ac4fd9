"""The `mosaic` command: one module per command, loaded only when that command is called."""
