"""Rules about files: model folders, kernel caches and their locks, Triton's model configurations."""

from __future__ import annotations

from collections.abc import Iterator

from toolkit.compat.model import Case, Hit, Lock

SHOWN = 3
# A build takes minutes; a lock that nobody holds and that is this old was left behind.
STALE_S = 3600.0
TRITON_BACKENDS = {"tensorrtllm"}


def models(case: Case) -> Iterator[Hit]:
    """Model folders with parts missing or damaged."""
    for role in case.roles:
        model = case.surroundings.models.get(role.name)
        if model is not None and model.faults:
            shown = ", ".join(model.faults[:SHOWN])
            more = f" and {len(model.faults) - SHOWN} more" if len(model.faults) > SHOWN else ""
            evidence = (str(model.folder), *model.faults)
            yield Hit("model-files", role.name, role.environment, {"missing": shown + more}, evidence)


def is_stale(lock: Lock) -> bool:
    """Whether a lock is left over: nobody holds it, and it is older than this boot or than any build."""
    return lock.held is not True and (lock.before_boot or (lock.held is False and lock.age_s > STALE_S))


def locks(case: Case) -> Iterator[Hit]:
    """Locks of kernel caches that nobody will ever release."""
    stale = [lock for lock in case.surroundings.locks if is_stale(lock)]
    if stale:
        paths = tuple(str(lock.path) for lock in stale)
        yield Hit("stale-jit-lock", paths[0], None, {"count": len(stale), "path": paths[0]}, paths)


def networks(case: Case) -> Iterator[Hit]:
    """Caches on a file system of the network."""
    for cache in case.surroundings.caches:
        if cache.network:
            values = {"path": cache.path, "filesystem": cache.filesystem or "a network", "variable": cache.variable}
            yield Hit("cache-on-network", str(cache.path), None, values)


def shared(case: Case) -> Iterator[Hit]:
    """Kernel caches that several services are told to use."""
    variables = sorted({cache.variable for cache in case.surroundings.caches})
    for variable in variables:
        users: dict[str, list[str]] = {}
        for role in case.roles:
            path = role.service.env.get(variable) if role.service else None
            if path:
                users.setdefault(path, []).append(role.name)
        for path, names in users.items():
            if len(names) > 1:
                values = {"services": ", ".join(names), "path": path, "variable": variable}
                yield Hit("shared-kernel-cache", path, None, values)


def triton(case: Case) -> Iterator[Hit]:
    """Settings of Triton's models that do not do what they say."""
    for model in case.surroundings.triton:
        if model.backend in TRITON_BACKENDS and model.instance_gpus and not model.gpu_device_ids:
            yield Hit("triton-instance-gpus", str(model.path), None, {"path": model.path})
        if model.platform == "ensemble" and model.warmup:
            yield Hit("triton-warmup-model", str(model.path), None, {"path": model.path})


RULES = {
    "model-files": models,
    "stale-jit-lock": locks,
    "cache-on-network": networks,
    "shared-kernel-cache": shared,
    "triton-models": triton,
}
