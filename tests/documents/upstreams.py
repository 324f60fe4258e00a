"""etcd and the API server of Kubernetes, which tests/upstreams/run builds, and the environment of their clients."""

import json
import os
import ssl
import subprocess
import urllib.request
from pathlib import Path

from pages import Background, free_port, until

TOKEN = "admin"


def start_etcd(work):
    """Starts etcd, and makes it the one of etcdctl. Returns its address."""
    address, peer = f"127.0.0.1:{free_port()}", f"http://127.0.0.1:{free_port()}"
    program = os.environ["INFORMERD_UPSTREAMS"]
    etcd = Background(f'exec "{program}" serve "{work}/etcd" m0 http://{address} m0={peer}', work)
    os.environ["ETCDCTL_ENDPOINTS"] = address
    command = ["etcdctl", "endpoint", "health"]
    until("etcd is healthy", lambda: subprocess.run(command, capture_output=True, check=False).returncode == 0, of=etcd)
    return address


def start_api_server(work, etcd):
    """Starts an API server, and makes it the one of kubectl and informerd."""
    directory, port = work / "kubernetes", free_port()
    directory.mkdir()
    (directory / "tokens.csv").write_text(f'{TOKEN},admin,1,"system:masters"\n', encoding="utf-8")
    key, public = directory / "key.pem", directory / "public.pem"
    subprocess.run(["openssl", "genrsa", "-out", key, "2048"], check=True, capture_output=True)
    subprocess.run(["openssl", "rsa", "-in", key, "-pubout", "-out", public], check=True, capture_output=True)
    flags = [
        f"--etcd-servers=http://{etcd}",
        f"--secure-port={port}",
        f"--cert-dir={directory}/certs",
        f"--token-auth-file={directory}/tokens.csv",
        f"--service-account-key-file={public}",
        f"--service-account-signing-key-file={key}",
        "--bind-address=127.0.0.1",
        "--service-account-issuer=https://informerd.test",
        "--authorization-mode=RBAC",
        "--service-cluster-ip-range=10.0.0.0/24",
        # Its controller, which gives each namespace an account, is not here.
        "--disable-admission-plugins=ServiceAccount",
    ]
    server = Background(f'exec "{os.environ["INFORMERD_KUBERNETES"]}" kube-apiserver {" ".join(flags)}', work)
    certificate = directory / "certs/apiserver.crt"

    def is_ready():
        try:
            context = ssl.create_default_context(cafile=certificate)
            request = urllib.request.Request(
                f"https://127.0.0.1:{port}/readyz", headers={"Authorization": f"Bearer {TOKEN}"}
            )
            with urllib.request.urlopen(request, timeout=5, context=context) as answer:
                return answer.status == 200
        except (OSError, ssl.SSLError):
            return False

    until("the API server is ready", is_ready, 90, of=server)
    cluster = {"server": f"https://127.0.0.1:{port}", "certificate-authority": str(certificate)}
    config = {
        "current-context": "c",
        "clusters": [{"name": "k", "cluster": cluster}],
        "users": [{"name": "u", "user": {"token": TOKEN}}],
        "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
    }
    kubeconfig = directory / "kubeconfig"
    kubeconfig.write_text(json.dumps(config), encoding="utf-8")
    os.environ["KUBECONFIG"] = str(kubeconfig)


def add_clients(work):
    """Puts kubectl, etcdctl and informerd on the PATH."""
    programs = work / "bin"
    programs.mkdir()
    (programs / "kubectl").write_text(
        f'#!/bin/sh\nexec "{os.environ["INFORMERD_KUBERNETES"]}" kubectl "$@"\n', encoding="utf-8"
    )
    (programs / "kubectl").chmod(0o755)
    (programs / "etcdctl").symlink_to(os.environ["INFORMERD_ETCDCTL_34"])
    (programs / "informerd").symlink_to(Path(os.environ["INFORMERD"]).resolve())
    os.environ["PATH"] = f"{programs}:{os.environ['PATH']}"
