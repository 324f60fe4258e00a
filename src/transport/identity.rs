//! Identity of a client by its certificate.

use std::time::{Duration, SystemTime};

use rustls::pki_types::CertificateDer;
use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};

use crate::auth::{CertificateNames, CertificateUser, Identity, IdentityDetails};

/// Time at which the certificate of a connection's client expires, whatever names it has; an extension of each request.
#[derive(Debug, Clone, Copy)]
pub struct CertificateExpiry(SystemTime);

/// Longest name, in bytes. A longer one is no name that anybody has given on purpose.
const MAX_BYTES: usize = 1024;

// === impl CertificateExpiry ===

impl CertificateExpiry {
    /// Reads a certificate that TLS has verified; none if that fails.
    pub(super) fn of(certificate: &CertificateDer<'_>) -> Option<Self> {
        let (_, certificate) = X509Certificate::from_der(certificate).ok()?;
        let not_after = u64::try_from(certificate.validity().not_after.timestamp()).unwrap_or_default();
        SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(not_after)).map(Self)
    }

    /// Returns true if the certificate has expired.
    pub fn has_passed(self, now: SystemTime) -> bool {
        self.0 <= now
    }
}

/// Reads a certificate that TLS has verified. The groups are the organisations of the subject, as in Kubernetes.
///
/// # Errors
///
/// The certificate has no user, more than one, or a user or group that its authority may not give.
pub(super) fn identity_of(certificate: &CertificateDer<'_>, names: CertificateNames) -> Result<Identity, &'static str> {
    let expires = CertificateExpiry::of(certificate).map(|expiry| expiry.0);
    let (_, certificate) = X509Certificate::from_der(certificate).map_err(|_| "not X.509")?;
    let user = match names.user {
        CertificateUser::CommonName => None,
        CertificateUser::AlternativeName => alternative_name(&certificate),
    };
    let user = user.map_or_else(|| common_name(&certificate), Ok)?;
    if !(1..=MAX_BYTES).contains(&user.len()) {
        return Err("the name of the user is empty or longer than 1 KiB");
    }
    let organisations = certificate.subject().iter_organization();
    let groups = organisations.filter_map(|group| group.as_str().ok().map(str::to_owned)).collect();
    let identity = Identity::new(IdentityDetails { user, groups, expires, ..IdentityDetails::default() });
    if identity.reserved().is_some() && !names.has_system_names {
        return Err("a user or group begins with `system:` (authentication.certificate_system_names)");
    }
    Ok(identity)
}

/// Returns the only common name of the subject: of several, programs disagree about which one counts.
fn common_name(certificate: &X509Certificate<'_>) -> Result<String, &'static str> {
    let mut names = certificate.subject().iter_common_name();
    match (names.next(), names.next()) {
        (Some(name), None) => name.as_str().map(str::to_owned).map_err(|_| "the common name is not text"),
        (None, _) => Err("no common name"),
        (Some(_), Some(_)) => Err("more than one common name"),
    }
}

/// Returns the first URI among the subject alternative names, else the first DNS name, else the first e-mail address.
fn alternative_name(certificate: &X509Certificate<'_>) -> Option<String> {
    let alternative = certificate.subject_alternative_name().ok().flatten()?;
    let names = &alternative.value.general_names;
    let first = |read: fn(&GeneralName<'_>) -> Option<String>| names.iter().find_map(read);
    first(|name| if let GeneralName::URI(uri) = name { Some((*uri).to_owned()) } else { None })
        .or_else(|| first(|name| if let GeneralName::DNSName(dns) = name { Some((*dns).to_owned()) } else { None }))
        .or_else(|| {
            first(|name| if let GeneralName::RFC822Name(mail) = name { Some((*mail).to_owned()) } else { None })
        })
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, DistinguishedName, DnType, DnValue, KeyPair, SanType, string::Ia5String};

    use super::*;

    const SYSTEM: CertificateNames = CertificateNames { user: CertificateUser::CommonName, has_system_names: true };

    /// Returns the identity of a certificate with these alternative names, this common name and this organisation.
    fn identity(
        names: CertificateNames,
        alternative: Vec<SanType>,
        common_name: Option<&str>,
        group: &str,
    ) -> Result<String, &'static str> {
        let mut params = CertificateParams::default();
        params.subject_alt_names = alternative;
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::OrganizationName, group);
        if let Some(name) = common_name {
            params.distinguished_name.push(DnType::CommonName, name);
        }
        let certificate = params.self_signed(&KeyPair::generate().unwrap()).unwrap();
        identity_of(certificate.der(), names).map(|identity| {
            assert_eq!(identity.details().groups, [group]);
            identity.to_string()
        })
    }

    fn text(text: &str) -> Ia5String {
        text.try_into().unwrap()
    }

    /// Kubernetes takes the common name, and its signers copy the other names from the request.
    #[test]
    fn the_user_of_a_certificate_is_its_common_name_or_where_configured_another_name() {
        let (uri, dns) = (SanType::URI(text("spiffe://shop/web")), SanType::DnsName(text("web.shop")));
        let mail = SanType::Rfc822Name(text("web@shop"));
        let other = SanType::DnsName(text("other.shop"));
        let san = CertificateNames { user: CertificateUser::AlternativeName, ..CertificateNames::default() };
        for (alternative, common_name, expected) in [
            (vec![&dns, &mail, &uri], Some("web"), "spiffe://shop/web"),
            (vec![&mail, &dns, &other], Some("web"), "web.shop"),
            (vec![&mail], Some("web"), "web@shop"),
            (vec![&mail], None, "web@shop"),
            (vec![], Some("web"), "web"),
        ] {
            let found = |names| identity(names, alternative.iter().copied().cloned().collect(), common_name, "team");
            assert_eq!(found(san).as_deref(), Ok(expected));
            assert_eq!(found(CertificateNames::default()).as_deref(), common_name.ok_or("no common name").as_deref());
        }
        assert!(identity(san, vec![], None, "team").is_err());
        assert!(identity(san, vec![], Some(&"x".repeat(1025)), "team").is_err());
    }

    #[test]
    fn names_of_kubernetes_are_of_its_authority_only() {
        for (user, group) in [("system:node:ö", "team"), ("web", "system:masters")] {
            assert_eq!(identity(SYSTEM, vec![], Some(user), group).as_deref(), Ok(user));
            let refused = identity(CertificateNames::default(), vec![], Some(user), group).unwrap_err();
            assert!(refused.contains("certificate_system_names"), "{refused}");
        }
    }

    #[test]
    fn a_certificate_with_two_common_names_or_none_has_no_user() {
        let names = CertificateNames::default();
        assert_eq!(identity(names, vec![], None, "team"), Err("no common name"));
        assert!(identity(names, vec![], Some(""), "team").is_err());
        assert!(identity_of(&CertificateDer::from(b"x".as_slice()), names).is_err());
        // A distinguished name of `rcgen` has each type once, so the other one replaces a type of the same length.
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, "alice");
        params.distinguished_name.push(DnType::LocalityName, DnValue::Utf8String("bob".to_owned()));
        let certificate = params.self_signed(&KeyPair::generate().unwrap()).unwrap();
        let mut der = certificate.der().to_vec();
        assert_eq!(identity_of(&der.clone().into(), names).unwrap().user(), "alice");
        let locality = der.windows(3).rposition(|bytes| bytes == [0x55, 4, 7]).unwrap();
        for at in (0..=locality).filter(|at| der[*at..].starts_with(&[0x55, 4, 7])).collect::<Vec<_>>() {
            der[at + 2] = 3;
        }
        assert_eq!(identity_of(&der.into(), names), Err("more than one common name"));
    }
}
