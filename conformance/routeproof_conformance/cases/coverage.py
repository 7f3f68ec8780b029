"""What covers a rule."""

from typing import NamedTuple

from routeproof_spec import AnyCase

from routeproof_conformance.cases import all_cases
from routeproof_conformance.contexts.scenarios import all_scenarios


class Coverage(NamedTuple):
    """Families and cases that judge a rule."""

    families: tuple[str, ...]
    cases: int

    def __str__(self) -> str:
        """Say it as `list rules` does."""
        if not self.cases:
            return "no case yet"
        plural = "family" if len(self.families) == 1 else "families"
        return f"{len(self.families)} {plural}, {self.cases} case{'s' if self.cases > 1 else ''}"


def coverage(rule: str) -> Coverage:
    """Count the families and cases that list a rule."""
    known: tuple[AnyCase, ...] = (*all_cases(), *all_scenarios())
    cases = [case for case in known if rule in case.rules]
    return Coverage(tuple(dict.fromkeys(case.family for case in cases)), len(cases))
