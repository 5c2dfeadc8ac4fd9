"""A trained agent, on layouts that it may not have seen.

Train it first: mosaic submit configs/runs/ppo-minigrid.yaml --wait
"""

operators = [
    {
        "id": "ppo_empty5x5",
        "name": "PPO (Empty-5x5)",
        "env_name": "minigrid",
        "task": "MiniGrid-Empty-5x5-v0",
        "max_steps": 100,
        "workers": {
            "agent": {
                "type": "rl",
                "algorithm": "ppo",
                "policy_path": "run:ppo-minigrid@last",
                "seed": 42,
            },
        },
    },
]

execution = {
    "auto_run": False,
    "num_episodes": 10,
    "seeds": list(range(5000, 5010)),
    "environment_mode": "procedural",
}
