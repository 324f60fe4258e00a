//! Server to call: of the flags, or of a context, which is a named server in a file of the user.

use std::{
    collections::BTreeMap,
    env,
    ffi::{OsStr, OsString},
    fs, io,
    path::{Path, PathBuf},
};

use clap::{Args, builder::TypedValueParser, error::ErrorKind};
use serde::{Deserialize, Deserializer, de::Error};

use crate::{
    cli::failure::Failure,
    client::{AddressError, ServerAddress, TlsOptions},
};

/// Address of a server, and the files for it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Args, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Target {
    /// Address of the server: `HOST:PORT`, `http://HOST:PORT`, `https://HOST:PORT` or `unix:/path/of/socket` [env: `INFORMERD_SERVER`]
    /// [default: that of the context, or 127.0.0.1:50051]
    #[arg(long, value_name = "URL", value_parser = AddressParser)]
    #[serde(deserialize_with = "address")]
    pub(super) server: Option<ServerAddress>,

    /// CA certificates in PEM to verify the server under https [env: `INFORMERD_CERTIFICATE_AUTHORITY`] [default: those of the system]
    #[arg(long, value_name = "FILE")]
    #[serde(default)]
    certificate_authority: Option<PathBuf>,

    /// Client certificate in PEM for https [env: `INFORMERD_CLIENT_CERTIFICATE`]
    #[arg(long, value_name = "FILE", requires = "client_key")]
    #[serde(default)]
    client_certificate: Option<PathBuf>,

    /// Private key of the client certificate, in PEM [env: `INFORMERD_CLIENT_KEY`]
    #[arg(long, value_name = "FILE", requires = "client_certificate")]
    #[serde(default)]
    client_key: Option<PathBuf>,

    /// File with a bearer token for each call, read at each call; for https, a Unix socket or this host [env: `INFORMERD_TOKEN_FILE`]
    #[arg(long, value_name = "FILE")]
    #[serde(default)]
    token_file: Option<PathBuf>,
}

/// Contexts of the user.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Contexts {
    /// Context of commands that name no server.
    #[serde(default)]
    current: Option<String>,
    contexts: BTreeMap<String, Target>,
}

/// Parser of an address. clap's own errors quote the argument, which may have a password.
#[derive(Debug, Clone)]
struct AddressParser;

const DEFAULT_SERVER: &str = "127.0.0.1:50051";
/// Variables with the address of the server, and with the name of the context.
const SERVER: &str = "INFORMERD_SERVER";
const CONTEXT: &str = "INFORMERD_CONTEXT";
/// Variable with the path of the file.
const CONTEXTS: &str = "INFORMERD_CONTEXTS";
/// Largest file of contexts, in bytes.
const MAX_FILE_BYTES: u64 = 1 << 20;

// === impl Target ===

impl Target {
    /// Returns the server of the flags, of `--context`, of the variables or of another context, in this order. What comes first
    /// overrides single files; the files of a variable are not for the server of `--context`.
    pub(super) fn resolve(self, context: Option<&str>) -> Result<Self, Failure> {
        let given = if context.is_some() { self } else { self.or(Self::of_environment()?) };
        if given.server.is_some() {
            return Ok(given);
        }
        let contexts = Contexts::load()?;
        let named = match context {
            Some(context) => Some(context.to_owned()),
            None => text(CONTEXT).or_else(|| contexts.current.clone()),
        };
        let of = named.map_or(Ok(Self::default()), |name| contexts.get(&name)?.clone().complete())?;
        let found = given.or(of);
        let server = found.server.or_else(|| DEFAULT_SERVER.parse().ok());
        Ok(Self { server, ..found })
    }

    /// Returns true if a flag or a variable names the server.
    pub(super) fn has_server(&self) -> bool {
        self.server.is_some() || text(SERVER).is_some()
    }

    fn of_environment() -> Result<Self, Failure> {
        let path = |name| variable(name).map(PathBuf::from);
        let server = text(SERVER).map(|text| text.parse()).transpose();
        let found = Self {
            server: server.map_err(|error: AddressError| Failure::usage(format!("{SERVER}: {error}")))?,
            certificate_authority: path("INFORMERD_CERTIFICATE_AUTHORITY"),
            client_certificate: path("INFORMERD_CLIENT_CERTIFICATE"),
            client_key: path("INFORMERD_CLIENT_KEY"),
            token_file: path("INFORMERD_TOKEN_FILE"),
        };
        found.complete()
    }

    /// Completes this with another one. A server comes with its files, and a certificate with its key.
    fn or(self, other: Self) -> Self {
        let Self { client_certificate, client_key, .. } =
            if self.client_certificate.is_some() { self.clone() } else { other.clone() };
        Self {
            server: self.server.or(other.server),
            certificate_authority: self.certificate_authority.or(other.certificate_authority),
            client_certificate,
            client_key,
            token_file: self.token_file.or(other.token_file),
        }
    }

    fn complete(self) -> Result<Self, Failure> {
        if self.client_certificate.is_some() == self.client_key.is_some() {
            return Ok(self);
        }
        Err(Failure::usage("a client certificate and its key belong together: name both"))
    }

