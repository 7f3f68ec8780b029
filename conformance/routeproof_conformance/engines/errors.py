"""The error of a wrong call or a broken adapter, as opposed to a finding about an engine."""


class EngineError(Exception):
    """An engine cannot be had or driven; the message says why and what to do (exit code 2)."""
