"""Devices of the process, by number alone."""

import os


def physical_device_ids() -> list[int]:
    return [int(each) for each in os.environ["CUDA_VISIBLE_DEVICES"].split(",")]
