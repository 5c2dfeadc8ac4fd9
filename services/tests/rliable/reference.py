"""Runs in the virtualenv of rliable: reads scores from stdin, writes what rliable makes of them to stdout, as JSON."""

import json
import sys

import numpy as np
from rliable import library, metrics


def main() -> None:
    """Answer one request; every result begins with the same seed, since rliable uses NumPy's global generator."""
    request = json.load(sys.stdin)
    x, y = (np.array(request[name]) for name in "xy")
    target, taus = request["target"], np.array(request["taus"])
    aggregates = {
        "mean": metrics.aggregate_mean,
        "iqm": metrics.aggregate_iqm,
        "gap": lambda scores: metrics.aggregate_optimality_gap(scores, target),
    }
    answer = {}
    for name, aggregate in aggregates.items():
        np.random.seed(request["seed"])  # noqa: NPY002 - rliable ignores a generator
        points, intervals = library.get_interval_estimates(
            {"x": x}, lambda scores, f=aggregate: np.array([f(scores)]), reps=request["reps"]
        )
        answer[name] = [points["x"].tolist(), intervals["x"].tolist()]
    np.random.seed(request["seed"])  # noqa: NPY002 - as above
    points, intervals = library.create_performance_profile({"x": x}, taus, reps=request["reps"])
    answer["profile"] = [points["x"].tolist(), intervals["x"].tolist()]
    np.random.seed(request["seed"])  # noqa: NPY002 - as above
    points, intervals = library.get_interval_estimates(
        {"xy": [x, y]}, lambda a, b: np.array([metrics.probability_of_improvement(a, b)]), reps=request["reps"]
    )
    answer["improvement"] = [points["xy"].tolist(), intervals["xy"].tolist()]
    json.dump(answer, sys.stdout)


if __name__ == "__main__":
    main()
