//! TLS to an API server: trusted issuers, and the client certificate.

use std::sync::Arc;

use rustls::{
    AlertDescription, ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme,
    client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature},
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime, pem::PemObject},
};

/// Offered protocols in order of preference.
const ALPN: [&[u8]; 2] = [b"h2", b"http/1.1"];

/// Accepted issuers of server certificates.
#[derive(Clone)]
pub(super) enum Trust {
    Roots(Arc<RootCertStore>),
    /// `insecure-skip-tls-verify`.
    AnyCertificate,
}

/// Verifier that accepts every certificate.
#[derive(Debug)]
struct NoVerifier(Arc<CryptoProvider>);

// === impl Trust ===

impl Trust {
    /// Parses certificates in PEM; `None` loads those that the system trusts, which takes some milliseconds.
    pub(super) fn read(authority: Option<&[u8]>) -> Result<Self, String> {
        let mut roots = RootCertStore::empty();
        if let Some(pem) = authority {
            for certificate in CertificateDer::pem_slice_iter(pem) {
                let certificate = certificate.map_err(|error| format!("the certificate authority: {error}"))?;
                roots.add(certificate).map_err(|error| format!("the certificate authority: {error}"))?;
            }
            if roots.is_empty() {
                return Err("the certificate authority contains no PEM certificate".to_owned());
            }
        } else {
            let found = rustls_native_certs::load_native_certs();
            if let (0, _) = roots.add_parsable_certificates(found.certs) {
                let problem =
                    "no trusted certificate authority on this system; write certificate-authority into the kubeconfig";
                return Err(problem.to_owned());
            }
        }
        Ok(Self::Roots(Arc::new(roots)))
    }

    /// Returns a client configuration with an optional certificate and its key in PEM.
    pub(super) fn client_config(&self, identity: Option<&[u8]>, is_http2: bool) -> Result<ClientConfig, String> {
        let provider = Arc::new(ring::default_provider());
        let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(|error| error.to_string())?;
        let builder = match self {
            Self::Roots(roots) => builder.with_root_certificates(Arc::clone(roots)),
            Self::AnyCertificate => {
                builder.dangerous().with_custom_certificate_verifier(Arc::new(NoVerifier(provider)))
            }
        };
        let mut config = match identity {
            Some(pem) => {
                let certificates = CertificateDer::pem_slice_iter(pem).collect::<Result<Vec<_>, _>>();
                let certificates = certificates.map_err(|error| format!("the client certificate: {error}"))?;
                let key = PrivateKeyDer::from_pem_slice(pem).map_err(|error| format!("the client key: {error}"))?;
                let config = builder.with_client_auth_cert(certificates, key);
                config.map_err(|error| format!("the client certificate and its key: {error}"))?
            }
            None => builder.with_no_client_auth(),
        };
        let alpn = if is_http2 { &ALPN[..] } else { &ALPN[1..] };
        config.alpn_protocols = alpn.iter().map(|name| name.to_vec()).collect();
        Ok(config)
    }
}

// === impl NoVerifier ===

impl ServerCertVerifier for NoVerifier {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, certificate, signature, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signature, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

/// Returns true if an error was caused by a TLS alert with which the peer refuses the client certificate, or its absence. In TLS
/// 1.3 that alert follows the handshake.
pub(super) fn is_refusal(error: &(dyn std::error::Error + 'static)) -> bool {
    let mut next = Some(error);
    while let Some(error) = next {
        let rustls = error.downcast_ref::<Error>();
        // `io::Error` does not return the error it wraps as its source.
        let wrapped = error.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref);
        let rustls = rustls.or_else(|| wrapped.and_then(|error| error.downcast_ref::<Error>()));
        if let Some(Error::AlertReceived(alert)) = rustls {
            return is_of_certificate(*alert);
        }
        next = match wrapped {
            Some(wrapped) => Some(wrapped),
            None => error.source(),
        };
    }
    false
}

/// Returns true if other credentials may help against this alert. Against the others, such as that of a server that is
/// overloaded or of another protocol version, they do not.
fn is_of_certificate(alert: AlertDescription) -> bool {
    matches!(
        alert,
        AlertDescription::BadCertificate
            | AlertDescription::UnsupportedCertificate
            | AlertDescription::CertificateRevoked
            | AlertDescription::CertificateExpired
            | AlertDescription::CertificateUnknown
            | AlertDescription::UnknownCA
            | AlertDescription::AccessDenied
            | AlertDescription::DecryptError
            | AlertDescription::CertificateRequired
            // A server under TLS 1.2 answers a missing certificate with it (RFC 5246, section 7.4.6).
            | AlertDescription::HandshakeFailure
    )
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[test]
    fn alerts_about_the_certificate_refuse_it_and_others_do_not() {
        for (alert, expected) in [
            (AlertDescription::CertificateRequired, true),
            (AlertDescription::CertificateExpired, true),
            (AlertDescription::UnknownCA, true),
            (AlertDescription::HandshakeFailure, true),
            (AlertDescription::InternalError, false),
            (AlertDescription::ProtocolVersion, false),
            (AlertDescription::UnrecognisedName, false),
            (AlertDescription::CloseNotify, false),
        ] {
            let error = Error::AlertReceived(alert);
            assert_eq!(is_refusal(&error), expected, "{alert:?}");
            assert_eq!(is_refusal(&io::Error::other(io::Error::other(error))), expected, "{alert:?}, wrapped");
        }
        assert!(!is_refusal(&io::Error::other(Error::DecryptError)));
    }
}
