//! B47: whoever waits long, and is frozen while waiting, is granted a lock that is valid or none at all.
//!
//! The waiters are processes of their own: this test's program, run once more with the environment saying so.

#![expect(clippy::print_stdout, reason = "the process tells its parent")]

use super::support::*;
use redlock_core::Retry;
use std::process::Stdio;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::process::{Child, Command};

const URLS: &str = "REDLOCK_TEST_B47_URLS";
const RESOURCE: &str = "REDLOCK_TEST_B47_RESOURCE";
const LEASE: u64 = 1_000;
const MIN_VALIDITY: u64 = 300;

/// Waits for the lock, says what it was granted, and holds it until it is told to end.
async fn wait_in_a_process(urls: String) -> TestResult {
    let urls: Vec<String> = urls.split(',').map(str::to_owned).collect();
    let redlock = builder(connect(&urls).await).build()?;
    println!("waiting");
    let retry = Retry { wait: ms(60_000), delay: ms(50), jitter: ms(20), ..Retry::default() };
    let request = redlock.request(std::env::var(RESOURCE)?).ttl(ms(LEASE)).min_validity(ms(MIN_VALIDITY)).retry(retry);
    let guard = request.acquire().await?;
    // What was left when the call returned, and what is left now: between the two this process may have been frozen, and
    // then the lock is over, as the second look says.
    let at_return = guard.remaining().as_millis();
    println!("returned");
    println!("granted {} {at_return} {}", guard.owner().expose(), guard.remaining().as_millis());
    let mut line = String::new();
    BufReader::new(tokio::io::stdin()).read_line(&mut line).await?;
    guard.release().await;
    Ok(())
}

fn start_waiter(urls: &str, resource: &str) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "b47_stale_grant::b47_a_frozen_waiter_is_granted_a_valid_lock_or_none", "--nocapture"])
        .env(URLS, urls)
        .env(RESOURCE, resource)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap()
}

fn signal(child: &Child, signal: rustix::process::Signal) {
    let pid = i32::try_from(child.id().expect("it runs")).unwrap();
    rustix::process::kill_process(rustix::process::Pid::from_raw(pid).unwrap(), signal).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b47_a_frozen_waiter_is_granted_a_valid_lock_or_none() -> TestResult {
    if let Ok(urls) = std::env::var(URLS) {
        return wait_in_a_process(urls).await;
    }
    let servers = five().await;
    let holder = client(&servers).await;
    let urls = servers.urls().join(",");
    // Frozen for a lease and a bit, at ten phases around the moment at which the lock becomes free.
    let mut valid_when_told = 0;
    for phase in 0..10_u64 {
        let resource = format!("r{phase}");
        let guard = holder.request(&resource).ttl(ms(30_000)).try_acquire().await?;
        let mut waiter = start_waiter(&urls, &resource);
        let mut said = BufReader::new(waiter.stdout.take().expect("piped")).lines();
        while !said.next_line().await?.expect("it says that it waits").contains("waiting") {}
        let release = async {
            tokio::time::sleep(ms(120)).await;
            guard.release().await
        };
        let freeze = async {
            tokio::time::sleep(ms(100 + 7 * phase)).await;
            signal(&waiter, rustix::process::Signal::STOP);
            tokio::time::sleep(ms(LEASE + 200)).await;
            signal(&waiter, rustix::process::Signal::CONT);
        };
        // The nodes are looked at as soon as the grant is told, be that before, in, or after the freeze.
        let look = async {
            loop {
                let line = said.next_line().await.unwrap().expect("it is granted in the end");
                if let Some(told) = line.find("granted") {
                    break (line[told..].to_owned(), holders(&servers, &resource).await);
                }
            }
        };
        let (_, (), (line, holders)) = tokio::join!(release, freeze, look);
        let words: Vec<&str> = line.split_whitespace().collect();
        let (at_return, now): (u64, u64) = (words[2].parse()?, words[3].parse()?);
        // Nothing, if the freeze came between the last look inside the call and the first one outside: then the holder knows.
        let is_useful = MIN_VALIDITY - 50 <= at_return && at_return < LEASE;
        assert!(is_useful || at_return == 0, "phase {phase}: {line}");
        if MIN_VALIDITY - 50 <= now {
            valid_when_told += 1;
            let ours = holders.into_iter().flatten().filter(|value| value == words[1]).count();
            assert!(3 <= ours, "phase {phase}: {ours} nodes hold it, {line}");
        }
        waiter.stdin.take().expect("piped").write_all(b"end\n").await?;
        assert!(waiter.wait().await?.success());
    }
    assert!(0 < valid_when_told, "not every freeze comes between the grant and its telling");
    Ok(())
}
