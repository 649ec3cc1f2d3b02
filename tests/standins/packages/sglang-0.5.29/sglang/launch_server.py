"""``python -m sglang.launch_server``, standing in."""

import standin_programs

from sglang.srt.server_args import ServerArgs

if __name__ == "__main__":
    standin_programs.sglang(ServerArgs.add_cli_args)
