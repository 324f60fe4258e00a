//! Identity of a client by its certificate.

use std::time::{Duration, SystemTime};

use rustls::pki_types::CertificateDer;
use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};

use crate::auth::{Identity, IdentityDetails};

/// Longest name, in bytes. A longer one is no name that anybody has given on purpose.
const MAX_BYTES: usize = 1024;

/// Reads a certificate that TLS has verified. The user is the first URI among its subject alternative names, else the first DNS
/// name, else the first e-mail address, else the common name of the subject, which Kubernetes takes for the user. The groups are
/// the organisations of the subject, as in Kubernetes. `None` if it has no name.
pub(super) fn identity_of(certificate: &CertificateDer<'_>) -> Option<Identity> {
    let (_, certificate) = X509Certificate::from_der(certificate).ok()?;
    let alternative = certificate.subject_alternative_name().ok().flatten();
    let names = alternative.map(|names| names.value.general_names.as_slice()).unwrap_or_default();
    let first = |read: fn(&GeneralName<'_>) -> Option<String>| names.iter().find_map(read);
    let user = first(|name| if let GeneralName::URI(uri) = name { Some((*uri).to_owned()) } else { None })
        .or_else(|| first(|name| if let GeneralName::DNSName(dns) = name { Some((*dns).to_owned()) } else { None }))
        .or_else(|| {
            first(|name| if let GeneralName::RFC822Name(mail) = name { Some((*mail).to_owned()) } else { None })
        })
        .or_else(|| {
            let common_name = certificate.subject().iter_common_name().next()?;
            common_name.as_str().ok().map(str::to_owned)
        })
        .filter(|name| (1..=MAX_BYTES).contains(&name.len()))?;
    let organisations = certificate.subject().iter_organization();
    let groups = organisations.filter_map(|group| group.as_str().ok().map(str::to_owned)).collect();
    let not_after = u64::try_from(certificate.validity().not_after.timestamp()).unwrap_or_default();
    let expires = SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(not_after));
    Some(Identity::new(IdentityDetails { user, groups, expires, ..IdentityDetails::default() }))
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, DnType, KeyPair, SanType, string::Ia5String};

    use super::*;

    /// Returns the identity of a certificate with these alternative names and this common name.
    fn identity(names: Vec<SanType>, common_name: Option<&str>) -> Option<String> {
        let mut params = CertificateParams::default();
        params.subject_alt_names = names;
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(DnType::OrganizationName, "team");
        if let Some(name) = common_name {
            params.distinguished_name.push(DnType::CommonName, name);
        }
        let certificate = params.self_signed(&KeyPair::generate().unwrap()).unwrap();
        identity_of(certificate.der()).map(|identity| {
            assert_eq!(identity.details().groups, ["team"]);
            identity.to_string()
        })
    }

    fn text(text: &str) -> Ia5String {
        text.try_into().unwrap()
    }

    #[test]
    fn an_identity_is_the_most_specific_name_of_a_certificate() {
        let (uri, dns) = (SanType::URI(text("spiffe://shop/web")), SanType::DnsName(text("web.shop")));
        let mail = SanType::Rfc822Name(text("web@shop"));
        let other = SanType::DnsName(text("other.shop"));
        let found = |names: &[&SanType], common_name| identity(names.iter().copied().cloned().collect(), common_name);
        assert_eq!(found(&[&dns, &mail, &uri], Some("web")).as_deref(), Some("spiffe://shop/web"));
        assert_eq!(found(&[&mail, &dns, &other], Some("web")).as_deref(), Some("web.shop"));
        assert_eq!(found(&[&mail], Some("web")).as_deref(), Some("web@shop"));
        assert_eq!(found(&[], Some("system:node:ö")).as_deref(), Some("system:node:ö"));
        assert_eq!(found(&[], None), None);
        assert_eq!(found(&[], Some(&"x".repeat(1025))), None);
    }

    #[test]
    fn what_is_no_certificate_has_no_identity() {
        assert_eq!(identity_of(&CertificateDer::from(b"x".as_slice())), None);
    }
}
