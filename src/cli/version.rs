//! `informerd version`.

use clap::Args;

use super::{
    client_flags::FormatFlags,
    failure::Failure,
    print::{json::Document, write_all},
};

/// Flags of `informerd version`.
#[derive(Debug, Clone, Args)]
pub(super) struct VersionFlags {
    #[command(flatten)]
    format: FormatFlags,
}

/// Version of the crate.
const VERSION: &str = env!("CARGO_PKG_VERSION");
/// Commit that the program was built from; `unknown` outside of a checkout, and for a debug build.
const COMMIT: &str = env!("INFORMERD_COMMIT");
/// Cargo features, and whether the program was built with them.
const FEATURES: [(&str, bool); 5] = [
    ("cel", cfg!(feature = "cel")),
    ("jemalloc", cfg!(feature = "jemalloc")),
    ("kube", cfg!(feature = "kube")),
    ("kubernetes-api", cfg!(feature = "kubernetes-api")),
    ("otel", cfg!(feature = "otel")),
];

pub(super) fn run(flags: &VersionFlags) -> Result<(), Failure> {
    let features: Vec<&str> = FEATURES.iter().filter(|(_, is_on)| *is_on).map(|(name, _)| *name).collect();
    let options = flags.format.options();
    let target = format!("{}-{}", std::env::consts::ARCH, std::env::consts::OS);
    let text = if options.output.is_document() {
        options.text_of(&Document::from_fields([
            ("version", VERSION.into()),
            ("commit", COMMIT.into()),
            ("target", target.into()),
            ("features", features.into()),
        ]))
    } else {
        format!("informerd {VERSION}\ncommit: {COMMIT}\ntarget: {target}\nfeatures: {}\n", features.join(", "))
    };
    Ok(write_all(text.as_bytes())?)
}
