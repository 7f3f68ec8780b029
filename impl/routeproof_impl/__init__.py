"""The production capturer, in torch."""
