"""The broker service: the one process that binds; everybody else connects to it."""
