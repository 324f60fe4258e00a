//! Pause after a failed accept.

use std::{io, time::Duration};

use rustix::io::Errno;

/// Pause after an error such as missing file descriptors.
const PAUSE: Duration = Duration::from_millis(100);

/// Waits before the next attempt to accept. There is no wait after the error of a single connection, which was closed before it
/// was accepted: the next one may be there. Any other error, such as missing file descriptors, would recur at once, so the next
/// attempt is 100 ms later.
///
/// # Cancel safety
///
/// Safe: nothing is lost.
pub async fn pause_after(error: &io::Error) {
    if !is_of_one_connection(error) {
        tokio::time::sleep(PAUSE).await;
    }
}

/// Returns true if the error belongs to the connection that was to be accepted: Linux also reports its network errors here
/// (accept(2)).
fn is_of_one_connection(error: &io::Error) -> bool {
    matches!(
        Errno::from_io_error(error),
        Some(
            Errno::CONNABORTED
                | Errno::CONNRESET
                | Errno::CONNREFUSED
                | Errno::HOSTDOWN
                | Errno::HOSTUNREACH
                | Errno::INTR
                | Errno::NETDOWN
                | Errno::NETUNREACH
                | Errno::NOPROTOOPT
                | Errno::OPNOTSUPP
                | Errno::PROTO
                | Errno::TIMEDOUT
        )
    )
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn only_errors_of_the_system_pause_accepting() {
        for (error, pause) in [
            (Errno::CONNABORTED, Duration::ZERO),
            (Errno::PROTO, Duration::ZERO),
            (Errno::HOSTUNREACH, Duration::ZERO),
            (Errno::MFILE, PAUSE),
            (Errno::NFILE, PAUSE),
            (Errno::NOBUFS, PAUSE),
            (Errno::NOMEM, PAUSE),
            // Would recur forever.
            (Errno::INVAL, PAUSE),
        ] {
            let began = Instant::now();
            pause_after(&error.into()).await;
            assert_eq!(began.elapsed().as_millis(), pause.as_millis(), "{error}");
        }
        let began = Instant::now();
        pause_after(&io::Error::other("not of the system")).await;
        assert_eq!(began.elapsed().as_millis(), PAUSE.as_millis());
    }
}
