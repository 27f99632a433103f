//! `redlock top`, in a real terminal.

use crate::support::*;
use redlock_bench::Servers;
use serde_json::Value;
use std::process::Stdio;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _};

#[tokio::test]
async fn a_terminal_shows_nodes_and_locks_until_somebody_quits() -> TestResult {
    let servers = Servers::start(3).await?;
    let redlock = Redlock::of(&servers);
    hold_elsewhere(&servers, "orders/42").await;
    let inside = format!("stty cols 100 rows 20; {} top --every 20ms; echo ended-$?", program().display());
    let mut command = std::process::Command::new("script");
    redlock.prepare(&mut command);
    command.args(["-q", "-c", &inside, "/dev/null"]).env("TERM", "xterm-256color");
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut terminal = tokio::process::Command::from(command).kill_on_drop(true).spawn()?;
    let (mut keys, mut screen) = (terminal.stdin.take().unwrap(), terminal.stdout.take().unwrap());
    let (mut seen, mut buffer, mut quit) = (String::new(), vec![0; 1 << 16], false);
    let watch = async {
        loop {
            let bytes = screen.read(&mut buffer).await?;
            if bytes == 0 {
                return Ok::<_, std::io::Error>(());
            }
            seen.push_str(&String::from_utf8_lossy(&buffer[..bytes]));
            if !quit && seen.contains("orders/42") && seen.contains("01234567…") {
                quit = true;
                keys.write_all(b"q").await?;
            }
        }
    };
    tokio::time::timeout(LONG, watch).await??;
    assert!(seen.contains("ended-0"), "{seen:?}");
    assert!(seen.contains(&servers[2].address().to_string()), "{seen:?}");
    assert!(seen.contains("\u{1b}[?1049l"), "the screen of before is back: {seen:?}");
    Ok(())
}

#[tokio::test]
async fn without_a_terminal_it_prints_json_or_says_what_to_do() -> TestResult {
    let servers = Servers::start(3).await?;
    let redlock = Redlock::of(&servers);
    let ended = redlock.call(&["top"]).await;
    assert_eq!(ended.code, 64, "{ended:?}");
    assert!(ended.stderr.contains("list --watch"), "{ended:?}");

    hold_elsewhere(&servers, "r").await;
    servers[2].kill();
    let call = redlock.begin(&["--json", "top", "--every", "10ms"]);
    let look = redlock_bench::eventually(LONG, || async {
        let text = call.stdout();
        let line = text.lines().next().filter(|_| text.contains('\n')).ok_or("nothing yet")?;
        serde_json::from_str::<Value>(line).map_err(|_| "no JSON")
    })
    .await?;
    assert_eq!(look["locks"][0]["resource"], "r");
    assert_eq!((&look["nodes"][0]["locks"], &look["nodes"][0]["role"]), (&Value::from(1), &Value::from("master")));
    assert!(look["nodes"][0]["latency_us"].is_u64() && look["nodes"][2]["trouble"].is_string(), "{look}");
    call.signal(rustix::process::Signal::TERM);
    assert_eq!(call.end().await.code, 143);
    Ok(())
}

/// Looks that a program prints, one on each line.
struct Looks {
    lines: tokio::io::Lines<tokio::io::BufReader<tokio::process::ChildStdout>>,
    _program: tokio::process::Child,
}

impl Looks {
    fn of(redlock: &Redlock) -> std::io::Result<Self> {
        let mut command = std::process::Command::new(program());
        redlock.prepare(&mut command);
        command.args(["--json", "top", "--every", "10ms"]).stdin(Stdio::null()).stdout(Stdio::piped());
        let mut program = tokio::process::Command::from(command).kill_on_drop(true).spawn()?;
        let lines = tokio::io::BufReader::new(program.stdout.take().expect("it is piped")).lines();
        Ok(Self { lines, _program: program })
    }

    async fn next(&mut self) -> Result<Value, Box<dyn std::error::Error>> {
        Ok(serde_json::from_str(&self.lines.next_line().await?.ok_or("it ended")?)?)
    }
}

/// One that accepts connections and says nothing is tried again and again, until patience is at an end.
#[tokio::test]
async fn a_silent_node_holds_up_no_look() -> TestResult {
    let servers = Servers::start(2).await?;
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let mut urls = servers.urls();
    urls.push(format!("redis://{}", silent.local_addr()?));
    let mut looks = Looks::of(&Redlock::at(urls))?;
    let watch = async {
        let first = silent.accept().await?;
        assert!(looks.next().await?["nodes"][2]["trouble"].is_string());
        drop(first);
        let (mut again, _) = loop {
            tokio::select! {
                again = silent.accept() => break again?,
                look = looks.next() => drop(look?),
            }
        };
        let (mut meanwhile, mut said) = (0, [0; 1024]);
        loop {
            tokio::select! {
                bytes = again.read(&mut said) => if matches!(bytes, Ok(0) | Err(_)) { return Ok(meanwhile) },
                look = looks.next() => {
                    look?;
                    meanwhile += 1;
                }
            }
        }
    };
    let meanwhile: Result<_, Box<dyn std::error::Error>> = tokio::time::timeout(LONG, watch).await?;
    let meanwhile = meanwhile?;
    assert!(10 <= meanwhile, "{meanwhile} looks while the node was tried");
    Ok(())
}

#[tokio::test]
async fn a_node_that_was_frozen_is_back() -> TestResult {
    let servers = Servers::start(3).await?;
    let mut looks = Looks::of(&Redlock::of(&servers))?;
    for (is_frozen, change) in [(true, "frozen"), (false, "thawed")] {
        if is_frozen {
            servers[2].freeze()?
        } else {
            servers[2].thaw()?
        }
        let seen = async {
            while looks.next().await?["nodes"][2]["trouble"].is_null() == is_frozen {}
            TestResult::Ok(())
        };
        tokio::time::timeout(LONG, seen).await.map_err(|_| change)??;
    }
    Ok(())
}
