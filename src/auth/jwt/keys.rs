//! Keys that verify JWTs: from a JWKS document, or public keys in PEM.

use base64::prelude::{BASE64_URL_SAFE_NO_PAD, Engine};
use ring::signature::{self, RsaParameters, RsaPublicKeyComponents, UnparsedPublicKey, VerificationAlgorithm};
use rustls::pki_types::{SubjectPublicKeyInfoDer, pem::PemObject};
use serde::Deserialize;
use x509_parser::{oid_registry, prelude::FromDer, public_key::PublicKey as ParsedKey, x509::SubjectPublicKeyInfo};

/// Keys of an issuer; at least one.
#[derive(Debug)]
pub(super) struct Keys(Vec<Key>);

#[derive(Debug)]
struct Key {
    /// Id (`kid`); a key in PEM has none.
    id: Option<String>,
    /// Only algorithm of the key, if the document limits it to one.
    algorithm: Option<String>,
    public: PublicKey,
}

#[derive(Debug)]
enum PublicKey {
    Rsa { modulus: Vec<u8>, exponent: Vec<u8> },
    P256(Vec<u8>),
    P384(Vec<u8>),
    Ed25519(Vec<u8>),
}

/// Key of a JWKS document.
#[derive(Deserialize)]
struct Jwk {
    kty: String,
    #[serde(rename = "use")]
    purpose: Option<String>,
    kid: Option<String>,
    alg: Option<String>,
    crv: Option<String>,
    n: Option<String>,
    e: Option<String>,
    x: Option<String>,
    y: Option<String>,
}

#[derive(Deserialize)]
struct Jwks {
    keys: Vec<Jwk>,
}

/// Largest number of keys: a token without a key id is tried with each.
const MAX_KEYS: usize = 32;
/// Shortest modulus, in bytes: 2048 bits.
const MIN_RSA_BYTES: usize = 256;

// === impl Keys ===

impl Keys {
    /// Returns true if the key with this id has signed the message. Only keys without ids, those in PEM, are tried one after the
    /// other; a token without an id is verified by the only key there is.
    pub(super) fn verify(&self, algorithm: &str, id: Option<&str>, message: &[u8], signature: &[u8]) -> bool {
        let is_chosen = |key: &&Key| match (&key.id, id) {
            (Some(known), Some(id)) => known == id,
            (Some(_), None) => self.0.len() == 1,
            (None, _) => true,
        };
        let is_allowed = |key: &&Key| key.algorithm.as_ref().is_none_or(|only| only == algorithm);
        let mut chosen = self.0.iter().filter(is_chosen).filter(is_allowed);
        chosen.any(|key| key.public.verify(algorithm, message, signature))
    }
}

// === impl PublicKey ===

impl PublicKey {
    /// Returns true if this key has signed the message with this algorithm, which has to be one of the key's kind: there is no
    /// `none`, and no algorithm for which a public key is a secret.
    fn verify(&self, algorithm: &str, message: &[u8], signature: &[u8]) -> bool {
        let with = |verification: &'static dyn VerificationAlgorithm, key: &[u8]| {
            UnparsedPublicKey::new(verification, key).verify(message, signature).is_ok()
        };
        match (self, algorithm) {
            (Self::Rsa { modulus, exponent }, _) => rsa(algorithm).is_some_and(|parameters| {
                let key = RsaPublicKeyComponents { n: modulus, e: exponent };
                key.verify(parameters, message, signature).is_ok()
            }),
            (Self::P256(point), "ES256") => with(&signature::ECDSA_P256_SHA256_FIXED, point),
            (Self::P384(point), "ES384") => with(&signature::ECDSA_P384_SHA384_FIXED, point),
            (Self::Ed25519(key), "EdDSA") => with(&signature::ED25519, key),
            (Self::P256(_) | Self::P384(_) | Self::Ed25519(_), _) => false,
        }
    }

    fn rsa(modulus: &[u8], exponent: &[u8]) -> Result<Self, String> {
        let unsigned = |number: &[u8]| number.iter().copied().skip_while(|byte| *byte == 0).collect::<Vec<_>>();
        let (modulus, exponent) = (unsigned(modulus), unsigned(exponent));
        if modulus.len() < MIN_RSA_BYTES {
            return Err("has an RSA key of fewer than 2048 bits".to_owned());
        }
        Ok(Self::Rsa { modulus, exponent })
    }
}

