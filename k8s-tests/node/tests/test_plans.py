"""What is decided before anything is done: addresses, certificates, configuration, commands."""

import base64
import json
from ipaddress import IPv4Address
from pathlib import Path

import pytest

from node import cgroups, config, manifests, network, nodes, pki
from node.config import Options, Programs
from node.layout import (
    API_SERVICE_ADDRESS,
    DNS_ADDRESS,
    DOMAIN,
    MAX_NODES,
    NODE_RANGE,
    POD_RANGE,
    SERVICE_RANGE,
    Layout,
    Node,
)
from node.layout import nodes as nodes_of

LAYOUT = Layout(Path("/clone/.run/cluster"))
PROGRAMS = Programs(Path("/cache/etcd/etcd"), Path("/cache/hyper"), Path("/usr/lib/cni"))
ONE, TWO = nodes_of(2)


def flag(command: tuple[str, ...], name: str) -> str:
    (value,) = (word.partition("=")[2] for word in command if word.startswith(f"--{name}="))
    return value


def test_every_node_has_addresses_of_its_own_inside_the_ranges() -> None:
    every = nodes_of(MAX_NODES)
    assert len({node.address for node in every}) == MAX_NODES
    assert all(node.address in NODE_RANGE for node in every)
    for node in every:
        assert node.pods.subnet_of(POD_RANGE)
        assert not any(node.pods.overlaps(other.pods) for other in every if other != node)
    assert [node.control_plane for node in every] == [True] + [False] * (MAX_NODES - 1)


def test_the_ranges_do_not_overlap() -> None:
    assert not NODE_RANGE.overlaps(POD_RANGE)
    assert not NODE_RANGE.overlaps(SERVICE_RANGE)
    assert not POD_RANGE.overlaps(SERVICE_RANGE)


def test_names_on_the_machine_belong_to_one_clone() -> None:
    other = Layout(Path("/another/.run/cluster"))
    assert LAYOUT.link != other.link
    assert LAYOUT.cgroup != other.cgroup
    assert len(LAYOUT.link) <= 15, "the kernel takes no longer names of links"


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"nodes": 0}, "a cluster has 1 to 9 nodes, not 0"),
        ({"nodes": 10}, "a cluster has 1 to 9 nodes, not 10"),
        ({"gpus": -1}, "a node has 0 fake GPUs or more, not -1"),
        (
            {"node_monitor_grace_period_s": 0},
            "the node monitor's grace period is 1 s or more, not 0 s",
        ),
    ],
)
def test_options_that_cannot_be(options: dict[str, int], sentence: str) -> None:
    with pytest.raises(ValueError, match=f"^{sentence}$"):
        Options(**options)


def test_every_certificate_is_signed_by_an_authority_of_ours() -> None:
    authorities = {each.name for each in pki.authorities()}
    certificates = pki.certificates((ONE, TWO))
    assert {each.authority for each in certificates} == authorities
    names = [each.name for each in certificates]
    assert len(set(names)) == len(names)


def test_the_api_server_answers_to_the_names_it_is_called_by() -> None:
    (server,) = (each for each in pki.certificates((ONE,)) if each.name == "apiserver")
    for name in (f"IP:{ONE.address}", f"IP:{API_SERVICE_ADDRESS}", "DNS:kubernetes.default.svc"):
        assert name in server.server_names
    assert "extendedKeyUsage=serverAuth" in server.extensions


def test_a_kubelet_is_the_user_that_its_node_may_be() -> None:
    client, server = (each for each in pki.certificates((TWO,)) if each.name.endswith("node2"))
    assert client.subject == "/O=system:nodes/CN=system:node:node2"
    assert "extendedKeyUsage=clientAuth" in client.extensions
    assert f"IP:{TWO.address}" in server.server_names


