"""A leaderboard: a language model on this machine, a random and a passive agent, on five tasks of BabyAI.

mosaic workers install arena
mosaic workers install llm --profile local
mosaic eval configs/experiments/llm-babyai.py
"""

TASKS = {
    "go-to-ball": "BabyAI-GoToRedBallNoDists-v0",
    "go-to-object": "BabyAI-GoToObjS4-v0",
    "pick-up": "BabyAI-PickupDist-v0",
    "open-door": "BabyAI-OpenRedDoor-v0",
    "put-next": "BabyAI-PutNextS4N1-v0",
}

experiments = [
    {
        "name": f"llm-babyai-{name}",
        "environment": {"id": env_id, "max_steps": 16},
        "operators": {
            "smollm2": {"worker": "llm", "profile": "local", "agent": "naive", "history": 0},
            "random": {"worker": "random"},
            "passive": {"worker": "noop"},
        },
        "episodes": 8,
        # An answer that is no legal action is counted, and a random one is played in its place.
        "failures": {"then": "random_legal"},
    }
    for name, env_id in TASKS.items()
]
