"""The entry of everything that runs in a service's own environment: ``PYTHON run.py VERB …``.

Makes the package importable by its folder alone, so coexist need not be installed there. Standard library only.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path

_ROOM = Path(__file__).resolve().parent
_VERBS = {
    "facts": "facts",
    "prepare": "prepare",
    "compile": "compile",
    "verify": "verify_engine",
    "engine": "engine_server",
    "frontend": "frontend",
    "reference": "reference",
    "answers": "answers",
}


def make_importable(package_dir: Path) -> None:
    """From now on ``import toolkit`` finds this folder, whatever else is installed under that name."""
    # A script's own folder comes first on the path, where our file names would shadow other modules.
    sys.path[:] = [entry for entry in sys.path if not entry or Path(entry).resolve() != _ROOM]
    spec = importlib.util.spec_from_file_location(
        "toolkit", package_dir / "__init__.py", submodule_search_locations=[str(package_dir)]
    )
    if spec is None or spec.loader is None:
        raise ImportError(f"{package_dir} is no package")
    module = importlib.util.module_from_spec(spec)
    sys.modules["toolkit"] = module
    spec.loader.exec_module(module)


def main(argv: list[str]) -> int:
    """The exit status of a verb."""
    if not argv or argv[0] not in _VERBS:
        sys.stderr.write(f"usage: run.py {'|'.join(_VERBS)} …\n")
        return 2
    make_importable(_ROOM.parent)
    module = importlib.import_module(f"toolkit.serve.{_VERBS[argv[0]]}")
    return int(module.main(argv[1:]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
