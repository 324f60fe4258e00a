//! Certificate authority of the tests.

use rcgen::{BasicConstraints, Certificate, CertificateParams, DnType, IsCa, Issuer, KeyPair};

pub(crate) struct Authority {
    certificate: Certificate,
    issuer: Issuer<'static, KeyPair>,
}

// === impl Authority ===

impl Authority {
    pub(crate) fn new() -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let certificate = params.self_signed(&key).unwrap();
        Self { certificate, issuer: Issuer::new(params, key) }
    }

    pub(crate) fn pem(&self) -> Vec<u8> {
        self.certificate.pem().into_bytes()
    }

    /// Returns a certificate with these alternative names, of which the first is also its common name, and its key.
    pub(crate) fn sign(&self, names: &[&str]) -> (Vec<u8>, Vec<u8>) {
        let alternative: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let mut params = CertificateParams::new(alternative).unwrap();
        if let Some(name) = names.first() {
            params.distinguished_name.push(DnType::CommonName, *name);
        }
        self.sign_these(&params)
    }

    pub(crate) fn sign_these(&self, params: &CertificateParams) -> (Vec<u8>, Vec<u8>) {
        let key = KeyPair::generate().unwrap();
        let signed = params.signed_by(&key, &self.issuer).unwrap();
        (signed.pem().into_bytes(), key.serialize_pem().into_bytes())
    }
}
