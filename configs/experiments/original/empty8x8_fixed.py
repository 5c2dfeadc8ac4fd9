"""Random and passive agents in an empty room, the same layout in every episode."""

operators = [
    {
        "id": "fixed_empty8x8_random",
        "name": "Random Baseline (Fixed Empty-8x8)",
        "env_name": "minigrid",
        "task": "MiniGrid-Empty-8x8-v0",
        "max_steps": 100,
        "workers": {"agent": {"type": "random", "seed": 42}},
    },
    {
        "id": "fixed_empty8x8_passive",
        "name": "Passive Baseline (Fixed Empty-8x8)",
        "env_name": "minigrid",
        "task": "MiniGrid-Empty-8x8-v0",
        "max_steps": 100,
        "workers": {"agent": {"type": "passive"}},
    },
]

execution = {
    "auto_run": False,
    "num_episodes": 5,
    "seeds": [42],
    "env_mode": "fixed",
    "step_delay_ms": 50,
}
