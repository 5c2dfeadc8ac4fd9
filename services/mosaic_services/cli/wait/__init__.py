"""Waiting for runs: progress until they are final and their telemetry is stored."""
