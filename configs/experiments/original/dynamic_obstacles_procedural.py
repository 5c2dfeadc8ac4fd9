"""Random agent among moving obstacles; fewer seeds than episodes, so the rest count on from the last."""

operators = [
    {
        "id": "procedural_dynobs_random",
        "name": "Random Baseline (Procedural Dynamic Obstacles)",
        "env_name": "minigrid",
        "task": "MiniGrid-Dynamic-Obstacles-8x8-v0",
        "max_steps": 150,
        "workers": {
            "agent": {
                "type": "baseline",
                "behavior": "random",
                "seed": 42,
            },
        },
    },
]

execution = {
    "auto_run": False,
    "num_episodes": 10,
    "seeds": range(3000, 3004),
    "environment_mode": "procedural",
}
