from __future__ import annotations

from tests.plan.machines import deployment, gpu, host
from toolkit.host.model import ContainerLimits, Core, Host, NumaNode
from toolkit.plan import make
from toolkit.plan.model import ServicePlan
from toolkit.units import GIB


def only(machine: Host, **keys: object) -> ServicePlan:
    return make(deployment(a=dict(keys)), machine).services[0]


def test_memory_is_bound_to_the_nodes_of_the_cpus():
    service = only(host(gpu(0, node=1), nodes=2, cores=4), gpus=1, cpus=2)
    assert (service.numa_nodes, service.memory_bind) == ((1,), (1,))


def test_a_gpu_of_unknown_node_has_its_memory_unbound_and_says_so():
    service = only(host(gpu(0, node=None), nodes=2, cores=4), gpus=1, cpus=2)
    assert service.memory_bind is None
    assert any("NUMA node of GPU 0 is unknown" in note for note in service.notes)


def test_minus_one_is_unknown_and_not_a_node():
    assert only(host(gpu(0, node=-1), nodes=2, cores=4), gpus=1, cpus=2).memory_bind is None


def test_a_container_that_refuses_set_mempolicy_gets_no_binding_and_says_so():
    service = only(host(limits=ContainerLimits(mempolicy_permitted=False)), cpus=2)
    assert service.memory_bind is None
    assert any("set_mempolicy" in note for note in service.notes)


def test_a_node_that_is_not_allowed_is_left_out_of_the_binding():
    service = only(host(nodes=2, cores=2, mems_allowed=(1,)), cpus=4)
    assert (service.numa_nodes, service.memory_bind) == ((0, 1), (1,))
    assert only(host(nodes=2, cores=2, mems_allowed=(1,)), cpus="0").memory_bind is None


def test_nothing_is_bound_where_gpu_memory_is_a_node_of_its_own():
    cores = tuple(Core(cpus=(c,)) for c in range(4))
    nodes = (NumaNode(node=0, cpus=(0, 1, 2, 3)), NumaNode(node=2, cpus=(), memory_bytes=GIB))
    coherent = Host(gpus=(gpu(0, gpu_numa_id=2),), cores=cores, cpus_allowed=(0, 1, 2, 3), numa=nodes)
    for keys in ({"gpus": 1}, {}):
        service = only(coherent, cpus=2, **keys)
        assert (service.numa_nodes, service.memory_bind) == ((0,), None)
        assert any("node 2 is memory only" in note for note in service.notes)


def test_a_host_that_does_not_say_its_nodes_gets_no_binding():
    service = only(Host(cores=(Core(cpus=(0,)),), cpus_allowed=(0,)), cpus=1)
    assert (service.numa_nodes, service.memory_bind) == ((), None)
    assert service.notes
