//! TCP connections to a host that may have several addresses.
//!
//! `TcpStream::connect` tries the addresses of a name one after the other, each for as long as the kernel allows, and always in
//! the same order: the first address that drops packets uses up the whole timeout. Here the attempts overlap (RFC 8305), and
//! each dial begins with another address, so that the next dial avoids one that accepts connections and then does nothing.

use std::{
    io,
    net::SocketAddr,
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use futures_util::{StreamExt, stream::FuturesUnordered};
use socket2::{SockRef, TcpKeepalive};
use tokio::{
    net::{TcpStream, lookup_host},
    time::timeout,
};

/// TCP dialer.
#[derive(Debug, Default)]
pub(crate) struct Dialer {
    dials: AtomicUsize,
}

/// Timeout of the name lookup. glibc waits 5 s for a nameserver before it queries the next one, at each lookup.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(20);
/// Timeout of all addresses together.
const DIAL_TIMEOUT: Duration = Duration::from_secs(5);
/// Delay before the next attempt begins in parallel, as RFC 8305, section 5, recommends.
const ATTEMPT_DELAY: Duration = Duration::from_millis(250);
/// Largest number of addresses tried: so many attempts begin within [`DIAL_TIMEOUT`] and leave the last one a second.
const MAX_ADDRESSES: usize = 16;
/// Silence before the kernel sends a keepalive probe; further probes follow every [`KEEPALIVE_INTERVAL`].
const KEEPALIVE_TIME: Duration = Duration::from_secs(10);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
/// Longest time without an acknowledgement by the peer before the kernel closes the connection.
#[cfg(target_os = "linux")]
const USER_TIMEOUT: Duration = Duration::from_secs(20);

// === impl Dialer ===

impl Dialer {
    /// Connects to a host, which is a name or an IP address, within [`LOOKUP_TIMEOUT`] and [`DIAL_TIMEOUT`].
    ///
    /// # Cancel safety
    ///
    /// Dropping the future closes every attempt.
    pub(crate) async fn dial(&self, host: &str, port: u16) -> Result<TcpStream, String> {
        self.dial_found(host, async { Ok(lookup_host((host, port)).await?.collect()) }).await
    }

    /// Does the same with the addresses that a lookup of the name finds.
    async fn dial_found(
        &self,
        host: &str,
        lookup: impl Future<Output = io::Result<Vec<SocketAddr>>>,
    ) -> Result<TcpStream, String> {
        let first = self.dials.fetch_add(1, Ordering::Relaxed);
        let found = timeout(LOOKUP_TIMEOUT, lookup).await;
        let found = found.map_err(|_| format!("{host}: name not looked up within {LOOKUP_TIMEOUT:?}"))?;
        let mut addresses = found.map_err(|error| format!("{host}: {error}"))?;
        if addresses.is_empty() {
            return Err(format!("{host}: no addresses found"));
        }
        let count = addresses.len();
        addresses.rotate_left(first % count);
        addresses.truncate(MAX_ADDRESSES);
        let dialed = timeout(DIAL_TIMEOUT, connect(addresses)).await;
        let stream = dialed.unwrap_or_else(|_| Err(format!("no connection within {DIAL_TIMEOUT:?}")))?;
        tune(&stream).map_err(|error| error.to_string())?;
        Ok(stream)
    }
}

/// Connects to the first address that answers. The next attempt begins at once when one fails, and in parallel when one takes
/// long.
async fn connect(addresses: Vec<SocketAddr>) -> Result<TcpStream, String> {
    let mut waiting = addresses.into_iter();
    let mut attempts = FuturesUnordered::new();
    let mut problems = Vec::new();
    loop {
        match waiting.next() {
            Some(address) => attempts.push(async move { (address, TcpStream::connect(address).await) }),
            None if attempts.is_empty() => return Err(problems.join("; ")),
            None => {}
        }
        let ended = if waiting.len() == 0 {
            attempts.next().await
        } else {
            timeout(ATTEMPT_DELAY, attempts.next()).await.unwrap_or_default()
        };
        match ended {
            Some((_, Ok(stream))) => return Ok(stream),
            Some((address, Err(error))) => problems.push(format!("{address}: {error}")),
            None => {}
        }
    }
}

fn tune(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let socket = SockRef::from(stream);
    let keepalive = TcpKeepalive::new().with_time(KEEPALIVE_TIME).with_interval(KEEPALIVE_INTERVAL);
    socket.set_tcp_keepalive(&keepalive)?;
    #[cfg(target_os = "linux")]
    socket.set_tcp_user_timeout(Some(USER_TIMEOUT))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use socket2::{Domain, Socket, Type};
    use tokio::net::TcpListener;

    use super::*;

    /// Returns a listener whose queue is full: the kernel drops further packets, as the network does for a dead host.
    fn black_hole() -> (SocketAddr, Socket, Vec<std::net::TcpStream>) {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        socket.bind(&"127.0.0.1:0".parse::<SocketAddr>().unwrap().into()).unwrap();
        socket.listen(0).unwrap();
        let address = socket.local_addr().unwrap().as_socket().unwrap();
        let mut queued = Vec::new();
        while let Ok(stream) = std::net::TcpStream::connect_timeout(&address, Duration::from_millis(100)) {
            queued.push(stream);
        }
        (address, socket, queued)
    }

    fn refused() -> SocketAddr {
        std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
    }

    /// Time is paused: only the delays between attempts count.
    #[tokio::test(start_paused = true)]
    async fn an_address_that_drops_packets_costs_a_quarter_of_a_second() {
        let holes = [black_hole(), black_hole()];
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let good = listener.local_addr().unwrap();
        let started = tokio::time::Instant::now();
        let stream = connect(vec![holes[0].0, holes[1].0, good]).await.unwrap();
        assert_eq!(stream.peer_addr().unwrap(), good);
        assert_eq!(started.elapsed().as_millis() / 10, 2 * ATTEMPT_DELAY.as_millis() / 10);
    }

    #[tokio::test(start_paused = true)]
    async fn a_refusing_address_costs_no_delay_and_the_error_names_all() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let good = listener.local_addr().unwrap();
        let stream = connect(vec![refused(), refused(), good]).await.unwrap();
        assert_eq!(stream.peer_addr().unwrap(), good);
        let addresses = [refused(), refused()];
        let problem = connect(addresses.to_vec()).await.unwrap_err();
        for address in addresses {
            assert!(problem.contains(&format!("{address}: Connection refused")), "{problem}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_dial_ends_in_time() {
        let hole = black_hole();
        let problem = Dialer::default().dial("127.0.0.1", hole.0.port()).await.unwrap_err();
        assert_eq!(problem, "no connection within 5s");
    }

    /// glibc queries the second nameserver after 5 s, and remembers nothing of the first.
    #[tokio::test(start_paused = true)]
    async fn a_name_may_take_longer_to_look_up_than_a_connection_to_open() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let good = listener.local_addr().unwrap();
        let found_after = async |time| {
            let lookup = async {
                tokio::time::sleep(time).await;
                Ok(vec![good])
            };
            Dialer::default().dial_found("api.example", lookup).await
        };
        assert_eq!(found_after(DIAL_TIMEOUT + ATTEMPT_DELAY).await.unwrap().peer_addr().unwrap(), good);
        let problem = found_after(LOOKUP_TIMEOUT + ATTEMPT_DELAY).await.unwrap_err();
        assert_eq!(problem, "api.example: name not looked up within 20s");
    }
}
