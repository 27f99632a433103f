//! The command `redlock`; all of it is in the library.

use std::process::ExitCode;

fn main() -> ExitCode {
    redlock_cli::command(std::env::args_os().collect())
}
