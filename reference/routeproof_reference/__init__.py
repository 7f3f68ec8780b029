"""The executable spec: all ranks of a run as one pure function."""
