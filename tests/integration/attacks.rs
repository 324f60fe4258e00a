//! Attacks by raw frames against the binary, and those whom they must not touch: other clients' watches have every event in
//! order, their lists are whole, probes are answered, nothing panics, memory is bounded, and when the attack is over everything
//! that was taken is given back. Nothing depends on how long anything takes.
//!
//! The numbers are small; with `INFORMERD_ATTACKS=whole` they are those of the review of hostile clients, for the nightly.
//!
//! | attack | tests |
//! |---|---|
//! | the 20 floods of HTTP/2 frames | [`floods`] |
//! | silent and slow connections, descriptors that are used up | [`silent`], `connections.rs` (handshakes of TLS, half requests of each method, caps) |
//! | connections that come and go | [`silent`] |
//! | Watches and Lists of large objects, windows of one byte | [`stuck`], `windows.rs`, `memory.rs`, `transport/tests/unsent.rs` (paused time) |
//! | Watches without a window, each with a selection of its own | [`stuck`], `watch/tests/window.rs` |
//! | one more stuck List again and again | [`stuck`], `memory.rs` (snapshots are held once, what ends above the limit) |
//! | clients that never read, under each policy | [`unread`], `slow_client.rs` (what each is sent) |
//! | Watches, Untils and Lists with expressions at the bound | [`stuck`], `expressions.rs`, `watch/tests/expressions.rs`, `watch/tests/deferred.rs` |
//! | many selections, many stuck Watches under COALESCE | [`stuck`], `watch/tests/deferred.rs`, `watch/tests/merging.rs` |
//! | Lists by 9,000 values, which are refused | `refusals.rs` |
//! | Lists by 256 values | [`stuck`] |
//! | many expressions to be compiled | [`stuck`], `grpc/query.rs`, `grpc/compiler/line.rs` (shares, turns) |
//! | BLOCK calls again and again | [`unread`], `watch/tests/block.rs` (a minute of them, in paused time), `slow_client.rs` |
//! | Lists in three rounds | [`stuck`] |
//! | watches and page snapshots of one peer | `refusals.rs`, `grpc/page.rs` |
//! | malformed requests, texts repeated in errors | `refusals.rs`, `connections.rs` |

mod bed;
mod client;
mod floods;
mod frames;
mod silent;
mod stuck;
mod unread;

/// Returns the number for every change, or with `INFORMERD_ATTACKS=whole` that of the nightly.
fn number(small: u64, whole: u64) -> u64 {
    match std::env::var("INFORMERD_ATTACKS") {
        Ok(set) if set == "whole" => whole,
        Ok(set) => panic!("INFORMERD_ATTACKS={set}: only `whole` is known"),
        Err(_) => small,
    }
}