fn rsa(algorithm: &str) -> Option<&'static RsaParameters> {
    Some(match algorithm {
        "RS256" => &signature::RSA_PKCS1_2048_8192_SHA256,
        "RS384" => &signature::RSA_PKCS1_2048_8192_SHA384,
        "RS512" => &signature::RSA_PKCS1_2048_8192_SHA512,
        "PS256" => &signature::RSA_PSS_2048_8192_SHA256,
        "PS384" => &signature::RSA_PSS_2048_8192_SHA384,
        "PS512" => &signature::RSA_PSS_2048_8192_SHA512,
        _ => return None,
    })
}

/// Parses a file: a JWKS document, or PEM. Keys of other kinds and for other uses are left out.
pub(super) fn parse(content: &[u8]) -> Result<Keys, String> {
    let keys = if content.trim_ascii_start().starts_with(b"{") { jwks(content)? } else { pem(content)? };
    match keys.len() {
        0 => Err("has no key that can be used; write a JWKS document with RSA, P-256, P-384 or Ed25519 keys for signatures, or \
                  such keys as `BEGIN PUBLIC KEY` in PEM"
            .to_owned()),
        1..=MAX_KEYS => Ok(Keys(keys)),
        found => Err(format!("has {found} keys; the limit is {MAX_KEYS}")),
    }
}

fn jwks(content: &[u8]) -> Result<Vec<Key>, String> {
    let Jwks { keys } = serde_json::from_slice(content)
        .map_err(|error| format!("is not a JWKS document, at line {} column {}", error.line(), error.column()))?;
    let mut parsed = Vec::new();
    for Jwk { kty, purpose, kid, alg, crv, n, e, x, y } in keys {
        if purpose.is_some_and(|purpose| purpose != "sig") {
            continue;
        }
        let bytes = |field: Option<String>| {
            let decoded = field.and_then(|field| BASE64_URL_SAFE_NO_PAD.decode(field).ok());
            decoded.ok_or_else(|| format!("has an incomplete {kty} key"))
        };
        let point = |x, y| Ok::<_, String>([vec![4], bytes(x)?, bytes(y)?].concat());
        let public = match (&*kty, crv.as_deref()) {
            ("RSA", _) => PublicKey::rsa(&bytes(n)?, &bytes(e)?)?,
            ("EC", Some("P-256")) => PublicKey::P256(point(x, y)?),
            ("EC", Some("P-384")) => PublicKey::P384(point(x, y)?),
            ("OKP", Some("Ed25519")) => PublicKey::Ed25519(bytes(x)?),
            _ => continue,
        };
        parsed.push(Key { id: kid, algorithm: alg, public });
    }
    Ok(parsed)
}

fn pem(content: &[u8]) -> Result<Vec<Key>, String> {
    let mut parsed = Vec::new();
    for der in SubjectPublicKeyInfoDer::pem_slice_iter(content) {
        let der = der.map_err(|_| "is not PEM".to_owned())?;
        let (_, info) = SubjectPublicKeyInfo::from_der(&der).map_err(|_| "has a malformed public key".to_owned())?;
        let curve = info.algorithm.parameters.as_ref().and_then(|parameters| parameters.as_oid().ok());
        let bytes = info.subject_public_key.data.to_vec();
        let public = if info.algorithm.algorithm == oid_registry::OID_SIG_ED25519 {
            PublicKey::Ed25519(bytes)
        } else {
            match info.parsed() {
                Ok(ParsedKey::RSA(key)) => PublicKey::rsa(key.modulus, key.exponent)?,
                Ok(ParsedKey::EC(_)) if curve == Some(oid_registry::OID_EC_P256) => PublicKey::P256(bytes),
                Ok(ParsedKey::EC(_)) if curve == Some(oid_registry::OID_NIST_EC_P384) => PublicKey::P384(bytes),
                _ => continue,
            }
        };
        parsed.push(Key { id: None, algorithm: None, public });
    }
    Ok(parsed)
}
