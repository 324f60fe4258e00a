use rcgen::{KeyPair, PKCS_ECDSA_P256_SHA256, PKCS_ECDSA_P384_SHA384, PKCS_ED25519};
use ring::{
    hmac,
    rand::SystemRandom,
    rsa::PublicKeyComponents,
    signature::{
        self, ECDSA_P256_SHA256_FIXED_SIGNING, ECDSA_P384_SHA384_FIXED_SIGNING, EcdsaKeyPair, EcdsaSigningAlgorithm,
        Ed25519KeyPair, RsaEncoding, RsaKeyPair,
    },
};
use rustls::pki_types::{PrivatePkcs8KeyDer, pem::PemObject};
use serde_json::json;

use super::*;

const ISSUER: &str = "https://issuer.example";
const RSA: &str = include_str!("tests/rsa.pem");
const RSA_PUBLIC: &str = include_str!("tests/rsa.pub.pem");
/// Time of the tests, in seconds.
const NOW: u64 = 1_700_000_000;

/// Keys of an issuer, one of each kind.
struct Issuer {
    rsa: RsaKeyPair,
    p256: KeyPair,
    p384: KeyPair,
    ed25519: KeyPair,
}

impl Issuer {
    fn new() -> Self {
        let rsa = PrivatePkcs8KeyDer::from_pem_slice(RSA.as_bytes()).unwrap();
        Self {
            rsa: RsaKeyPair::from_pkcs8(rsa.secret_pkcs8_der()).unwrap(),
            p256: KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).unwrap(),
            p384: KeyPair::generate_for(&PKCS_ECDSA_P384_SHA384).unwrap(),
            ed25519: KeyPair::generate_for(&PKCS_ED25519).unwrap(),
        }
    }

    /// Signs as the algorithm says.
    fn sign(&self, algorithm: &str, message: &[u8]) -> Vec<u8> {
        let random = SystemRandom::new();
        let rsa = |encoding: &'static dyn RsaEncoding| {
            let mut signed = vec![0; self.rsa.public().modulus_len()];
            self.rsa.sign(encoding, &random, message, &mut signed).unwrap();
            signed
        };
        let ecdsa = |algorithm: &'static EcdsaSigningAlgorithm, key: &KeyPair| {
            let key = EcdsaKeyPair::from_pkcs8(algorithm, &key.serialize_der(), &random).unwrap();
            key.sign(&random, message).unwrap().as_ref().to_vec()
        };
        match algorithm {
            "RS256" => rsa(&signature::RSA_PKCS1_SHA256),
            "RS384" => rsa(&signature::RSA_PKCS1_SHA384),
            "RS512" => rsa(&signature::RSA_PKCS1_SHA512),
            "PS256" => rsa(&signature::RSA_PSS_SHA256),
            "PS384" => rsa(&signature::RSA_PSS_SHA384),
            "PS512" => rsa(&signature::RSA_PSS_SHA512),
            "ES256" => ecdsa(&ECDSA_P256_SHA256_FIXED_SIGNING, &self.p256),
            "ES384" => ecdsa(&ECDSA_P384_SHA384_FIXED_SIGNING, &self.p384),
            "EdDSA" => {
                let key = Ed25519KeyPair::from_pkcs8_maybe_unchecked(&self.ed25519.serialize_der()).unwrap();
                key.sign(message).as_ref().to_vec()
            }
            other => panic!("{other}"),
        }
    }

    /// Returns a token that its key has signed.
    fn token(&self, header: &Value, claims: &Value) -> Token {
        let algorithm = header["alg"].as_str().unwrap();
        token(header, claims, |message| self.sign(algorithm, message))
    }

    fn jwks(&self) -> Value {
        let PublicKeyComponents { n, e } = PublicKeyComponents::<Vec<u8>>::from(self.rsa.public());
        let ec = |kid, crv, key: &KeyPair| {
            let raw = key.public_key_raw();
            let (x, y) = raw[1..].split_at(raw.len() / 2);
            json!({ "kid": kid, "kty": "EC", "crv": crv, "x": encode(x), "y": encode(y) })
        };
        json!({ "keys": [
            { "kid": "rsa", "kty": "RSA", "use": "sig", "n": encode(&n), "e": encode(&e) },
            ec("p256", "P-256", &self.p256),
            ec("p384", "P-384", &self.p384),
            { "kid": "ed", "kty": "OKP", "crv": "Ed25519", "x": encode(self.ed25519.public_key_raw()) },
        ] })
    }

    fn pem(&self) -> String {
        let keys = [&self.p256, &self.p384, &self.ed25519].map(KeyPair::public_key_pem);
        format!("{RSA_PUBLIC}{}", keys.concat())
    }
}

