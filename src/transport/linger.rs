//! End of a connection after its last bytes: the peer closes it first.

use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, copy, sink};

/// Longest time that a peer has to close a connection whose last bytes were written.
const LINGER: Duration = Duration::from_secs(1);
/// The same as a share of the drain period, of which a fifth is left after the last watch has ended: that a peer closes nothing never
/// makes the drain time out.
const DRAIN_SHARE: u32 = 10;
/// Bytes that are read meanwhile.
const MAX_BYTES: u64 = 256 << 10;

/// Returns the time that a peer has to close a connection, for a server with this drain period.
pub(super) fn linger_time(drain_period: Duration) -> Duration {
    LINGER.min(drain_period / DRAIN_SHARE)
}

/// Reads until the peer has closed the connection, for a time and a number of bytes.
///
/// Closed at once, a socket answers whatever arrives later, such as a PING or a window update, with RST. A peer that is still reading
/// then loses the last messages: those of a drained watch have the version to resume from. grpc-go waits for the same reason
/// (`loopyWriter`, <https://github.com/grpc/grpc-go/issues/5358>).
pub(super) async fn linger(io: impl AsyncRead + Unpin, time: Duration) {
    // An error is an end, too.
    drop(tokio::time::timeout(time, copy(&mut io.take(MAX_BYTES), &mut sink())).await);
}

#[cfg(test)]
mod tests {
    use tokio::{
        io::{AsyncWriteExt, duplex},
        time::Instant,
    };

    use super::*;

    /// Returns the time of a linger beside a peer that writes this and then closes, if it does.
    async fn lingered(written: usize, closes: bool) -> Duration {
        let (mut peer, io) = duplex(1 << 20);
        peer.write_all(&vec![0; written]).await.unwrap();
        let _open = (!closes).then_some(peer);
        let begun = Instant::now();
        linger(io, LINGER).await;
        begun.elapsed()
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_lingers_until_its_peer_closes_it_within_a_time_and_a_size() {
        assert_eq!(lingered(0, true).await, Duration::ZERO);
        assert_eq!(lingered(100, true).await, Duration::ZERO);
        assert_eq!(lingered(0, false).await, LINGER);
        assert_eq!(lingered(MAX_BYTES as usize - 1, false).await, LINGER);
        assert_eq!(lingered(MAX_BYTES as usize, false).await, Duration::ZERO);
    }

    #[test]
    fn a_short_drain_period_is_not_passed() {
        assert_eq!(linger_time(Duration::from_secs(30)), LINGER);
        assert_eq!(linger_time(Duration::from_secs(5)), Duration::from_millis(500));
    }
}
