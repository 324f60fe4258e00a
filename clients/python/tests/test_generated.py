"""The generated code against the contract, whatever the version of protoc that made it."""

from __future__ import annotations

from pathlib import Path

from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet

from informerd.v1 import informerd_pb2

DESCRIPTORS = Path(__file__).parents[3] / "proto" / "generated" / "descriptors.bin"


def test_the_generated_code_is_that_of_the_proto() -> None:
    files = FileDescriptorSet.FromString(DESCRIPTORS.read_bytes()).file
    (contract,) = (file for file in files if file.name == "informerd/v1/informerd.proto")
    ours = FileDescriptorProto.FromString(informerd_pb2.DESCRIPTOR.serialized_pb)
    for file in (contract, ours):
        file.ClearField("source_code_info")
        for message in file.message_type:
            for field in (*message.field, *(field for nested in message.nested_type for field in nested.field)):
                field.ClearField("json_name")
    assert ours == contract, "run clients/python/generate"
