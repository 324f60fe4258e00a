//! The pause after a connection that could not be accepted.

use std::{io, time::Duration};

use rustix::io::Errno;

/// Time for which nothing is accepted, when file descriptors are missing.
const PAUSE: Duration = Duration::from_millis(100);

/// Waits before the next attempt to accept. After the error of one connection, which was gone before it was accepted, there is no
/// wait: the next one may be there. Anything else, such as missing file descriptors, is the same at once, and is tried again 100 ms
/// later.
///
/// # Cancel safety
///
/// Nothing is lost when it is dropped.
pub async fn pause_after(error: &io::Error) {
    if !is_of_one_connection(error) {
        tokio::time::sleep(PAUSE).await;
    }
}

/// Returns whether the error is one of the connection that was to be accepted: Linux reports those of its network so, too
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
    async fn the_next_connection_does_not_wait_for_one_that_is_gone() {
        for (error, pause) in [
            (Errno::CONNABORTED, Duration::ZERO),
            (Errno::PROTO, Duration::ZERO),
            (Errno::HOSTUNREACH, Duration::ZERO),
            (Errno::MFILE, PAUSE),
            (Errno::NFILE, PAUSE),
            (Errno::NOBUFS, PAUSE),
            (Errno::NOMEM, PAUSE),
            // Would be the same for ever.
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
