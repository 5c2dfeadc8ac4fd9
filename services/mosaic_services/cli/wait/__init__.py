"""Waits for runs until they are final and their telemetry is stored."""
