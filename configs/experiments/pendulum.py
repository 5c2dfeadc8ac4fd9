"""An experiment in Python: the same fields as in a YAML file, computed.

mosaic eval configs/experiments/pendulum.py
"""

GRAVITY = 9.8

experiment = {
    "name": "pendulum",
    "environment": {"id": "Pendulum-v1", "kwargs": {"g": GRAVITY}, "max_steps": 100},
    "operators": {name: {"worker": "baseline", "behavior": name} for name in ("random", "passive")},
    "episodes": 10,
    "seeds": range(500, 510),
}
