//! Running other programs from the root of the workspace, visibly.

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};

use anyhow::{Context, Result, ensure};

/// Where builds go.
pub(crate) fn target() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from)
}

/// The root of the workspace.
pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("this package lies in the workspace")
}

/// The cargo that runs this task, with arguments separated by spaces.
pub(crate) fn cargo(arguments: &str) -> Command {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.args(arguments.split_whitespace()).current_dir(root());
    command
}

/// Runs a command with its output shown; it must succeed.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    announce(command);
    let status = command.status().with_context(|| format!("{} cannot be run", shown(command)))?;
    ensure!(status.success(), "{} ended with {status}", shown(command));
    Ok(())
}

/// Runs a command quietly; gives what it wrote. It must succeed.
pub(crate) fn output(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| format!("{} cannot be run", shown(command)))?;
    let complaint = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{} ended with {}:\n{complaint}", shown(command), output.status);
    Ok(String::from_utf8(output.stdout)?)
}

/// Runs a command with only its errors shown; gives what else it wrote. It must succeed.
pub(crate) fn output_with_errors_shown(command: &mut Command) -> Result<String> {
    announce(command);
    let output = command.stderr(Stdio::inherit()).output();
    let output = output.with_context(|| format!("{} cannot be run", shown(command)))?;
    ensure!(output.status.success(), "{} ended with {}", shown(command), output.status);
    Ok(String::from_utf8(output.stdout)?)
}

/// Whether a command exists and succeeds.
pub(crate) fn succeeds(command: &mut Command) -> bool {
    let command = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// Runs a command with its output shown, and gives that too.
pub(crate) fn watch(command: &mut Command) -> Result<(ExitStatus, String)> {
    announce(command);
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("{} cannot be run", shown(command)))?;
    let (stdout, stderr) = (child.stdout.take().context("no output")?, child.stderr.take().context("no output")?);
    let (heard, overheard) = std::thread::scope(|scope| {
        let aside = scope.spawn(|| relay(stderr, |line| eprintln!("{line}")));
        (relay(stdout, |line| println!("{line}")), aside.join().expect("relaying lines does not panic"))
    });
    Ok((child.wait()?, heard + &overheard))
}

/// Shows line after line; gives them all.
fn relay(from: impl Read, show: impl Fn(&str)) -> String {
    let mut all = String::new();
    for line in BufReader::new(from).split(b'\n').map_while(Result::ok) {
        let line = String::from_utf8_lossy(&line);
        show(&line);
        all.push_str(&line);
        all.push('\n');
    }
    all
}

fn announce(command: &Command) {
    eprintln!("\n▸ {}", shown(command));
}

fn shown(command: &Command) -> String {
    let program = Path::new(command.get_program()).file_name().unwrap_or_default();
    let words = std::iter::once(program).chain(command.get_args());
    words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}