fn encode(bytes: impl AsRef<[u8]>) -> String {
    BASE64_URL_SAFE_NO_PAD.encode(bytes)
}

fn token(header: &Value, claims: &Value, sign: impl FnOnce(&[u8]) -> Vec<u8>) -> Token {
    let signed = format!("{}.{}", encode(header.to_string()), encode(claims.to_string()));
    let signature = sign(signed.as_bytes());
    raw(&format!("{signed}.{}", encode(signature)))
}

fn raw(text: &str) -> Token {
    Token::from_headers([format!("Bearer {text}").as_bytes()]).unwrap().unwrap()
}

fn claims() -> Value {
    json!({ "iss": ISSUER, "aud": "informerd", "sub": "ada", "exp": NOW + 600, "groups": ["b", "a"] })
}

fn verifier(keys: &str) -> Result<JwtVerifier, String> {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("keys");
    std::fs::write(&path, keys).unwrap();
    let config = JwtConfig {
        issuer: ISSUER.to_owned(),
        audiences: vec!["informerd".to_owned(), "other".to_owned()],
        keys: path,
        user_claim: "sub".to_owned(),
        user_prefix: "oidc:".to_owned(),
        groups_claim: Some("groups".to_owned()),
        groups_prefix: "oidc:".to_owned(),
    };
    JwtVerifier::load(config).map_err(|error| error.to_string())
}

fn at(seconds: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)
}

fn is_valid(verifier: &JwtVerifier, token: &Token) -> bool {
    match verifier.user(token, at(NOW)).unwrap() {
        Ok(_) => true,
        Err(error) => {
            assert_eq!(error, AuthenticationError::Invalid);
            false
        }
    }
}

const ALGORITHMS: [(&str, &str); 9] = [
    ("RS256", "rsa"),
    ("RS384", "rsa"),
    ("RS512", "rsa"),
    ("PS256", "rsa"),
    ("PS384", "rsa"),
    ("PS512", "rsa"),
    ("ES256", "p256"),
    ("ES384", "p384"),
    ("EdDSA", "ed"),
];

#[test]
fn a_token_is_verified_by_the_key_of_its_id_or_by_a_key_in_pem() {
    let issuer = Issuer::new();
    let (jwks, pem) = (verifier(&issuer.jwks().to_string()).unwrap(), verifier(&issuer.pem()).unwrap());
    for (alg, kid) in ALGORITHMS {
        let with_id = issuer.token(&json!({ "alg": alg, "kid": kid }), &claims());
        assert!(is_valid(&jwks, &with_id) && is_valid(&pem, &with_id), "{alg}");
        let without = issuer.token(&json!({ "alg": alg, "typ": "JWT" }), &claims());
        assert!(is_valid(&pem, &without) && !is_valid(&jwks, &without), "{alg}: one of several keys by its id only");
    }
    let user = jwks.user(&issuer.token(&json!({ "alg": "ES256", "kid": "p256" }), &claims()), at(NOW));
    let user = user.unwrap().unwrap();
    assert_eq!(
        (user.user(), &user.details().groups[..]),
        ("oidc:ada", &["oidc:a".to_owned(), "oidc:b".to_owned()][..])
    );
    assert_eq!(user.details().expires, Some(at(NOW + 600) + LEEWAY));
    let mut only = issuer.jwks();
    only["keys"].as_array_mut().unwrap().truncate(1);
    let only = verifier(&only.to_string()).unwrap();
    assert!(is_valid(&only, &issuer.token(&json!({ "alg": "RS256" }), &claims())));
    assert!(!is_valid(&only, &issuer.token(&json!({ "alg": "RS256", "kid": "other" }), &claims())));
}

