//! Generator of `proto/generated`: the messages, clients and servers of the public contract, and those of the calls that the
//! etcd source makes.
//!
//! The generated files are checked in, and no build runs this: a build needs neither protoc nor the sixty crates of a generator. `cargo test --test integration generated` runs it, and writes the files anew when they differ.

use std::{error::Error, fs, path::Path};

use prost::Message;
use prost_types::FileDescriptorSet;
use protox::file::{ChainFileResolver, DescriptorSetFileResolver, GoogleFileResolver, IncludeFileResolver};

const PROTO_ROOT: &str = "proto";
const PROTO_FILE: &str = "informerd/v1/informerd.proto";
const ETCD_FILE: &str = "etcd/rpc.proto";
/// Messages in the details of every status. No message of the contract refers to them; the descriptor set has them so that a
/// client can print the details with reflection alone.
const ERROR_DETAILS_FILE: &str = "google/rpc/error_details.proto";

/// Generates the files into a directory. The descriptor set of the contract, for gRPC reflection, has its comments, so that
/// `grpcurl describe` shows them.
pub(crate) fn generate(out: &Path) -> Result<(), Box<dyn Error>> {
    let mut resolver = ChainFileResolver::new();
    resolver.add(IncludeFileResolver::new(PROTO_ROOT.into()));
    resolver.add(GoogleFileResolver::new());
    resolver.add(DescriptorSetFileResolver::new(google_rpc()?));

    let mut compiler = protox::Compiler::with_file_resolver(resolver);
    compiler.include_source_info(true).include_imports(true).open_files([PROTO_FILE, ERROR_DETAILS_FILE])?;
    fs::write(out.join("descriptors.bin"), compiler.encode_file_descriptor_set())?;

    tonic_prost_build::configure()
        .out_dir(out)
        .extern_path(".google.rpc", "::tonic_types::pb")
        .bytes(".informerd.v1.Object.raw")
        .btree_map(".informerd.v1")
        // The server serves Watch, List and ByIndex outside of the generated trait, from bytes encoded without messages.
        .generate_default_stubs(true)
        .compile_fds(FileDescriptorSet::decode(&*compiler.encode_file_descriptor_set())?)?;

    tonic_prost_build::configure()
        .out_dir(out)
        // Not copied out of the message.
        .bytes(".mvccpb.KeyValue.value")
        // Only tests implement an etcd server.
        .server_mod_attribute("etcdserverpb", "#[cfg(test)]")
        .compile_fds(protox::compile([ETCD_FILE], [PROTO_ROOT])?)?;
    Ok(())
}

/// Returns google.rpc from tonic-types' descriptor set, so that no third-party file is copied into this tree. That set names
/// the files without a folder; imports name them below `google/rpc/`.
fn google_rpc() -> Result<FileDescriptorSet, Box<dyn Error>> {
    let mut set = FileDescriptorSet::decode(tonic_types::pb::FILE_DESCRIPTOR_SET)?;
    for file in &mut set.file {
        if file.package() == "google.rpc" && !file.name().contains('/') {
            file.name = Some(format!("google/rpc/{}", file.name()));
        }
    }
    Ok(set)
}
