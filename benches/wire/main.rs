//! Cost of a delivery, of informerd and in turns of two baselines: a naive server, and plain writes of the same bytes.
//!
//! ```sh
//! cargo bench --bench wire -- w1 --watchers 100 --reps 7      # = cargo bench --bench load -- w1 --local --baseline naive,floor …
//! ```

#[allow(dead_code, reason = "its own main")]
#[path = "../load/main.rs"]
mod program;

use std::process::ExitCode;

fn main() -> ExitCode {
    program::run(&["--local", "--baseline=naive,floor"])
}
