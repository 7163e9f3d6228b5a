"""The objects that the cluster starts with. Pure: each with the collection it is posted to."""

from __future__ import annotations

from typing import Any

from .config import DNS_IMAGE, NVIDIA_HANDLER
from .layout import DNS_ADDRESS, DOMAIN, Node

Object = dict[str, Any]
RBAC = "/apis/rbac.authorization.k8s.io/v1"
SYSTEM = "/api/v1/namespaces/kube-system"
DEPLOYMENTS = "/apis/apps/v1/namespaces/kube-system/deployments"
DNS_LABELS = {"k8s-app": "kube-dns"}

# Two servers: inside one, `template` would come before `kubernetes` and deny every name.
COREFILE = f"""\
{DOMAIN}:53 in-addr.arpa:53 ip6.arpa:53 {{
    errors
    health {{
        lameduck 1s
    }}
    ready
    kubernetes {DOMAIN} in-addr.arpa ip6.arpa {{
        pods insecure
        ttl 1
    }}
    prometheus :9153
    loadbalance
}}
.:53 {{
    template ANY ANY . {{
        rcode NXDOMAIN
    }}
}}
"""


def node_objects(nodes: tuple[Node, ...]) -> list[tuple[str, Object]]:
    """The nodes, made before their kubelets start so that their pods' ranges are as planned."""
    return [
        (
            "/api/v1/nodes",
            {
                "apiVersion": "v1",
                "kind": "Node",
                "metadata": {"name": node.name},
                "spec": {"podCIDR": str(node.pods), "podCIDRs": [str(node.pods)]},
            },
        )
        for node in nodes
    ]


def system_objects() -> list[tuple[str, Object]]:
    """What every node and test relies on: access to the kubelets, DNS, the RuntimeClass."""
    return [
        (f"{RBAC}/clusterrolebindings", _kubelet_access()),
        ("/apis/node.k8s.io/v1/runtimeclasses", _runtime_class()),
        (f"{SYSTEM}/serviceaccounts", _object("v1", "ServiceAccount", "coredns")),
        (f"{RBAC}/clusterroles", _dns_role()),
        (f"{RBAC}/clusterrolebindings", _dns_binding()),
        (
            f"{SYSTEM}/configmaps",
            {**_object("v1", "ConfigMap", "coredns"), "data": {"Corefile": COREFILE}},
        ),
        (f"{SYSTEM}/services", _dns_service()),
        (DEPLOYMENTS, _dns_deployment()),
    ]


def _object(version: str, kind: str, name: str, labels: dict[str, str] | None = None) -> Object:
    metadata: Object = {"name": name} | ({"labels": labels} if labels else {})
    return {"apiVersion": version, "kind": kind, "metadata": metadata}


def _rbac(kind: str, name: str) -> Object:
    return _object("rbac.authorization.k8s.io/v1", kind, name)


def _role(name: str) -> Object:
    return {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name}


def _kubelet_access() -> Object:
    # kubectl logs, exec and port-forward reach the kubelets through the API server.
    user = {
        "apiGroup": "rbac.authorization.k8s.io",
        "kind": "User",
        "name": "kube-apiserver-kubelet-client",
    }
    return {
        **_rbac("ClusterRoleBinding", "kube-apiserver-kubelet-client"),
        "roleRef": _role("system:kubelet-api-admin"),
        "subjects": [user],
    }


def _runtime_class() -> Object:
    return {**_object("node.k8s.io/v1", "RuntimeClass", "nvidia"), "handler": NVIDIA_HANDLER}


def _dns_role() -> Object:
    verbs = ["list", "watch"]
    core = ["endpoints", "services", "pods", "namespaces"]
    return {
        **_rbac("ClusterRole", "system:coredns"),
        "rules": [
            {"apiGroups": [""], "resources": core, "verbs": verbs},
            {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": verbs},
        ],
    }


def _dns_binding() -> Object:
    account = {"kind": "ServiceAccount", "name": "coredns", "namespace": "kube-system"}
    return {
        **_rbac("ClusterRoleBinding", "system:coredns"),
        "roleRef": _role("system:coredns"),
        "subjects": [account],
    }


def _dns_service() -> Object:
    return {
        **_object("v1", "Service", "kube-dns", DNS_LABELS | {"kubernetes.io/name": "CoreDNS"}),
        "spec": {
            "clusterIP": str(DNS_ADDRESS),
            "selector": DNS_LABELS,
            "ports": [
                {"name": "dns", "port": 53, "protocol": "UDP"},
                {"name": "dns-tcp", "port": 53, "protocol": "TCP"},
            ],
        },
    }


def _dns_deployment() -> Object:
    return {
        **_object("apps/v1", "Deployment", "coredns", DNS_LABELS),
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": DNS_LABELS},
            "template": {"metadata": {"labels": DNS_LABELS}, "spec": _dns_pod()},
        },
    }


def _dns_pod() -> Object:
    unready = "node.kubernetes.io/not-ready"
    return {
        "serviceAccountName": "coredns",
        "priorityClassName": "system-cluster-critical",
        "dnsPolicy": "Default",
        # On the control plane, so that the other nodes can be killed without losing DNS.
        "nodeSelector": {"kubernetes.io/hostname": Node(1).name},
        "tolerations": [{"key": unready, "operator": "Exists", "effect": "NoSchedule"}],
        "containers": [
            {
                "name": "coredns",
                "image": DNS_IMAGE,
                "imagePullPolicy": "Never",
                "args": ["-conf", "/etc/coredns/Corefile"],
                "ports": [
                    {"containerPort": 53, "protocol": "UDP", "name": "dns"},
                    {"containerPort": 53, "protocol": "TCP", "name": "dns-tcp"},
                    {"containerPort": 9153, "protocol": "TCP", "name": "metrics"},
                ],
                "livenessProbe": {
                    "httpGet": {"path": "/health", "port": 8080},
                    "initialDelaySeconds": 30,
                },
                "readinessProbe": {
                    "httpGet": {"path": "/ready", "port": 8181},
                    "periodSeconds": 1,
                },
                "resources": {
                    "requests": {"cpu": "50m", "memory": "40Mi"},
                    "limits": {"memory": "170Mi"},
                },
                "securityContext": {
                    "allowPrivilegeEscalation": False,
                    "readOnlyRootFilesystem": True,
                    "capabilities": {"drop": ["ALL"], "add": ["NET_BIND_SERVICE"]},
                },
                "volumeMounts": [{"name": "config", "mountPath": "/etc/coredns", "readOnly": True}],
            }
        ],
        "volumes": [{"name": "config", "configMap": {"name": "coredns"}}],
    }
