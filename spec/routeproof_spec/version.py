"""Version of the contract: changes when a rule is added or superseded."""

SPEC_VERSION = "0.1"
