"""Runs the commands that docs/clients.md has under "Generate code", as they are written, and uses what they generate.

Each block runs in the directory of a new program beside a clone of the repository. go, npm, python3 and protoc must be on the PATH.
"""

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

GO_PROGRAM = """package main

import (
	"example.com/program/informerdv1"
	"google.golang.org/genproto/googleapis/rpc/status"
)

func main() {
	response := informerdv1.WatchResponse{Error: &status.Status{Code: 5}}
	println(response.GetError().GetCode(), informerdv1.NewInformerServiceClient(nil) != nil)
}
"""
PYTHON_PROGRAM = """
from google.rpc import status_pb2
from informerd.v1 import informerd_pb2, informerd_pb2_grpc
print(informerd_pb2.WatchResponse(error=status_pb2.Status(code=5)).error.code, informerd_pb2_grpc.InformerServiceStub)
"""
# The types are those of what the program loads.
TYPESCRIPT_PROGRAM = """
import { credentials, loadPackageDefinition } from "@grpc/grpc-js";
import { loadSync } from "@grpc/proto-loader";
import type { ProtoGrpcType } from "./generated/informerd";
const includeDirs = ["../informerd/proto", "node_modules/google-proto-files"];
const loaded = loadPackageDefinition(loadSync("informerd/v1/informerd.proto", { includeDirs })) as unknown as ProtoGrpcType;
const client = new loaded.informerd.v1.InformerService("127.0.0.1:1", credentials.createInsecure());
console.log(typeof client.Watch);
client.close();
"""
TYPESCRIPT = """
npm install --silent --save-dev typescript @types/node
npx tsc --strict --skipLibCheck --types node --module nodenext --target es2022 program.ts
node program.js
"""
# For each heading a file that uses the generated code, and the commands that run it.
PROGRAMS = {
    "Python": ("program.py", PYTHON_PROGRAM, "PYTHONPATH=generated .venv/bin/python program.py"),
    "Go": ("main.go", GO_PROGRAM, "go mod tidy && go vet ./... && go run ."),
    "TypeScript and JavaScript": ("program.ts", TYPESCRIPT_PROGRAM, TYPESCRIPT),
}


def blocks(page):
    """Returns the block of shell commands below each heading that has one."""
    section = re.search(r"\n## Generate code\n(.*?)(?=\n## |\Z)", page, re.DOTALL)[1]
    parts = re.split(r"\n### (.*)\n", section)
    found = zip(parts[1::2], (re.findall(r"```sh\n(.*?)```", part, re.DOTALL) for part in parts[2::2]))
    return {heading: commands[0] for heading, commands in found if commands}


def run(command, directory):
    """Runs commands; shows what they print if they fail."""
    ran = subprocess.run(["bash", "-euo", "pipefail", "-c", command], cwd=directory, capture_output=True, text=True)
    if ran.returncode != 0:
        sys.exit(f"FAILED  {command}\n{ran.stdout}{ran.stderr}")


def main():
    repository = Path(__file__).resolve().parents[2]
    found = blocks((repository / "docs/clients.md").read_text(encoding="utf-8"))
    if found.keys() != PROGRAMS.keys():
        sys.exit(f"FAILED  docs/clients.md has commands for {', '.join(found)}; expected: {', '.join(PROGRAMS)}")
    for heading, (name, text, check) in PROGRAMS.items():
        with tempfile.TemporaryDirectory() as work:
            os.symlink(repository, f"{work}/informerd")
            program = Path(work, "program")
            program.mkdir()
            run(found[heading], program)
            (program / name).write_text(text, encoding="utf-8")
            run(check, program)
        print(f"ok  docs/clients.md, {heading}: the commands generate code that works", flush=True)


if __name__ == "__main__":
    main()
