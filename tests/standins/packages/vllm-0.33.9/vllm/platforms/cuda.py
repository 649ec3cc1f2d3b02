"""Devices of the process, by number or by UUID."""

import os


def nvmlDeviceGetHandleByUUID(uuid):
    if not uuid.startswith(("GPU-", "MIG-")):
        raise ValueError(uuid)
    return uuid


def physical_device_ids() -> list[object]:
    visible = os.environ["CUDA_VISIBLE_DEVICES"].split(",")
    return [int(each) if each.isdigit() else nvmlDeviceGetHandleByUUID(each) for each in visible]
