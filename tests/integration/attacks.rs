//! Attacks by raw HTTP/2 frames against the binary. The tests check that they harm no other client: watches have every event in
//! order, lists are complete, probes are answered, nothing panics, and memory is bounded. After an attack the server releases all
//! that it held for it. No check depends on durations.
//!
//! The counts are small by default; `INFORMERD_ATTACKS=whole` uses those of the security review of hostile clients (nightly).
//!
//! | attack | tests |
//! |---|---|
//! | the 20 floods of HTTP/2 frames | [`floods`] |
//! | silent and slow connections, exhausted file descriptors | [`silent`], `connections.rs` (TLS handshakes, half requests of each method, limits) |
//! | connections opened and closed in quick succession | [`silent`] |
//! | Watches and Lists of large objects, windows of one byte | [`stuck`], `windows.rs`, `memory.rs`, `transport/tests/unsent.rs` (paused time) |
//! | Watches without a window, each with its own selection | [`stuck`], `watch/tests/versions.rs` |
//! | one more stuck List again and again | [`stuck`], `memory.rs` (snapshots are held once, calls that end above the limit) |
//! | clients that never read, under each policy | [`unread`], `slow_client.rs` (events sent to each) |
//! | Watches, Untils and Lists with expressions at the limit | [`stuck`], `expressions.rs`, `watch/tests/expressions.rs` |
//! | many selections, many stuck Watches under COALESCE | [`stuck`], `watch/tests/merging.rs` |
//! | Lists by 9,000 values, which are rejected | `refusals.rs` |
//! | Lists by 256 values | [`stuck`] |
//! | many expressions to be compiled | [`stuck`], `grpc/query.rs`, `turns/fair_semaphore.rs` (fair shares of the compiler) |
//! | BLOCK calls again and again | [`unread`], `watch/tests/block.rs` (a minute of them, in paused time), `slow_client.rs` |
//! | Lists in three rounds | [`stuck`] |
//! | Subscribe streams of many watches that are not read | [`stuck`], [`unread`] |
//! | Subscribe: watches opened, refused and closed again and again | [`subscribed`], `subscribe.rs` (bad ids) |
//! | Subscribe: watches that stay paused, under each policy | [`subscribed`], `subscribe.rs` |
//! | watches through a slow link, watches that wait on a Subscribe stream | [`slow_links`], `transport/tests/slow_link.rs` (paused time) |
//! | watches and page snapshots of one peer | `refusals.rs`, `grpc/page.rs` |
//! | requests that never end, watches of health and reflections without end, calls beyond a share, denied calls | [`strangers`], `grpc/request.rs`, `transport/peer_account.rs`, `grpc/denials.rs` |
//! | bad tokens, and accesses, that an authority has to review | [`reviews`], `access/reviews.rs` (paused time), `turns/fair_semaphore.rs` |
//! | malformed requests, texts repeated in errors | `refusals.rs`, `connections.rs` |

mod attacked_server;
mod client;
mod floods;
pub(crate) mod frames;
mod reviews;
mod silent;
mod slow_links;
mod strangers;
mod stuck;
mod subscribed;
mod unread;

/// Returns `small` by default, and `whole` with `INFORMERD_ATTACKS=whole` (nightly).
fn number(small: u64, whole: u64) -> u64 {
    match std::env::var("INFORMERD_ATTACKS") {
        Ok(set) if set == "whole" => whole,
        Ok(set) => panic!("INFORMERD_ATTACKS={set}: only `whole` is known"),
        Err(_) => small,
    }
}
