"""A control plane: etcd, kube-apiserver, kube-controller-manager and kube-scheduler, with RBAC, audit and own users.

By itself it needs no root: all listen on loopback. `node.Cluster` runs the same in a network namespace (`Placement`),
where pods reach it. Users are tokens; `admin` may do everything, the others what RBAC gives them. It is ready when its
API server says so and, with controllers, when the default service account has appeared.
"""

import base64
import json
import secrets
import ssl
import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from . import build, workfolder
from .process import Process, Started, free_ports

SERVICE_RANGE = "10.96.0.0/16"
API_SERVICE_ADDRESS = "10.96.0.1"
ISSUER = "https://kubernetes.default.svc.cluster.local"
ADMIN = "admin"
CONTROLLERS = "system:kube-controller-manager"
SCHEDULER = "system:kube-scheduler"
AUDIT_POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [{"level": "Metadata"}],
}


@dataclass(frozen=True)
class Placement:
    """Where the servers run: a command before each of theirs, and the addresses they use there."""

    prefix: tuple[str, ...] = ()
    bind: str = "127.0.0.1"
    advertise: str = "127.0.0.1"
    secure_port: int = 0
    """The API server's port; 0 takes a free one."""
    public_port: int = 0
    """The port of 127.0.0.1 at which callers reach the API server, where that is not its own."""

    @property
    def host(self) -> str:
        """The name of the loopback address that the API server's certificate carries."""
        return "localhost" if self.bind == "0.0.0.0" else self.bind


