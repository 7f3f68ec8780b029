"""Surfaces beside the capturer: context builders (LAY-11, LAY-07) and routers (IDS-01)."""