def test_openssl_signs_with_the_authority_and_adds_every_extension() -> None:
    certificate = pki.Certificate("kubelet-node2", "/CN=a", "ca")
    command = pki.openssl(certificate, Path("/pki"))
    assert command[command.index("-CA") + 1] == "/pki/ca.crt"
    assert command[command.index("-keyout") + 1] == "/pki/kubelet-node2.key"
    assert command.count("-addext") == len(certificate.extensions)
    assert "-CA" not in pki.openssl(pki.Certificate("ca", "/CN=ca"), Path("/pki"))


def test_a_kubeconfig_holds_its_certificates() -> None:
    content = json.loads(config.kubeconfig("admin", "172.30.77.2", b"the ca", b"cert", b"key"))
    (cluster,) = content["clusters"]
    assert cluster["cluster"]["server"] == "https://172.30.77.2:6443"
    assert base64.b64decode(cluster["cluster"]["certificate-authority-data"]) == b"the ca"
    assert content["current-context"] == content["contexts"][0]["name"] == "tidegate-test"


def test_each_kubelet_keeps_to_its_own_cgroup_and_certificate() -> None:
    one, two = (json.loads(config.kubelet(LAYOUT, node)) for node in (ONE, TWO))
    assert one["cgroupRoot"] == LAYOUT.node_cgroup(ONE) != two["cgroupRoot"]
    assert two["tlsCertFile"].endswith("/pki/kubelet-server-node2.crt")
    assert one["clusterDNS"] == [str(DNS_ADDRESS)]


def test_each_node_gives_its_pods_addresses_of_its_own_range() -> None:
    bridge = json.loads(config.cni(TWO))["plugins"][0]
    assert bridge["ipam"]["ranges"] == [[{"subnet": "10.244.1.0/24"}]]


def test_only_the_control_plane_has_the_controllers_kubeconfigs() -> None:
    assert set(config.kubeconfigs(ONE)) - set(config.kubeconfigs(TWO)) == {
        "kube-controller-manager",
        "kube-scheduler",
    }
    assert config.kubeconfigs(TWO)["kubelet"] == ("kubelet-node2", str(ONE.address))


def test_the_grace_period_reaches_the_controller_manager() -> None:
    command = config.controllers(LAYOUT, ONE, PROGRAMS, Options())["kube-controller-manager"]
    assert flag(command, "node-monitor-grace-period") == "180s"
    short = config.controllers(LAYOUT, ONE, PROGRAMS, Options(node_monitor_grace_period_s=6))
    assert flag(short["kube-controller-manager"], "node-monitor-grace-period") == "6s"


def test_containerd_and_the_nodes_agree_on_the_pause_image_and_the_nvidia_handler() -> None:
    content = config.containerd(LAYOUT, ONE, PROGRAMS.cni)
    assert f'sandbox_image = "{config.PAUSE_IMAGE}"' in content
    (handler,) = (
        content["handler"]
        for _, content in manifests.system_objects()
        if content["kind"] == "RuntimeClass"
    )
    assert f"runtimes.{handler}]" in content


def test_the_device_plugin_is_told_its_devices() -> None:
    command = config.device_plugin(LAYOUT, TWO, "python", Path("plugin.py"), 2)
    assert command[-2:] == ("fake-node2-0", "fake-node2-1")


def test_dns_answers_at_the_address_that_pods_are_told() -> None:
    (service,) = (
        content for _, content in manifests.system_objects() if content["kind"] == "Service"
    )
    assert service["spec"]["clusterIP"] == str(DNS_ADDRESS)
    assert f"kubernetes {DOMAIN} " in manifests.COREFILE


def test_node_objects_have_the_ranges_that_cni_gives_out() -> None:
    objects = [content for _, content in manifests.node_objects((ONE, TWO))]
    assert [each["spec"]["podCIDR"] for each in objects] == [str(ONE.pods), str(TWO.pods)]


def test_the_machine_reaches_services_and_all_pods_over_its_link() -> None:
    commands = network.switch(LAYOUT, 77, (ONE, TWO))
    routes = [command for command in commands if command[:3] == ("ip", "route", "add")]
    assert [command[3] for command in routes] == [str(SERVICE_RANGE), str(ONE.pods), str(TWO.pods)]
    assert all(command[-2:] == ("dev", LAYOUT.link) for command in routes)


