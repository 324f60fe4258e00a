"""Starts the server on a copy of the examples and runs every check against it; `run` prepares its arguments."""

import argparse
import pathlib
import shutil
import sys
import tempfile
import time
import traceback

import with_buf
import with_grpcio
import with_grpcurl
from harness import Failed, Manifests, Server, ok


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--informerd", required=True, help="the server's binary")
    parser.add_argument("--repository", required=True, type=pathlib.Path, help="where examples/ and proto/ are")
    parser.add_argument("--grpcurl", required=True, help="grpcurl's binary")
    parser.add_argument("--buf", default="", help="buf's binary; empty to skip it")
    options = parser.parse_args()

    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="informerd-conformance-") as scratch:
        examples = pathlib.Path(scratch) / "examples"
        shutil.copytree(options.repository / "examples", examples)
        proto = options.repository / "proto" / "informerd" / "v1" / "informerd.proto"
        server = Server(options.informerd, examples / "shop.yaml", pathlib.Path(scratch) / "informerd.log")
        try:
            server.start()
            server.check_admin()
            manifests = Manifests(examples / "manifests")
            with_grpcurl.run(options.grpcurl, server.address, manifests, proto)
            if options.buf:
                with_buf.run(options.buf, server.address, manifests)
            else:
                print("skipped  buf curl: no npm here", flush=True)
            with_grpcio.run(server, manifests)
        except Exception as error:  # whatever it was, the log of the server says more
            if not isinstance(error, Failed):
                traceback.print_exc()
            print(f"FAILED  {error}\n\nthe end of the server's log:\n{server.log_tail()}", flush=True)
            return 1
        finally:
            server.kill()
    ok(f"everything, in {time.monotonic() - started:.1f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