    /// Returns the address of the server and the files of TLS with it, for connections that read them again.
    pub(super) fn upstream(&self) -> Result<(ServerAddress, TlsOptions<PathBuf>), Failure> {
        let identity = self.client_certificate.clone().zip(self.client_key.clone());
        let tls = TlsOptions { authority: self.certificate_authority.clone(), identity, server_name: None };
        let server = self.server()?;
        // They have to be readable at the start.
        self.secured(server)?;
        Ok((self.with_token(server.clone())?, tls))
    }

    /// Returns the address of the server with the TLS options.
    pub(super) fn address(&self) -> Result<ServerAddress, Failure> {
        self.with_token(self.secured(self.server()?)?)
    }

    fn server(&self) -> Result<&ServerAddress, Failure> {
        self.server.as_ref().ok_or_else(|| Failure::usage("no server: name one with --server or --context"))
    }

    fn with_token(&self, server: ServerAddress) -> Result<ServerAddress, Failure> {
        let Some(file) = &self.token_file else { return Ok(server) };
        let server = server.with_token_file(file).ok_or_else(|| {
            let problem = format!(
                "a token is not sent in the clear: use --server https://HOST:PORT or a Unix socket instead of {server}"
            );
            Failure::usage(problem)
        })?;
        // It is read at each call, and has to be readable at the start.
        fs::read(file).map_err(|error| Failure::usage(format!("token file {}: {error}", file.display())))?;
        Ok(server)
    }

    fn secured(&self, server: &ServerAddress) -> Result<ServerAddress, Failure> {
        if self.certificate_authority.is_none() && self.client_certificate.is_none() {
            return Ok(server.clone());
        }
        let read =
            |path: &PathBuf| fs::read(path).map_err(|error| Failure::usage(format!("{}: {error}", path.display())));
        let files = TlsOptions {
            authority: self.certificate_authority.as_ref(),
            identity: self.client_certificate.as_ref().zip(self.client_key.as_ref()),
            server_name: None,
        };
        server.with_tls(files.try_map(|path| read(path))?).ok_or_else(|| {
            Failure::usage(format!("certificates need TLS: use --server https://HOST:PORT instead of {server}"))
        })
    }

    /// Lets the paths of a file begin at its directory.
    fn at(&mut self, directory: &Path) {
        for path in
            [&mut self.certificate_authority, &mut self.client_certificate, &mut self.client_key, &mut self.token_file]
        {
            *path = path.take().map(|path| directory.join(path));
        }
    }
}

fn address<'de, D: Deserializer<'de>>(from: D) -> Result<Option<ServerAddress>, D::Error> {
    String::deserialize(from)?.parse().map(Some).map_err(D::Error::custom)
}

// === impl AddressParser ===

impl TypedValueParser for AddressParser {
    type Value = ServerAddress;

    fn parse_ref(
        &self,
        command: &clap::Command,
        argument: Option<&clap::Arg>,
        value: &OsStr,
    ) -> Result<ServerAddress, clap::Error> {
        value.to_string_lossy().parse().map_err(|error: AddressError| {
            let argument = argument.map(ToString::to_string).unwrap_or_default();
            clap::Error::raw(ErrorKind::ValueValidation, format!("invalid value for '{argument}': {error}\n"))
                .with_cmd(command)
        })
    }
}

// === impl Contexts ===

impl Contexts {
    /// Reads the file; without one there are no contexts.
    pub(crate) fn load() -> Result<Self, Failure> {
        let Some(path) = path() else { return Ok(Self::default()) };
        let failed = |problem: String| Failure::usage(format!("contexts {}: {problem}", path.display()));
        let text = match fs::metadata(&path) {
            Ok(found) if found.len() > MAX_FILE_BYTES => {
                return Err(failed(format!("larger than {MAX_FILE_BYTES} bytes")));
            }
            Ok(_) => fs::read_to_string(&path).map_err(|error| failed(error.to_string()))?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Self::default()),
            Err(error) => return Err(failed(error.to_string())),
        };
        let mut read: Self = serde_saphyr::from_str(&text)
            .map_err(|error| failed(error.to_string().lines().next().unwrap_or_default().to_owned()))?;
        let directory = path.parent().unwrap_or(Path::new(""));
        for target in read.contexts.values_mut() {
            target.at(directory);
        }
        Ok(read)
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = &String> {
        self.contexts.keys()
    }

    pub(super) fn get(&self, name: &str) -> Result<&Target, Failure> {
        self.contexts.get(name).ok_or_else(|| {
            let known = self.names().map(String::as_str).collect::<Vec<_>>().join(", ");
            let file = path().map(|path| path.display().to_string()).unwrap_or_default();
            Failure::usage(format!("context {name:?} not found in {file} (known: {known})"))
        })
    }
}

/// Returns the path of the file.
fn path() -> Option<PathBuf> {
    let path = |name| variable(name).map(PathBuf::from);
    let config = || path("XDG_CONFIG_HOME").or_else(|| Some(path("HOME")?.join(".config")));
    path(CONTEXTS).or_else(|| Some(config()?.join("informerd/contexts.yaml")))
}

/// Returns the value of a variable, unless it is empty.
fn variable(name: &str) -> Option<OsString> {
    env::var_os(name).filter(|value| !value.is_empty())
}

fn text(name: &str) -> Option<String> {
    variable(name).map(|value| value.to_string_lossy().into_owned())
}
