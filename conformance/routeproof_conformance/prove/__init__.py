"""Proofs over engines: bindings, replays, the table."""