class ControlPlane(Started):
    """A control plane while the context is open.

    `users` are names with their groups. `audit` writes every answered request (level Metadata) to `audit_log`, one JSON
    document a line. `apiserver_args` and `controller_args` are added to the programs' own.
    Raises build.UnavailableError where it cannot be built, ProcessFailedError where a server does not come up.
    """

    def __init__(
        self,
        *,
        workdir: Path | None = None,
        users: Mapping[str, tuple[str, ...]] | None = None,
        controllers: bool = True,
        scheduler: bool = True,
        audit: bool = False,
        apiserver_args: Iterable[str] = (),
        controller_args: Iterable[str] = (),
        placement: Placement | None = None,
    ) -> None:
        self._own_workdir = workdir is None
        self.workdir = workfolder.make() if workdir is None else workdir
        self._users = {
            ADMIN: ("system:masters",),
            **dict.fromkeys((CONTROLLERS, SCHEDULER), ()),
            **dict(users or {}),
        }
        self._tokens = {user: secrets.token_hex(16) for user in self._users}
        self._controllers = controllers
        self._scheduler = scheduler
        self._audit = audit
        self._apiserver_args = tuple(apiserver_args)
        self._controller_args = tuple(controller_args)
        self._placement = placement or Placement()
        self.processes: dict[str, Process] = {}
        self._port = 0

    # --- life ---------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Build what is missing, write what the servers read, and start them."""
        binaries = build.ensure(build.CONTROL_PLANE)
        for folder in ("keys", "logs", "etcd", "certificates"):
            (self.workdir / folder).mkdir(parents=True, exist_ok=True)
        self._write_files(binaries)
        self._define(binaries)
        for name in ("etcd", "kube-apiserver"):
            self.processes[name].start()
            self.processes[name].wait_ready()
        for user in (CONTROLLERS, SCHEDULER):
            server = f"https://{self._placement.host}:{self._port}"
            self.write_kubeconfig(self.workdir / f"inside-{user[12:]}.kubeconfig", user, server)
        others = [process for name, process in self.processes.items() if name not in ("etcd", "kube-apiserver")]
        for process in others:
            process.start()
        for process in others:
            process.wait_ready()

    def stop(self) -> None:
        """End the servers, the last started first, and remove the folder (kept if $GROUNDPLANE_KEEP is set)."""
        for process in reversed(self.processes.values()):
            process.stop()
        if self._own_workdir:
            workfolder.remove(self.workdir)

    # --- for clients --------------------------------------------------------------------------------------------------

    @property
    def url(self) -> str:
        """The API server's address, by a name that its certificate carries."""
        return f"https://{self._placement.host}:{self._placement.public_port or self._port}"

    @property
    def ca_file(self) -> Path:
        """The certificate to trust."""
        return self.workdir / "certificates" / "apiserver.crt"

    @property
    def audit_log(self) -> Path:
        """The audit log: JSON lines, one for each answered request."""
        return self.workdir / "logs" / "audit.log"

    def token(self, user: str = ADMIN) -> str:
        """A user's bearer token. KeyError for a user that was not given at the start."""
        return self._tokens[user]

    def kubeconfig(self, user: str = ADMIN) -> Path:
        """A kubeconfig for a user."""
        return self.write_kubeconfig(self.workdir / f"{user.replace(':', '-')}.kubeconfig", user, self.url)

    def request(self, method: str, path: str, body: Any = None, *, user: str = ADMIN) -> tuple[int, Any]:
        """One plain request (PATCH: a merge patch): status and decoded JSON answer. OSError if nobody answers."""
        data = None if body is None else json.dumps(body).encode()
        kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
        headers = {"Authorization": f"Bearer {self.token(user)}", "Content-Type": kind}
        request = urllib.request.Request(self.url + path, data, headers, method=method)
        context = ssl.create_default_context(cafile=str(self.ca_file))
        try:
            with urllib.request.urlopen(request, timeout=10, context=context) as answer:
                return answer.status, _decoded(answer.read())
        except urllib.error.HTTPError as error:
            return error.code, _decoded(error.read())

    # --- inside -------------------------------------------------------------------------------------------------------

    def write_kubeconfig(self, path: Path, user: str, server: str) -> Path:
        """A kubeconfig that needs no other file, for a client that reaches the API server at `server`."""
        authority = base64.b64encode(self.ca_file.read_bytes()).decode()
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "real", "cluster": {"server": server, "certificate-authority-data": authority}}],
            "users": [{"name": user, "user": {"token": self.token(user)}}],
            "contexts": [{"name": "real", "context": {"cluster": "real", "user": user}}],
            "current-context": "real",
        }
        path.touch(mode=0o600)
        path.write_text(yaml.safe_dump(document))
        return path

    def _write_files(self, binaries: build.Binaries) -> None:
        keys = self.workdir / "keys"
        lines = [
            f'{self._tokens[user]},{user},{user},"{",".join(groups)}"\n' for user, groups in sorted(self._users.items())
        ]
        (keys / "tokens.csv").write_text("".join(lines))
        (keys / "tokens.csv").chmod(0o600)
        (self.workdir / "audit-policy.yaml").write_text(yaml.safe_dump(AUDIT_POLICY))
        if not (keys / "signing.key").exists():
            subprocess.run([binaries["keys"], keys / "signing.key", keys / "signing.pub"], check=True)

    def _define(self, binaries: build.Binaries) -> None:
        client, peer, secure, manager, scheduler = free_ports(5)
        self._port = self._placement.secure_port or secure
        etcd = f"http://127.0.0.1:{client}"
        self._add(binaries["etcd"], self._etcd_arguments(etcd, f"http://127.0.0.1:{peer}"), lambda: True)
        self._add(binaries["kube-apiserver"], self._apiserver_arguments(etcd), self._serves)
        if self._controllers:
            arguments = (
                *self._client_arguments(CONTROLLERS, manager),
                f"--service-account-private-key-file={self.workdir}/keys/signing.key",
                f"--root-ca-file={self.ca_file}",
                "--use-service-account-credentials=true",
                *self._controller_args,
            )
            self._add(binaries["kube-controller-manager"], arguments, self._made_service_account)
        if self._scheduler:
            self._add(binaries["kube-scheduler"], self._client_arguments(SCHEDULER, scheduler), lambda: True)

    def _add(self, binary: Path, arguments: Iterable[str], ready: Callable[[], bool]) -> None:
        argv = (*self._placement.prefix, str(binary), *arguments)
        log = self.workdir / "logs" / f"{binary.name}.log"
        self.processes[binary.name] = Process(binary.name, argv, log=log, ready=ready)

    def _etcd_arguments(self, client: str, peer: str) -> tuple[str, ...]:
        return (
            f"--data-dir={self.workdir}/etcd",
            f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=default={peer}",
            "--unsafe-no-fsync",  # it survives SIGKILL all the same: the kernel has what was written
            "--log-level=warn",
        )

    def _apiserver_arguments(self, etcd: str) -> tuple[str, ...]:
        where, keys = self._placement, self.workdir / "keys"
        audit = (
            f"--audit-policy-file={self.workdir}/audit-policy.yaml",
            f"--audit-log-path={self.audit_log}",
        )
        return (
            f"--etcd-servers={etcd}",
            f"--bind-address={where.bind}",
            f"--secure-port={self._port}",
            f"--advertise-address={where.advertise}",
            f"--cert-dir={self.workdir}/certificates",
            f"--service-account-key-file={keys}/signing.pub",
            f"--service-account-signing-key-file={keys}/signing.key",
            f"--service-account-issuer={ISSUER}",
            f"--token-auth-file={keys}/tokens.csv",
            "--authorization-mode=Node,RBAC",
            f"--service-cluster-ip-range={SERVICE_RANGE}",
            "--allow-privileged=true",
            "--endpoint-reconciler-type=none",
            "--kubelet-preferred-address-types=InternalIP",
            *(audit if self._audit else ()),
            *self._apiserver_args,
        )

    def _client_arguments(self, user: str, port: int) -> tuple[str, ...]:
        config = self.workdir / f"inside-{user[12:]}.kubeconfig"
        return (
            f"--kubeconfig={config}",
            f"--authentication-kubeconfig={config}",
            f"--authorization-kubeconfig={config}",
            "--leader-elect=false",
            f"--secure-port={port}",
            "--bind-address=127.0.0.1",
            f"--cert-dir={self.workdir}/certificates/{user[12:]}",
        )

    def _serves(self) -> bool:
        return self.ca_file.exists() and self.request("GET", "/readyz")[0] == 200

    def _made_service_account(self) -> bool:
        status, _ = self.request("GET", "/api/v1/namespaces/default/serviceaccounts/default")
        return status == 200


def _decoded(body: bytes) -> Any:
    try:
        return json.loads(body)
    except ValueError:
        return body.decode(errors="replace")