/// Each of the known confusions of algorithms and keys.
#[test]
fn a_token_chooses_neither_an_algorithm_nor_a_key() {
    let (issuer, stranger) = (Issuer::new(), Issuer::new());
    let (jwks, pem) = (verifier(&issuer.jwks().to_string()).unwrap(), verifier(&issuer.pem()).unwrap());
    let mut refused = Vec::new();
    for none in ["none", "None", "NONE", "nOnE", ""] {
        refused.push(token(&json!({ "alg": none }), &claims(), |_| Vec::new()));
        refused.push(token(&json!({ "alg": none, "kid": "rsa" }), &claims(), |message| issuer.sign("RS256", message)));
    }
    let der = issuer.rsa.public().as_ref().to_vec();
    let raw_point = issuer.p256.public_key_raw().to_vec();
    for secret in [RSA_PUBLIC.as_bytes(), &der, &raw_point, issuer.jwks().to_string().as_bytes(), b""] {
        for kid in ["rsa", "p256", "ed"] {
            let key = hmac::Key::new(hmac::HMAC_SHA256, secret);
            let sign = |message: &[u8]| hmac::sign(&key, message).as_ref().to_vec();
            refused.push(token(&json!({ "alg": "HS256", "kid": kid }), &claims(), sign));
        }
    }
    for (header, _) in ALGORITHMS {
        for (signed, _) in ALGORITHMS.iter().filter(|(signed, _)| *signed != header) {
            for (_, kid) in [("", "rsa"), ("", "p256"), ("", "p384"), ("", "ed")] {
                let sign = |message: &[u8]| issuer.sign(signed, message);
                refused.push(token(&json!({ "alg": header, "kid": kid }), &claims(), sign));
            }
        }
    }
    let jwk = &stranger.jwks()["keys"][1];
    let path = stranger.jwks().to_string();
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), path).unwrap();
    let place = file.path().to_str().unwrap();
    for header in [
        json!({ "alg": "ES256", "kid": "p256" }),
        json!({ "alg": "ES256", "jwk": jwk }),
        json!({ "alg": "ES256", "kid": "p256", "jwk": jwk, "jku": place, "x5u": place }),
        json!({ "alg": "ES256", "kid": place }),
        json!({ "alg": "ES256", "kid": format!("file://{place}") }),
        json!({ "alg": "ES256", "kid": "../../dev/null" }),
    ] {
        refused.push(stranger.token(&header, &claims()));
    }
    refused.push(issuer.token(&json!({ "alg": "ES256", "kid": "p256", "crit": ["b64"], "b64": true }), &claims()));
    refused.push(issuer.token(&json!({ "alg": "ES256", "kid": "p256", "crit": [] }), &claims()));
    for token in &refused {
        assert!(!is_valid(&jwks, token) && !is_valid(&pem, token), "{:?}", token.expose());
    }
    // A signature of another kind by the right key, and claims that were changed after it.
    let good = issuer.token(&json!({ "alg": "ES256", "kid": "p256" }), &claims());
    let (signed, signature) = good.expose().rsplit_once('.').unwrap();
    let mut changed = claims();
    changed["sub"] = json!("root");
    let header = signed.split_once('.').unwrap().0;
    assert!(!is_valid(&jwks, &raw(&format!("{header}.{}.{signature}", encode(changed.to_string())))));
    assert!(!is_valid(&jwks, &raw(&format!("{signed}.{}", encode([0; 64])))), "CVE-2022-21449");
    let mut limited = issuer.jwks();
    limited["keys"][0]["alg"] = json!("PS256");
    let limited = verifier(&limited.to_string()).unwrap();
    assert!(is_valid(&limited, &issuer.token(&json!({ "alg": "PS256", "kid": "rsa" }), &claims())));
    assert!(!is_valid(&limited, &issuer.token(&json!({ "alg": "RS256", "kid": "rsa" }), &claims())));
}

