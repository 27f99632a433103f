//! A client that was frozen does not take its own pause for an outage.
//!
//! The client is a process of its own: this test's program, run once more with the environment saying so.

use crate::support::*;
use redlock_bench::Process;
use std::io::{BufRead as _, BufReader};
use std::process::Stdio;
use std::time::Duration;
use tokio::time::sleep;

const CLIENT: &str = "REDLOCK_TEST_FROZEN_CLIENT";
const FREEZES: u64 = 15;
const FROZEN_FOR: Duration = ms(300);
/// Shorter than a freeze, which therefore outlasts it; far longer than a healthy server takes, however busy the machine.
const NODE_TIMEOUT: Duration = ms(200);

/// The attempt that is under way in a freeze may be lost to it: if the process is stopped with requests still to be sent,
/// the servers have no time left to answer them when it goes on. No other is, so the next one is granted.
#[tokio::test]
async fn a_client_that_was_frozen_loses_at_most_the_attempt_under_way() -> TestResult {
    if let Ok(urls) = std::env::var(CLIENT) {
        return attempt_in_a_process(&urls).await;
    }
    let servers = five().await;
    let (output, input) = std::io::pipe()?;
    let client = Process::spawn(std::env::current_exe()?, |command| {
        let test = "pauses::a_client_that_was_frozen_loses_at_most_the_attempt_under_way";
        command.args(["--exact", test, "--nocapture"]).env(CLIENT, servers.urls().join(","));
        command.stdin(Stdio::null()).stdout(input);
    })?;
    let mut said = BufReader::new(output).lines();
    assert!(said.any(|line| line.is_ok_and(|line| line == "begins")), "the client has connected");
    // Read while it is written, or the pipe would be full; ends with the process.
    let listener = std::thread::spawn(move || -> Vec<Attempt> {
        said.map_while(Result::ok).filter_map(|line| Attempt::read(&line)).collect()
    });

    for freeze in 0..FREEZES {
        // Each at another point of what the client is doing.
        sleep(ms(30) + Duration::from_micros(137) * u32::try_from(freeze)?).await;
        client.freeze()?;
        sleep(FROZEN_FOR).await;
        client.thaw()?;
    }
    sleep(ms(100)).await;
    client.kill();

    let attempts = listener.join().expect("the listener does not panic");
    assert!(500 < attempts.len(), "only {} attempts were made", attempts.len());
    let mut before_failed = false;
    for attempt in &attempts {
        let failed = attempt.outcome != "granted";
        assert!(!failed || attempt.outcome == "unavailable", "{attempt:?}");
        assert!(!failed || NODE_TIMEOUT <= attempt.took, "nobody was waited for: {attempt:?}");
        assert!(!(failed && before_failed), "the second in a row: {attempt:?}");
        before_failed = failed;
    }
    let failed = attempts.iter().filter(|attempt| attempt.outcome != "granted").count();
    assert!(u64::try_from(failed)? <= FREEZES, "{failed} failed");
    Ok(())
}

/// One attempt of the client's, as it tells of it.
#[derive(Debug)]
struct Attempt {
    outcome: String,
    took: Duration,
}

impl Attempt {
    fn read(line: &str) -> Option<Self> {
        let ["attempt", outcome, millis] = line.split(' ').collect::<Vec<_>>()[..] else { return None };
        Some(Self { outcome: outcome.to_owned(), took: ms(millis.parse().ok()?) })
    }
}

/// The client: one attempt after the other, until it is killed. Each asks for another lock, so that none is in the way of
/// the next.
#[expect(clippy::print_stdout, reason = "the test listens")]
async fn attempt_in_a_process(urls: &str) -> TestResult {
    let urls: Vec<String> = urls.split(',').map(str::to_owned).collect();
    let redlock = builder(connect(&urls).await).node_timeout(NODE_TIMEOUT).build()?;
    println!("\nbegins");
    for n in 0_u64.. {
        let (took, result) = timed(redlock.try_acquire(n.to_string())).await;
        let outcome = match &result {
            Ok(_) => "granted",
            Err(error) => error.class(),
        };
        println!("attempt {outcome} {}", took.as_millis());
    }
    Ok(())
}
