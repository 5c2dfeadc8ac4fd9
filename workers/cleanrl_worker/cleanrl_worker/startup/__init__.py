"""Put on the path of upstream scripts as a folder; as a package it is only what gets this folder installed."""
