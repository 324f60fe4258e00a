//! Tunnel through a proxy: CONNECT of HTTP/1.1 (RFC 9110, section 9.3.6), or SOCKS5 (RFC 1928 and 1929).

use std::{io, net::IpAddr};

use base64::prelude::{BASE64_STANDARD, Engine};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use super::proxy::{Proxy, ProxyKind};
use crate::source::text::one_line;

const MAX_HEAD_BYTES: usize = 8 << 10;

/// Opens a tunnel to a host. Afterwards the stream is the connection to that host.
pub(super) async fn open<S>(stream: &mut S, proxy: &Proxy, host: &str, port: u16) -> Result<(), String>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let opened = match proxy.kind {
        ProxyKind::Http | ProxyKind::Https => connect(stream, proxy, host, port).await,
        ProxyKind::Socks5 => socks5(stream, proxy, host, port).await,
    };
    opened.map_err(|problem| {
        let Proxy { host: proxy_host, port: proxy_port, origin, .. } = proxy;
        format!("proxy {proxy_host}:{proxy_port} ({origin}) did not connect to {host}:{port}: {problem}")
    })
}

async fn connect<S>(stream: &mut S, proxy: &Proxy, host: &str, port: u16) -> Result<(), String>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let host = if host.contains(':') { format!("[{host}]") } else { host.to_owned() };
    let mut request = format!("CONNECT {host}:{port} HTTP/1.1\r\nHost: {host}:{port}\r\n");
    if let Some((user, password)) = &proxy.credentials {
        let credentials = BASE64_STANDARD.encode(format!("{user}:{password}"));
        request.extend(["Proxy-Authorization: Basic ", &credentials, "\r\n"]);
    }
    request.push_str("\r\n");
    stream.write_all(request.as_bytes()).await.map_err(describe)?;
    stream.flush().await.map_err(describe)?;
    // Byte by byte, so that nothing after the head is consumed.
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        if head.len() == MAX_HEAD_BYTES {
            return Err(format!("response too large (limit: {MAX_HEAD_BYTES} bytes)"));
        }
        head.push(stream.read_u8().await.map_err(describe)?);
    }
    let head = String::from_utf8_lossy(&head);
    let status = head.lines().next().unwrap_or_default();
    match status.split_whitespace().nth(1) {
        Some("200") => Ok(()),
        Some("407") => Err("user and password required; write http://USER:PASSWORD@HOST:PORT".to_owned()),
        _ => Err(format!("it responded {:?}", one_line(status))),
    }
}

async fn socks5<S>(stream: &mut S, proxy: &Proxy, host: &str, port: u16) -> Result<(), String>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    const NONE: u8 = 0;
    const PASSWORD: u8 = 2;
    let methods: &[u8] = if proxy.credentials.is_some() { &[5, 2, NONE, PASSWORD] } else { &[5, 1, NONE] };
    stream.write_all(methods).await.map_err(describe)?;
    stream.flush().await.map_err(describe)?;
    let mut answer = [0; 2];
    stream.read_exact(&mut answer).await.map_err(describe)?;
    let credentials = match (answer, &proxy.credentials) {
        ([5, NONE], _) => None,
        ([5, PASSWORD], Some(credentials)) => Some(credentials),
        ([5, _], _) => return Err("authentication method not accepted".to_owned()),
        _ => return Err("not a SOCKS5 response".to_owned()),
    };
    if let Some((user, password)) = credentials {
        let mut request = vec![1];
        push_short(&mut request, user.as_bytes())?;
        push_short(&mut request, password.as_bytes())?;
        stream.write_all(&request).await.map_err(describe)?;
        stream.flush().await.map_err(describe)?;
        stream.read_exact(&mut answer).await.map_err(describe)?;
        if answer[1] != 0 {
            return Err("invalid user or password".to_owned());
        }
    }
    let mut request = vec![5, 1, 0];
    match host.parse::<IpAddr>() {
        Ok(IpAddr::V4(address)) => {
            request.push(1);
            request.extend(address.octets());
        }
        Ok(IpAddr::V6(address)) => {
            request.push(4);
            request.extend(address.octets());
        }
        Err(_) => {
            request.push(3);
            push_short(&mut request, host.as_bytes())?;
        }
    }
    request.extend(port.to_be_bytes());
    stream.write_all(&request).await.map_err(describe)?;
    stream.flush().await.map_err(describe)?;
    let mut answer = [0; 4];
    stream.read_exact(&mut answer).await.map_err(describe)?;
    if answer[1] != 0 {
        return Err(refusal(answer[1]).to_owned());
    }
    // The bound address and port.
    let length = match answer[3] {
        1 => 4,
        4 => 16,
        3 => usize::from(stream.read_u8().await.map_err(describe)?),
        _ => return Err("not a SOCKS5 response".to_owned()),
    };
    let mut bound = [0; 255 + 2];
    stream.read_exact(&mut bound[..length + 2]).await.map_err(describe)?;
    Ok(())
}

/// Describes a reply code of RFC 1928, section 6.
fn refusal(code: u8) -> &'static str {
    match code {
        2 => "connection not allowed by ruleset",
        3 => "network unreachable",
        4 => "host unreachable",
        5 => "connection refused",
        6 => "TTL expired",
        7 | 8 => "request not supported",
        _ => "general SOCKS server failure",
    }
}

fn push_short(request: &mut Vec<u8>, text: &[u8]) -> Result<(), String> {
    let length = u8::try_from(text.len()).map_err(|_| "a name or password has more than 255 bytes".to_owned())?;
    request.push(length);
    request.extend_from_slice(text);
    Ok(())
}

#[expect(clippy::needless_pass_by_value, reason = "for map_err")]
fn describe(error: io::Error) -> String {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => "connection closed".to_owned(),
        _ => error.to_string(),
    }
}

#[cfg(test)]
#[path = "tests/tunnel.rs"]
mod tests;