#[test]
fn claims_are_required_and_checked() {
    let issuer = Issuer::new();
    let verifier = verifier(&issuer.jwks().to_string()).unwrap();
    let user = |changes: Value| {
        let mut claims = claims();
        for (name, value) in changes.as_object().unwrap() {
            claims[name] = value.clone();
        }
        claims.as_object_mut().unwrap().retain(|_, value| !value.is_null());
        verifier.user(&issuer.token(&json!({ "alg": "EdDSA", "kid": "ed" }), &claims), at(NOW))
    };
    for changes in [
        json!({}),
        json!({ "aud": ["x", "other"] }),
        json!({ "nbf": NOW + 30 }),
        json!({ "nbf": NOW as f64 + 29.5 }),
        json!({ "exp": NOW - 29 }),
        json!({ "exp": NOW as f64 + 0.5 }),
        json!({ "groups": null }),
        json!({ "groups": "one" }),
        json!({ "email_verified": false }),
    ] {
        assert!(user(changes.clone()).unwrap().is_ok(), "{changes}");
    }
    for changes in [
        json!({ "aud": null }),
        json!({ "aud": "x" }),
        json!({ "aud": [] }),
        json!({ "aud": [1, "informerd"] }),
        json!({ "aud": { "informerd": true } }),
        json!({ "exp": null }),
        json!({ "exp": "1800000000" }),
        json!({ "exp": 1e300 }),
        json!({ "exp": -1 }),
        json!({ "nbf": NOW + 31 }),
        json!({ "nbf": "0" }),
        json!({ "sub": null }),
        json!({ "sub": "" }),
        json!({ "sub": 1 }),
        json!({ "sub": "x".repeat(1025) }),
        json!({ "groups": [1] }),
        json!({ "groups": ["x".repeat(1025)] }),
    ] {
        assert_eq!(user(changes.clone()), Some(Err(AuthenticationError::Invalid)), "{changes}");
    }
    for exp in [0, NOW - 31, NOW - 30] {
        assert_eq!(user(json!({ "exp": exp })), Some(Err(AuthenticationError::Expired)), "{exp}");
    }
    for iss in [json!(null), json!("https://issuer.example/"), json!([ISSUER]), json!("")] {
        assert_eq!(user(json!({ "iss": iss })), None, "left to the next authenticator");
    }
    // An address counts once its owner has proved it.
    let by_mail = JwtVerifier {
        config: JwtConfig { user_claim: "email".to_owned(), ..verifier.config.clone() },
        keys: Arc::clone(&verifier.keys),
        log: LogThrottle::new(),
    };
    let is_accepted = |verified: Value| {
        let mut claims = claims();
        claims["email"] = json!("ada@example.com");
        claims["email_verified"] = verified;
        let token = issuer.token(&json!({ "alg": "EdDSA", "kid": "ed" }), &claims);
        by_mail.user(&token, at(NOW)).unwrap().is_ok()
    };
    assert!(is_accepted(json!(true)) && !is_accepted(json!(false)) && !is_accepted(json!("true")));
}

