//! A client in another language that uses the same key, with plain `SET NX PX` and compare-and-delete, and ours exclude
//! each other.

use redlock_backends::RedisNode;
use redlock_bench::{Servers, eventually};
use redlock_core::{AcquireError, Redlock};
use std::process::Stdio;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

/// The plain client in Python.
struct Python {
    _process: Child,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
}

impl Python {
    fn start(servers: &Servers) -> Self {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/interop/plain_redlock.py");
        let mut process = Command::new("/usr/bin/python3")
            .arg(script)
            .args(servers.iter().map(|server| server.port().to_string()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .expect("python3 starts; `cargo xtask test --install` brings it and its redis package");
        let input = process.stdin.take().expect("its input is piped");
        let output = BufReader::new(process.stdout.take().expect("its output is piped")).lines();
        Self { _process: process, input, output }
    }

    async fn ask(&mut self, command: &str) -> String {
        self.input.write_all(format!("{command}\n").as_bytes()).await.expect("the client reads its commands");
        self.output
            .next_line()
            .await
            .expect("its output is text")
            .expect("the client answers; if it cannot import redis, run `cargo xtask test --install`")
    }
}

const EVERYWHERE: &str = "[0, 1, 2, 3, 4]";
const NOWHERE: &str = "[]";

#[tokio::test]
async fn a_plain_client_in_python_and_ours_exclude_each_other() -> Result<(), Box<dyn std::error::Error>> {
    let servers = Servers::start(5).await?;
    let urls = servers.urls();
    let nodes = RedisNode::connect_all(urls.iter().map(String::as_str)).await?;
    let redlock = Redlock::builder().nodes(nodes).ttl(Duration::from_secs(30)).build()?;
    let mut python = Python::start(&servers);

    // It holds, we are refused.
    assert_eq!(python.ask("acquire lock:orders/42 python-1 30000").await, EVERYWHERE);
    let refused = redlock.try_acquire("orders/42").await;
    assert!(matches!(refused, Err(AcquireError::Contended(_))), "{refused:?}");
    redlock.settled().await;
    assert_eq!(python.ask("holder lock:orders/42").await, format!("[{}]", ["\"python-1\""; 5].join(", ")));

    // It lets go, we hold, it is refused, and cannot delete what is not its own.
    assert_eq!(python.ask("release lock:orders/42 python-1").await, EVERYWHERE);
    let guard = redlock.try_acquire("orders/42").await?;
    redlock.settled().await;
    assert_eq!(python.ask("acquire lock:orders/42 python-2 30000").await, NOWHERE);
    assert_eq!(python.ask("release lock:orders/42 python-2").await, NOWHERE);
    assert_eq!(guard.extend().await.map(|_| ()).map_err(|error| error.to_string()), Ok(()));

    // We let go, it holds.
    guard.release().await;
    redlock.settled().await;
    eventually(Duration::from_secs(2), || async {
        let keys = servers.keys("lock:orders*").await.map_err(|error| error.to_string())?;
        if keys.iter().all(Vec::is_empty) { Ok(()) } else { Err(format!("{keys:?}")) }
    })
    .await?;
    assert_eq!(python.ask("acquire lock:orders/42 python-3 30000").await, EVERYWHERE);
    Ok(())
}
