//! `redlock run`: what goes in and comes out of the program is not touched.

use crate::support::*;
use redlock_bench::{Process, Servers, eventually};
use std::fs::File;
use std::io::{BufWriter, Read, Write};
use std::process::Stdio;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _};

/// How much goes through.
const BYTES: usize = 100 << 20;

/// Bytes of all values, in no order that text has.
fn pattern(position: usize) -> u8 {
    let mixed = position.wrapping_mul(0x9E37_79B9).rotate_left(13) ^ (position >> 7);
    mixed.to_le_bytes()[0]
}

#[tokio::test]
async fn a_hundred_megabytes_come_out_as_they_went_in() -> TestResult {
    let servers = Servers::start(1).await?;
    let redlock = Redlock::of(&servers);
    let mut command = std::process::Command::new(program());
    redlock.prepare(&mut command);
    command.args(["run", "r", "--", "cat"]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn()?;
    let (mut stdin, mut stdout) =
        (BufWriter::with_capacity(1 << 16, child.stdin.take().unwrap()), child.stdout.take().unwrap());
    let writer = std::thread::spawn(move || {
        let block: Vec<u8> = (0..1 << 20).map(pattern).collect();
        for _ in 0..BYTES / block.len() {
            stdin.write_all(&block)?;
        }
        stdin.flush()
    });
    let reader = std::thread::spawn(move || -> std::io::Result<(usize, bool)> {
        let (mut total, mut same, mut buffer) = (0, true, vec![0; 1 << 16]);
        let block: Vec<u8> = (0..1 << 20).map(pattern).collect();
        loop {
            let bytes = stdout.read(&mut buffer)?;
            if bytes == 0 {
                return Ok((total, same));
            }
            same &= buffer[..bytes].iter().enumerate().all(|(at, byte)| *byte == block[(total + at) % block.len()]);
            total += bytes;
        }
    });
    let (total, same) = tokio::task::spawn_blocking(move || {
        writer.join().expect("the writer does not panic")?;
        reader.join().expect("the reader does not panic")
    })
    .await??;
    let status = tokio::task::spawn_blocking(move || child.wait()).await??;
    assert_eq!(status.code(), Some(0));
    assert_eq!(total, BYTES);
    assert!(same, "a byte was changed");
    Ok(())
}

/// The program inherits what the command did, its three streams as a rule, and nothing else.
#[tokio::test]
async fn a_program_inherits_nothing_of_the_commands_own() -> TestResult {
    let servers = Servers::start(1).await?;
    let redlock = Redlock::of(&servers);
    let with = redlock.call(&["run", "r", "--", "ls", "/proc/self/fd"]).await;
    let (listing, errors) = (redlock.note("listing"), redlock.note("errors"));
    let without = Process::spawn("ls", |command| {
        command.arg("/proc/self/fd").stdin(Stdio::null());
        command.stdout(File::create(&listing).expect("a file")).stderr(File::create(&errors).expect("a file"));
    })?;
    eventually(LONG, || async { without.exited().ok_or("still listing") }).await?;
    assert_eq!(with.stdout, read(&listing), "{with:?}");
    Ok(())
}

/// At a terminal the program reads what is typed, though it is in a group of its own, and whoever called the command reads on
/// afterwards.
#[tokio::test]
async fn a_program_has_the_terminal_and_gives_it_back() -> TestResult {
    let servers = Servers::start(1).await?;
    let redlock = Redlock::of(&servers);
    let inside = format!(
        "{} run r -- sh -c 'echo ready-one; read typed; echo inside-$typed'; echo ready-two; read typed; echo outside-$typed",
        program().display()
    );
    let mut command = std::process::Command::new("script");
    redlock.prepare(&mut command);
    command.args(["-q", "-e", "-c", &inside, "/dev/null"]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut terminal = tokio::process::Command::from(command).kill_on_drop(true).spawn()?;
    let (mut keys, screen) = (terminal.stdin.take().unwrap(), terminal.stdout.take().unwrap());
    let mut screen = tokio::io::BufReader::new(screen).lines();
    let mut seen = Vec::new();
    let read_all = async {
        while let Some(line) = screen.next_line().await? {
            let typed = if line.contains("ready-one") {
                "a\n"
            } else if line.contains("ready-two") {
                "b\n"
            } else {
                ""
            };
            keys.write_all(typed.as_bytes()).await?;
            seen.push(line);
        }
        Ok::<_, std::io::Error>(())
    };
    tokio::time::timeout(LONG, read_all).await??;
    let screen = seen.join("\n");
    assert!(screen.contains("inside-a"), "{screen}");
    assert!(screen.contains("outside-b"), "{screen}");
    Ok(())
}
