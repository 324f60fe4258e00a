use tokio::io::duplex;

use super::*;

fn proxy(kind: ProxyKind, credentials: Option<(&str, &str)>) -> Proxy {
    let credentials = credentials.map(|(user, password)| (user.to_owned(), password.to_owned()));
    Proxy { kind, host: "proxy".to_owned(), port: 3128, credentials, origin: "HTTPS_PROXY" }
}

/// Opens a tunnel through a proxy with this answer; returns the bytes sent to the proxy, and the data after its answer.
async fn opened(proxy: &Proxy, host: &str, answer: &[u8]) -> Result<(Vec<u8>, String), String> {
    let (mut client, mut server) = duplex(4096);
    server.write_all(answer).await.unwrap();
    let opened = open(&mut client, proxy, host, 6443).await;
    let mut sent = vec![0; 4096];
    let length = server.read(&mut sent).await.unwrap();
    sent.truncate(length);
    drop(server);
    opened?;
    let mut rest = String::new();
    client.read_to_string(&mut rest).await.unwrap();
    Ok((sent, rest))
}

#[tokio::test]
async fn connect_sends_the_host_and_reads_nothing_beyond_the_response() {
    let answer = b"HTTP/1.1 200 Connection established\r\nVia: x\r\n\r\nrest";
    let (sent, rest) = opened(&proxy(ProxyKind::Http, Some(("u", "p"))), "::1", answer).await.unwrap();
    let expected = "CONNECT [::1]:6443 HTTP/1.1\r\nHost: [::1]:6443\r\nProxy-Authorization: Basic dTpw\r\n\r\n";
    assert_eq!((String::from_utf8(sent).unwrap().as_str(), rest.as_str()), (expected, "rest"));
}

#[tokio::test]
async fn a_refusing_proxy_is_reported_with_its_origin() {
    let proxy = proxy(ProxyKind::Http, None);
    for (answer, why) in [
        ("HTTP/1.1 407 Proxy Authentication Required\r\n\r\n".to_owned(), "user and password required"),
        ("HTTP/1.1 403 Forbidden\r\n\r\n".to_owned(), "it responded \"HTTP/1.1 403 Forbidden\""),
        (format!("HTTP/1.1 200 OK\r\n{}", "x".repeat(MAX_HEAD_BYTES)), "response too large (limit: 8192 bytes)"),
    ] {
        let (mut client, mut server) = duplex(64 << 10);
        server.write_all(answer.as_bytes()).await.unwrap();
        let problem = open(&mut client, &proxy, "api", 6443).await.unwrap_err();
        assert!(problem.starts_with("proxy proxy:3128 (HTTPS_PROXY) did not connect to api:6443: "), "{problem}");
        assert!(problem.contains(why), "{problem}");
    }
    let (mut client, server) = duplex(1024);
    drop(server);
    let problem = open(&mut client, &proxy, "api", 1).await.unwrap_err();
    assert!(problem.contains("broken pipe") || problem.contains("connection closed"), "{problem}");
}

#[tokio::test]
async fn socks_sends_the_host_and_reads_nothing_beyond_the_reply() {
    let plain = proxy(ProxyKind::Socks5, None);
    let bound = [5, 0, 0, 1, 127, 0, 0, 1, 0, 80];
    let (sent, rest) = opened(&plain, "api", &[&[5, 0][..], &bound, b"rest"].concat()).await.unwrap();
    assert_eq!(sent, [&[5, 1, 0, 5, 1, 0, 3, 3][..], b"api", &6443_u16.to_be_bytes()].concat());
    assert_eq!(rest, "rest");
    let (sent, _) = opened(&plain, "10.0.0.1", &[&[5, 0][..], &bound].concat()).await.unwrap();
    assert_eq!(sent[3..], [5, 1, 0, 1, 10, 0, 0, 1, 25, 43]);
    let with_password = proxy(ProxyKind::Socks5, Some(("u", "p")));
    let (sent, _) = opened(&with_password, "a", &[&[5, 2, 1, 0][..], &bound].concat()).await.unwrap();
    assert_eq!(sent[..9], [5, 2, 0, 2, 1, 1, b'u', 1, b'p']);
    // A proxy that needs no credentials chooses none.
    let (sent, _) = opened(&with_password, "a", &[&[5, 0][..], &bound].concat()).await.unwrap();
    assert_eq!(sent[..7], [5, 2, 0, 2, 5, 1, 0]);
    let problem = opened(&plain, "a", &[5, 2, 1, 0]).await.unwrap_err();
    assert!(problem.contains("authentication method not accepted"), "not offered: {problem}");
    for (answer, why) in [
        (&[5, 255][..], "authentication method not accepted"),
        (&[4, 0], "not a SOCKS5 response"),
        (&[5, 0, 5, 5, 0, 1], "connection refused"),
    ] {
        let problem = opened(&plain, "a", answer).await.unwrap_err();
        assert!(problem.contains(why), "{problem}");
    }
}
