"""Runs the commands of the pages in docs/, as they are written, with a real etcd and API server.

Each page, and each recipe, has a new directory beside the repository. Only addresses are exchanged: those of the page
for free ones. go, python3, jq, curl and openssl must be on the PATH; tests/documents/run sets the other programs.
"""

import os
import tempfile
from pathlib import Path

import commands
import recipes
from pages import free_port, run
from upstreams import add_clients, start_api_server, start_etcd


def main():
    with tempfile.TemporaryDirectory() as name:
        work = Path(name) / "work"
        work.mkdir()
        add_clients(work)
        etcd = start_etcd(work)
        start_api_server(work, etcd)
        run("kubectl create namespace shop")
        ports = {port: free_port() for port in (50051, 50052, 8001, 8080, 9464)}
        addresses = {f"127.0.0.1:{written}": f"127.0.0.1:{actual}" for written, actual in ports.items()}
        addresses["localhost:50051"] = f"localhost:{ports[50051]}"
        # In a program, as two arguments.
        addresses['"127.0.0.1", 8080'] = f'"127.0.0.1", {ports[8080]}'
        addresses["127.0.0.1:2379"] = etcd
        listen = addresses["127.0.0.1:50051"]
        os.environ.update(INFORMERD_LISTEN=listen, INFORMERD_SERVER=listen, INFORMERD_ADMIN_LISTEN="none")
        recipes.run_all(work, addresses)
        commands.run_all(work, addresses)


if __name__ == "__main__":
    main()
