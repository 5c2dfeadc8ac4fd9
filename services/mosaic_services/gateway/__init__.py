"""The gateway: commands, files and everything live for browsers and other HTTP clients."""
