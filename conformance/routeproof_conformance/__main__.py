"""`python -m routeproof_conformance`."""

from routeproof_conformance.cli import main

main()
