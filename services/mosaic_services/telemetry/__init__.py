"""The telemetry aggregator: stores every event exactly once and answers questions about them."""
