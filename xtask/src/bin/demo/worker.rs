//! A, from inside: takes the lock, claims the account, makes sure that the lock is still its own, and writes.
//!
//! A program as people write it, but for the one line at which it waits to be frozen: between the check and the write,
//! where no program can look whether its time has run out meanwhile.

use std::io::{BufRead, Write};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use fence_store::FenceError;
use redlock_core::Redlock;

use crate::facts::{GrantFacts, Holder, whole_millis};
use crate::holder::{GO_ON, Orders, Word};
use crate::nodes::PREFIX;
use crate::telling::causes;

/// Short, as the story waits for it to run out; long enough for a busy machine to get as far as the check.
const TTL: Duration = Duration::from_secs(2);

/// How long a node may take to answer.
const NODE_TIMEOUT: Duration = Duration::from_millis(500);

/// How much time the write is thought to need.
const WRITE: Duration = Duration::from_millis(100);

/// How long the process waits for what goes on in the background before it ends.
const SETTLE_PATIENCE: Duration = Duration::from_secs(1);

/// What A adds to the balance.
const DEPOSIT: i64 = 1;

pub(crate) async fn run() -> Result<()> {
    let result = work().await;
    if let Err(error) = &result {
        say(&Word::Failed { why: causes(error) })?;
    }
    result
}

async fn work() -> Result<()> {
    let orders: Orders = serde_json::from_str(&listen()?).context("orders that cannot be read")?;
    let redlock = Redlock::builder()
        .nodes(orders.way.connect().await?)
        .key_prefix(PREFIX)
        .ttl(TTL)
        .node_timeout(NODE_TIMEOUT)
        .build()?;
    let accounts = orders.place.connect().await?;
    accounts.warm_up().await?;

    let guard = redlock.acquire(&orders.resource).await?;
    say(&Word::Granted(GrantFacts::of(Holder::A, &guard, TTL)))?;

    let account = accounts.claim(guard.grant()).await?;
    say(&Word::Claimed { balance: account.balance() })?;

    let remaining = guard.require(WRITE)?;
    say(&Word::Checked { remaining_ms: whole_millis(remaining) })?;

    // Here the process is frozen. It cannot know.
    ensure!(listen()? == GO_ON, "told something else than to go on");

    match account.write(account.balance() + DEPOSIT).await {
        Ok(()) => say(&Word::Applied)?,
        Err(error @ FenceError::Stale { presented, highest, .. }) => say(&Word::Refused {
            presented: presented.get(),
            highest,
            said: error.to_string(),
            remaining_ms: whole_millis(guard.remaining()),
        })?,
        Err(error) => return Err(error.into()),
    }
    guard.release().await;
    let _ = tokio::time::timeout(SETTLE_PATIENCE, redlock.settled()).await;
    Ok(())
}

/// The next line from whoever started us. Blocks the thread, as nothing else is to happen meanwhile.
fn listen() -> Result<String> {
    let mut line = String::new();
    let len = std::io::stdin().lock().read_line(&mut line)?;
    ensure!(0 < len, "whoever started this has gone");
    Ok(line.trim_end().to_owned())
}

fn say(word: &Word) -> Result<()> {
    let mut stdout = std::io::stdout().lock();
    writeln!(stdout, "{}", serde_json::to_string(word)?)?;
    Ok(stdout.flush()?)
}
