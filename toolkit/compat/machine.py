"""Rules about the host: CPUs, NUMA nodes, memory, shared memory, ports, MPI and SLURM."""

from __future__ import annotations

from collections.abc import Iterator

from toolkit.compat.model import Case, EnvironmentView, Hit, Role, named
from toolkit.units import GIB, MIB, format_bytes, format_cpu_list

# Docker's default of 64 MiB is what reports ran into; 1 GiB is what their fix asks for.
SHM_BYTES = GIB
SLURM = ("SLURM_JOB_ID", "SLURM_JOBID", "SLURM_PROCID", "SLURM_NODELIST", "SLURM_STEP_ID", "PMI_RANK", "PMIX_RANK")
MPI_RUNTIMES = {"trtllm", "triton"}
# Runtimes whose ranks exchange data through /dev/shm.
SHM_RUNTIMES = {"trtllm", "triton", "vllm", "sglang"}


def affinity(case: Case) -> Iterator[Hit]:
    """GPUs whose near CPUs may not be used here."""
    allowed = set(case.host.cpus_allowed) if case.host else set()
    for gpu in case.host.gpus if case.host else ():
        if gpu.cpus and allowed and not allowed & set(gpu.cpus):
            values = {
                "gpus": named((gpu,)),
                "near": format_cpu_list(gpu.cpus),
                "allowed": format_cpu_list(allowed),
            }
            yield Hit("cpu-affinity", f"GPU {gpu.index}", None, values)


def memory_nodes(case: Case) -> Iterator[Hit]:
    """Memory nodes of GPUs: hidden by a cpuset, or without CPUs."""
    host = case.host
    if host is None:
        return
    online = tuple(node.node for node in host.numa)
    own = {gpu.gpu_numa_id for gpu in host.gpus if gpu.gpu_numa_id is not None}
    hidden = sorted(set(online) - set(host.mems_allowed)) if host.mems_allowed is not None else []
    without = [node.node for node in host.numa if not node.cpus]
    # On coherent machines the driver allocates from every node it made, used or not.
    if hidden and (own or without):
        evidence = (f"online {format_cpu_list(online)}", f"allowed {format_cpu_list(host.mems_allowed or ())}")
        yield Hit("cpuset-mems", "cpuset.mems", None, {"hidden": format_cpu_list(hidden)}, evidence)
    if without:
        yield Hit("memory-only-node", "NUMA nodes", None, {"nodes": format_cpu_list(without)})


def numa(case: Case) -> Iterator[Hit]:
    """What cannot be known or done about memory placement."""
    host = case.host
    if host is None:
        return
    if host.limits.mempolicy_permitted is False:
        yield Hit("numa-permission", "set_mempolicy", None)
    unknown = tuple(gpu for gpu in host.gpus if gpu.numa_nodes is None)
    if unknown and len({core.numa_node for core in host.cores}) > 1:
        yield Hit("numa-unknown", "GPUs", None, {"gpus": named(unknown)})


def shared_memory(case: Case) -> Iterator[Hit]:
    """A /dev/shm too small for servers of several processes."""
    size = case.host.limits.shm_bytes if case.host else None
    users = [role for role in case.roles if role.runtime in SHM_RUNTIMES]
    if size is None or size >= SHM_BYTES or not users:
        return
    several = any(role.world_size > 1 for role in users)
    values = {
        "size": format_bytes(size),
        "services": ", ".join(role.name for role in users),
        "needed": format_bytes(SHM_BYTES),
    }
    # One rank gets by on less; what reports show failing alone is Docker's 64 MiB.
    tight = several or size <= 64 * MIB
    yield Hit("shared-memory-size", "shared memory", None, values, severity=None if tight else "warning")


