"""Engines that can be named on the command line."""
