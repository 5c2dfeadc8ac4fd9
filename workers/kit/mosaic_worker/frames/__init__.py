"""Frames: what an environment looks like, live in shared memory (FastLane) and as videos of episodes."""
