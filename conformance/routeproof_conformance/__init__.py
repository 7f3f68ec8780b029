"""Adapters, worlds, cases, verdicts, reports and the command line."""
