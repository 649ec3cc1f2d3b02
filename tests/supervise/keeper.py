"""A supervisor in a process of its own, to be killed: ``keeper.py STATE_DIR kill|keep NAME:PORT[:FLAG…] …``."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from tests.supervise.conftest import supervise, tiny


async def main(state_dir: str, on_death: str, *services: str) -> None:
    runs = [tiny(name, *flags, port=int(port)) for name, port, *flags in (each.split(":") for each in services)]
    supervisor = supervise(Path(state_dir), *runs, on_death=on_death)
    await supervisor.start()
    await supervisor.wait_ready(30.0)
    print("ready", flush=True)
    await supervisor.wait_stopped()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
