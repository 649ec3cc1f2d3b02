"""The command line: the only room that prints or exits."""

from typing import NoReturn


def main() -> NoReturn:
    """Runs the command of ``sys.argv`` and exits; a Ctrl-C that comes before anything is loaded is one too."""
    try:
        from toolkit.cli.boundary import main as run_and_exit
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    run_and_exit()


__all__ = ["main"]
