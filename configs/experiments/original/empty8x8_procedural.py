"""Random agent in an empty room, another layout in every episode."""

operators = [
    {
        "id": "procedural_empty8x8_random",
        "name": "Random Baseline (Procedural Empty-8x8)",
        "env_name": "minigrid",
        "task": "MiniGrid-Empty-8x8-v0",
        "max_steps": 100,
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
    "seeds": range(1000, 1010),
    "environment_mode": "procedural",
}