def test_on_the_machine_itself_only_the_clones_link_is_touched() -> None:
    outside = [
        command
        for command in network.switch(LAYOUT, 77, (ONE, TWO))
        + network.node(77, 78, TWO, (ONE, TWO))
        if command[0] != "nsenter"
    ]
    assert outside
    assert all(LAYOUT.link in command for command in outside)


def test_a_node_comes_back_with_the_hardware_address_that_others_know() -> None:
    def hardware(pid: int, node: Node) -> str:
        commands = network.node(77, pid, node, (ONE, TWO))
        (command,) = [each for each in commands if "link" in each and "address" in each]
        return command[command.index("address") + 1]

    assert hardware(78, ONE) == hardware(79, ONE) == "02:00:ac:1e:4d:02"
    assert hardware(78, ONE) != hardware(78, TWO)


def test_a_node_has_routes_to_services_and_to_the_other_nodes_pods() -> None:
    commands = network.node(77, 78, TWO, (ONE, TWO))
    added = [command[command.index("add") + 1 :] for command in commands if "route" in command]
    assert (str(SERVICE_RANGE), "dev", "eth0", "src", str(TWO.address)) in added
    assert (str(ONE.pods), "via", str(ONE.address)) in added
    assert len(added) == 2


@pytest.mark.parametrize(
    ("route", "stands_in_the_way"),
    [
        (("default", "eth0"), False),
        (("172.17.0.0/16", "docker0"), False),
        (("10.0.0.0/8", "vpn0"), True),
        (("10.96.0.1", "vpn0"), True),
        (("172.30.77.0/24", "tg-01234567"), True),
        (("172.30.77.0/24", LAYOUT.link), False),
    ],
)
def test_routes_that_overlap(route: tuple[str, str], stands_in_the_way: bool) -> None:
    sentences = network.overlapping([route], LAYOUT.link)
    assert len(sentences) == stands_in_the_way
    if route[1].startswith("tg-") and sentences:
        assert "another clone's test cluster is up" in sentences[0]


def test_a_node_mounts_its_own_folders_and_never_shares_a_mount_with_the_machine() -> None:
    plan = nodes.plan(LAYOUT, ONE)
    commands = plan["commands"]
    assert isinstance(commands, list)
    assert commands[0] == ("mount", "--make-rshared", "/")
    binds = {command[3]: command[2] for command in commands if command[1] == "--bind"}
    for folder in (*config.OWN_FOLDERS, *config.KERNEL_SETTINGS):
        assert binds[folder] == f"/clone/.run/cluster/node1/root{folder}"
    assert "--mount" in nodes.UNSHARE


MOUNTS_V1 = """\
30 23 0:26 / /sys/fs/cgroup ro,nosuid shared:5 - tmpfs tmpfs ro
31 30 0:27 / /sys/fs/cgroup/systemd rw shared:6 - cgroup systemd rw,name=systemd
32 30 0:28 / /sys/fs/cgroup/cpu,cpuacct rw shared:7 - cgroup cgroup rw,cpu,cpuacct
33 30 0:29 / /sys/fs/cgroup/unified rw - cgroup2 none rw
"""


def test_cgroup_hierarchies_of_both_versions_are_found() -> None:
    assert [path.name for path in cgroups.hierarchies(MOUNTS_V1)] == [
        "systemd",
        "cpu,cpuacct",
        "unified",
    ]


def test_controllers_that_the_kubelet_would_miss() -> None:
    missing = cgroups.missing(MOUNTS_V1, unified=None)
    assert missing == ["cpuset", "memory", "pids", "devices", "freezer", "blkio"]
    assert cgroups.missing("", unified=["cpu", "cpuset", "memory", "pids", "io"]) == []
    assert cgroups.missing("", unified=["cpu", "pids"]) == ["cpuset", "memory"]


def test_node_addresses_are_as_documented() -> None:
    assert (ONE.address, TWO.address) == (IPv4Address("172.30.77.2"), IPv4Address("172.30.77.3"))
    assert Node(1).name == "node1"