def ports(case: Case) -> Iterator[Hit]:
    """Ports of services that are taken."""
    taken = {holder.port: holder for holder in case.surroundings.ports}
    for role in case.roles:
        holder = taken.get(role.service.port or 0) if role.service else None
        if holder is not None:
            owner = f" by {holder.owner}" if holder.owner else ""
            yield Hit("port-free", role.name, role.environment, {"port": holder.port, "owner": owner})


def memory(case: Case) -> Iterator[Hit]:
    """Weights that do not fit into the memory this container may use."""
    limits = case.host.limits if case.host else None
    bound = (limits.memory_bytes if limits else None) or (case.host.memory_bytes if case.host else None)
    used = (limits.memory_used_bytes if limits and limits.memory_bytes else None) or 0
    for role in case.roles:
        model = case.surroundings.models.get(role.name)
        needed = model.weights_bytes if model else None
        if needed and bound and needed > bound - used:
            values = {"needed": format_bytes(needed), "available": format_bytes(bound - used)}
            yield Hit("host-memory", role.name, role.environment, values)


def slurm(case: Case) -> Iterator[Hit]:
    """SLURM variables in the environment of something that starts MPI."""
    names = [name for name in SLURM if name in case.surroundings.environ]
    users = [role for role in case.roles if _starts_mpi(case, role)]
    if names and users:
        values, roles = {"names": ", ".join(names)}, tuple(role.name for role in users)
        if case.deployment is None:
            yield Hit("slurm-variables", "SLURM", None, values, roles)
        else:  # coexist passes none of them on to services
            yield Hit("slurm-variables", "SLURM", None, values, roles, severity="note", effect="none")


def _starts_mpi(case: Case, role: Role) -> bool:
    view = case.environments.get(role.environment)
    return role.runtime in MPI_RUNTIMES or (role.runtime is None and bool(view and view.has("tensorrt-llm")))


def mpi(case: Case) -> Iterator[Hit]:
    """The MPI that mpi4py loads where TensorRT-LLM needs Open MPI."""
    for view in case.environments.values():
        found = case.surroundings.mpi.get(view.name)
        if found is None or not view.has("tensorrt-llm"):
            continue
        python = view.shown_python
        if found.kind in {"mpich", "intel"}:
            what = f"mpi4py loads {found.kind} ({found.library or found.package}); TensorRT-LLM is linked to Open MPI"
            step = "conda install -c conda-forge openmpi 'mpi4py>=4', or in a venv: apt-get install libopenmpi-dev and "
            step += f"{python} -m pip install --no-binary mpi4py --force-reinstall mpi4py"
        elif found.library is None and found.kind is None:
            what = "mpi4py finds no MPI library" if view.has("mpi4py") else "mpi4py is not installed"
            step = f"apt-get install libopenmpi-dev; {python} -m pip install mpi4py"
        else:
            continue
        told = {"what_mpi": what, "step": step}
        if view.has("mpi4py") or found.kind or _requires(view, "tensorrt-llm", "mpi4py"):
            yield Hit("mpi-library", "mpi4py", view.name, told)
        else:  # a build of its own may do without: only what it says of itself blocks
            yield Hit("mpi-library", "mpi4py", view.name, told, (), "warning", "step")


def _requires(view: EnvironmentView, package: str, name: str) -> bool:
    return any(text.lower().startswith(name) for text in view.requires.get(package, ()))


def slots(case: Case) -> Iterator[Hit]:
    """More ranks than Open MPI counts slots."""
    cores = len(case.host.cores) if case.host else 0
    for role in case.roles:
        if role.runtime in MPI_RUNTIMES and cores and role.world_size > cores:
            yield Hit("mpi-slots", role.name, role.environment, {"ranks": role.world_size, "cores": cores})


RULES = {
    "cpu-affinity": affinity,
    "cpuset-mems": memory_nodes,
    "numa-unknown": numa,
    "shared-memory-size": shared_memory,
    "port-free": ports,
    "host-memory": memory,
    "slurm-variables": slurm,
    "mpi-library": mpi,
    "mpi-slots": slots,
}
