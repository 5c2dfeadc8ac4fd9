"""Hooks for a library that knows nothing of MOSAIC: its program runs unmodified, in processes of its own, and reports.

`process.run_hooked` starts the program. `startup/sitecustomize.py` is imported by every Python process below it and
patches Gymnasium, gym and TensorBoard as they are imported (`imports`, `patches`). Environments then report episodes
and show frames (`tap`), scalars are forwarded (`reporter`), and all processes count together (`counters`). `keeper`
makes sure that no process survives. `script` runs a shell script of several phases.
"""
