"""`routeproof`, and `python -m routeproof_conformance`."""

import sys

INTERRUPTED = 3
"""Exit code of whatever was cut short before it had anything to say."""


def main() -> None:
    """Run the command line; its modules take half a second to load, in which Ctrl-C is no traceback."""
    try:
        from routeproof_conformance.cli import app  # noqa: PLC0415

        app()
    except KeyboardInterrupt:
        sys.stderr.write("routeproof: interrupted\n")
        sys.exit(INTERRUPTED)


if __name__ == "__main__":
    main()
