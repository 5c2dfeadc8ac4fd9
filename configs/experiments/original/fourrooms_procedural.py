"""Random agent in four rooms, in the flat form: type, worker_id and settings instead of workers."""

operators = [
    {
        "id": "procedural_fourrooms_random",
        "name": "Random Baseline (Procedural FourRooms)",
        "type": "baseline",
        "worker_id": "baseline_worker",
        "env_name": "minigrid",
        "task": "MiniGrid-FourRooms-v0",
        "settings": {"behavior": "random", "max_steps": 200},
    },
]

execution = {
    "auto_run": True,
    "num_episodes": 10,
    "seeds": list(range(2000, 2010)),
    "environment_mode": "procedural",
}
