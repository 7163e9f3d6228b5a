"""The cluster's keys and certificates: a pure list of what is needed, and openssl to make it."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from .commands import run
from .layout import API_ADDRESS, API_SERVICE_ADDRESS, CONTROL_PLANE, DOMAIN, Node

# A test cluster that someone keeps must not stop by itself.
DAYS = 3650
# Without a configuration of our own, openssl would add the machine's extensions to ours.
CONFIGURATION = "[req]\ndistinguished_name = names\n[names]\n"
SERVICE_ACCOUNTS = "service-accounts"


@dataclass(frozen=True)
class Certificate:
    """One certificate with a key of its own.

    Args:
        name: of its files, `<name>.crt` and `<name>.key`.
        subject: as openssl writes it, `/O=group/CN=user`: what Kubernetes takes for the user.
        authority: the name of what signs it; None for an authority itself.
        server_names: the names and addresses that a server answers to; empty for a client.
    """

    name: str
    subject: str
    authority: str | None = None
    server_names: tuple[str, ...] = ()

    @property
    def extensions(self) -> tuple[str, ...]:
        """What the certificate may be used for."""
        if self.authority is None:
            return (
                "basicConstraints=critical,CA:TRUE",
                "keyUsage=critical,keyCertSign,cRLSign",
            )
        purpose = "serverAuth" if self.server_names else "clientAuth"
        names = (f"subjectAltName={','.join(self.server_names)}",) if self.server_names else ()
        return (
            "basicConstraints=critical,CA:FALSE",
            "keyUsage=critical,digitalSignature",
            f"extendedKeyUsage={purpose}",
            *names,
        )


def authorities() -> tuple[Certificate, ...]:
    """The two authorities: for the cluster, and for proxies in front of other API servers."""
    return (
        Certificate("ca", "/CN=kubernetes-ca"),
        Certificate("front-proxy-ca", "/CN=front-proxy-ca"),
    )


def certificates(nodes: Sequence[Node]) -> tuple[Certificate, ...]:
    """Every certificate that the components and the administrator use."""
    shared = (
        Certificate("apiserver", "/CN=kube-apiserver", "ca", _api_server_names()),
        Certificate("apiserver-kubelet-client", "/CN=kube-apiserver-kubelet-client", "ca"),
        Certificate("front-proxy-client", "/CN=front-proxy-client", "front-proxy-ca"),
        Certificate("admin", "/O=system:masters/CN=admin", "ca"),
        *(
            Certificate(name, f"/CN=system:{name}", "ca")
            for name in ("kube-controller-manager", "kube-scheduler", "kube-proxy")
        ),
    )
    return shared + tuple(each for node in nodes for each in _kubelet(node))


def openssl(certificate: Certificate, folder: Path) -> tuple[str, ...]:
    """The command that makes one certificate and its key."""
    signing: tuple[str, ...] = ()
    if certificate.authority is not None:
        authority = folder / certificate.authority
        signing = ("-CA", f"{authority}.crt", "-CAkey", f"{authority}.key")
    return (
        *("openssl", "req", "-x509", "-config", str(folder / "openssl.cnf")),
        *("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-noenc"),
        *("-keyout", str(folder / f"{certificate.name}.key")),
        *("-out", str(folder / f"{certificate.name}.crt")),
        *("-subj", certificate.subject, "-days", str(DAYS)),
        *(word for extension in certificate.extensions for word in ("-addext", extension)),
        *signing,
    )


def issue(folder: Path, nodes: Sequence[Node]) -> None:
    """Make all keys and certificates in a folder that only root can read.

    Raises:
        ClusterError: openssl is missing or fails.
    """
    folder.mkdir(parents=True, mode=0o700)
    (folder / "openssl.cnf").write_text(CONFIGURATION, encoding="ascii")

    def make(certificate: Certificate) -> None:
        run(openssl(certificate, folder))

    with ThreadPoolExecutor() as pool:
        tokens = pool.submit(_service_account_key, folder)
        list(pool.map(make, authorities()))
        list(pool.map(make, certificates(nodes)))
        tokens.result()


def _service_account_key(folder: Path) -> None:
    private = str(folder / f"{SERVICE_ACCOUNTS}.key")
    public = str(folder / f"{SERVICE_ACCOUNTS}.pub")
    curve = "ec_paramgen_curve:prime256v1"
    run(("openssl", "genpkey", "-algorithm", "EC", "-pkeyopt", curve, "-out", private))
    run(("openssl", "pkey", "-in", private, "-pubout", "-out", public))


def _api_server_names() -> tuple[str, ...]:
    inside = ("kubernetes", "kubernetes.default", "kubernetes.default.svc")
    names = (*inside, f"kubernetes.default.svc.{DOMAIN}", "localhost", CONTROL_PLANE.name)
    addresses = ("127.0.0.1", API_ADDRESS, API_SERVICE_ADDRESS)
    return (*(f"DNS:{name}" for name in names), *(f"IP:{address}" for address in addresses))


def _kubelet(node: Node) -> tuple[Certificate, Certificate]:
    user = f"/O=system:nodes/CN=system:node:{node.name}"
    names = (f"DNS:{node.name}", f"IP:{node.address}", "IP:127.0.0.1")
    return (
        Certificate(f"kubelet-{node.name}", user, "ca"),
        Certificate(f"kubelet-server-{node.name}", user, "ca", names),
    )
