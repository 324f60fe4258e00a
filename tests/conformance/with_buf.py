"""Checks with buf curl: another implementation of gRPC (connect-go) and of reflection."""

from harness import check, equal, is_files_version, json_documents, key, run_client


def run(buf, address, manifests):
    url = f"http://{address}/informerd.v1.InformerService/List"
    flags = ["--protocol", "grpc", "--http2-prior-knowledge", "--data", '{"resource": "deployments"}']
    result = run_client([buf, "curl", *flags, url], seconds=60)
    equal(result.returncode, 0, f"buf curl: List of deployments ends with 0 {result.stderr}".rstrip())
    chunks = json_documents(result.stdout)
    found = [key(each) for chunk in chunks for each in chunk.get("objects", [])]
    wanted = manifests.keys("Deployment")
    equal(found, wanted, f"buf curl: List of deployments has the {len(wanted)} of the manifests")
    check(all(is_files_version(c["resourceVersion"]) for c in chunks), "buf curl: every chunk has the version", chunks)