/// Only Kubernetes may vouch for its own names, such as `system:masters`, which may do everything.
#[test]
fn an_issuer_gives_no_name_of_kubernetes() {
    let issuer = Issuer::new();
    let prefixed = verifier(&issuer.jwks().to_string()).unwrap();
    let config = JwtConfig { user_prefix: String::new(), groups_prefix: String::new(), ..prefixed.config.clone() };
    let bare = JwtVerifier { config, keys: Arc::clone(&prefixed.keys), log: LogThrottle::new() };
    for (claim, value) in [
        ("sub", json!("system:serviceaccount:shop:web")),
        ("groups", json!(["web", "system:masters"])),
        ("groups", json!("system:")),
    ] {
        let mut claims = claims();
        claims[claim] = value;
        let token = issuer.token(&json!({ "alg": "EdDSA", "kid": "ed" }), &claims);
        assert!(!is_valid(&bare, &token), "{claim}");
        let user = prefixed.user(&token, at(NOW)).unwrap().unwrap();
        let groups = &user.details().groups;
        assert!(user.user().starts_with("oidc:") && groups.iter().all(|group| group.starts_with("oidc:")));
    }
}

#[test]
fn a_text_that_is_no_jwt_is_left_to_the_next_authenticator() {
    let issuer = Issuer::new();
    let verifier = verifier(&issuer.jwks().to_string()).unwrap();
    let good = issuer.token(&json!({ "alg": "EdDSA", "kid": "ed" }), &claims());
    let good = good.expose();
    let [header, payload, signature] = good.split('.').collect::<Vec<_>>()[..] else { panic!("{good}") };
    for text in [
        "x".to_owned(),
        "..".to_owned(),
        format!("{header}.{payload}"),
        format!("{good}."),
        format!("{good}.x"),
        format!("{good}="),
        format!("{header}.{payload}.{signature}=="),
        format!("{}.{payload}.{signature}", encode("{}")),
        format!("{}.{payload}.{signature}", encode("[]")),
        format!("{header}.{}.{signature}", encode("[1]")),
        format!("{header}.{}.{signature}", encode("[".repeat(1000))),
        format!("{header}.{}.{signature}", encode([0xff])),
    ] {
        assert_eq!(verifier.user(&raw(&text), at(NOW)), None, "{text}");
    }
    assert!(is_valid(&verifier, &raw(good)));
    assert_eq!(expires(&raw(good)), Some(at(NOW + 600)));
    assert_eq!(expires(&raw("x")), None);
}

#[test]
fn keys_that_cannot_be_used_are_an_error_without_their_content() {
    let issuer = Issuer::new();
    let jwks = issuer.jwks();
    let key = |key: Value| json!({ "keys": [key] }).to_string();
    let many = json!({ "keys": vec![jwks["keys"][3].clone(); 33] }).to_string();
    let mut encryption = jwks["keys"][0].clone();
    encryption["use"] = json!("enc");
    for (text, problem) in [
        ("canary".to_owned(), "has no key that can be used; write a JWKS document"),
        (RSA.to_owned(), "has no key that can be used"),
        (r#"{"keys": canary}"#.to_owned(), "is not a JWKS document, at line 1 column "),
        (key(json!({ "kty": "oct", "k": "canary" })), "has no key that can be used"),
        (key(json!({ "kty": "EC", "crv": "secp256k1", "x": "canary", "y": "x" })), "has no key that can be used"),
        (key(encryption), "has no key that can be used"),
        (key(json!({ "kty": "RSA", "n": "canary" })), "has an incomplete RSA key"),
        (key(json!({ "kty": "EC", "crv": "P-256", "x": "*canary*", "y": "" })), "has an incomplete EC key"),
        (key(json!({ "kty": "RSA", "n": encode([1; 255]), "e": "AQAB" })), "has an RSA key of fewer than 2048 bits"),
        (include_str!("tests/short.pub.pem").to_owned(), "has an RSA key of fewer than 2048 bits"),
        (many, "has 33 keys; the limit is 32"),
    ] {
        let error = verifier(&text).map(drop).unwrap_err();
        assert!(error.contains(problem) && !error.contains("canary"), "{error}");
    }
}
