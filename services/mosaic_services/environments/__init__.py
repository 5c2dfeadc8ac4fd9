"""Worker environments: where recipes are found, how a virtualenv is built, what it says of itself."""
