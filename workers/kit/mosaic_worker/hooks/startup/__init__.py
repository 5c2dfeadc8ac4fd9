"""A package only so that it is installed: `run_hooked` puts the folder itself on PYTHONPATH."""
