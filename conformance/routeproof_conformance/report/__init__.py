"""Reports of a run: terminal and JSON."""
