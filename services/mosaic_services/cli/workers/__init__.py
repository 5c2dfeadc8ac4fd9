"""`mosaic workers`: install, describe, check and remove workers."""
