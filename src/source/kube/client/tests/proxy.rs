use super::*;

fn choose(proxy_url: Option<&str>, server: (bool, &str, u16), env: &[(&str, &str)]) -> Result<Option<Proxy>, String> {
    let env = |name: &str| env.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned());
    Proxy::choose(proxy_url, server.0, server.1, server.2, &env)
}

/// The table `UseProxyTests` of `golang.org/x/net/http/httpproxy`, with its `NO_PROXY`.
#[test]
fn no_proxy_matches_as_in_go() {
    let list = "foobar.com, .barbaz.net, 192.168.1.1, 192.168.1.2:81, 192.168.1.3:80, 10.0.0.0/30, 2001:db8::52:0:1, \
                [2001:db8::52:0:2]:443, [2001:db8::52:0:3]:80, 2002:db8:a::45/64";
    for (host, is_proxied) in [
        ("localhost", false),
        ("127.0.0.1", false),
        ("127.0.0.2", false),
        ("[::1]", false),
        ("[::2]", true),
        ("192.168.1.1", false),
        ("192.168.1.2", true),
        ("192.168.1.3", false),
        ("192.168.1.4", true),
        ("10.0.0.2", false),
        ("[2001:db8::52:0:1]", false),
        ("[2001:db8::52:0:2]", true),
        ("[2001:db8::52:0:3]", false),
        ("[2002:db8:a::123]", false),
        ("[fe80::424b:c8be:1643:a1b6]", true),
        ("barbaz.net", true),
        ("www.barbaz.net", false),
        ("foobar.com", false),
        ("www.foobar.com", false),
        ("foofoobar.com", true),
        ("baz.com", true),
        ("localhost.net", true),
        ("local.localhost", true),
        ("barbarbaz.net", true),
    ] {
        assert_eq!(!is_excepted(list, host, 80), is_proxied, "{host}");
    }
    for (list, host, is_proxied) in [
        ("*", "example.com", false),
        ("a, *", "10.0.0.1", false),
        ("*.example.com", "api.example.com", false),
        ("*.example.com", "example.com", true),
        ("EXAMPLE.com", "api.Example.COM", false),
        ("example.com:6443", "example.com", true),
        ("example.com:80", "example.com", false),
        ("10.0.0.0/8", "10.example.com", true),
        ("0.0.0.0/0", "10.0.0.1", false),
        ("::/0", "10.0.0.1", true),
        (", ,:80", "example.com", true),
        ("10.0.0.1", "::ffff:10.0.0.1", false),
    ] {
        assert_eq!(!is_excepted(list, host, 80), is_proxied, "{list:?} and {host}");
    }
}

#[test]
fn the_kubeconfig_precedes_the_environment_and_the_scheme_selects_the_variable() {
    let tls = (true, "api.example.com", 6443);
    let env = [("HTTPS_PROXY", "http://secure:1"), ("http_proxy", "plain:2"), ("ALL_PROXY", "http://all:3")];
    let host =
        |proxy: Result<Option<Proxy>, String>| proxy.unwrap().map(|proxy| (proxy.host, proxy.port, proxy.origin));
    assert_eq!(host(choose(None, tls, &env)), Some(("secure".to_owned(), 1, "HTTPS_PROXY")));
    assert_eq!(host(choose(None, (false, "api", 80), &env)), Some(("plain".to_owned(), 2, "http_proxy")));
    assert_eq!(host(choose(None, tls, &env[1..])), None);
    let excepted = [env[0], ("NO_PROXY", ".example.com")];
    assert_eq!(host(choose(None, tls, &excepted)), None);
    // As in client-go, `proxy-url` has no exceptions.
    let url = "https://own:8443";
    assert_eq!(host(choose(Some(url), tls, &excepted)), Some(("own".to_owned(), 8443, KEY)));
    assert_eq!(host(choose(Some(url), (true, "127.0.0.1", 1), &excepted)), Some(("own".to_owned(), 8443, KEY)));
}

#[test]
fn a_proxy_is_read_with_its_defaults_and_its_credentials() {
    let parse = |url| Proxy::parse(url, KEY);
    let proxy = parse("http://user:p%40ss@proxy").unwrap();
    assert_eq!((proxy.kind, proxy.port), (ProxyKind::Http, 80));
    assert_eq!(proxy.credentials, Some(("user".to_owned(), "p@ss".to_owned())));
    let proxy = parse("socks5://[::1]").unwrap();
    assert_eq!((proxy.kind, &*proxy.host, proxy.port), (ProxyKind::Socks5, "::1", 1080));
    assert_eq!(parse("https://proxy").unwrap().port, 443);
    for (url, why) in
        [("ftp://user:secret@proxy", "unsupported scheme \"ftp\""), ("proxy", "no scheme"), ("/x", "scheme")]
    {
        let problem = parse(url).err().unwrap();
        assert!(problem.starts_with(&format!("{KEY} is not a valid proxy: ")), "{problem}");
        assert!(problem.contains(why) && !problem.contains("secret"), "{problem}");
    }
    let problem = choose(None, (true, "a", 1), &[("https_proxy", "gopher://x")]).err().unwrap();
    assert!(problem.starts_with("https_proxy is not a valid proxy: "), "{problem}");
}
