//! A cache entry that has run out is rebuilt once, though a hundred requests ask for it at the same moment.
//!
//! ```text
//! cargo run -p redlock-backends --example cache_rebuild [redis://… redis://… redis://…]
//! ```

use redlock_backends::RedisNode;
use redlock_core::{AcquireError, FencingToken, Redlock};
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Stands for the cache that all workers share. Each value carries the token under which it was built, and a value built
/// under a lower one does not replace it: a worker that was paused while it built has an old picture of the world.
#[derive(Debug, Default)]
pub(crate) struct Cache(Mutex<HashMap<String, (FencingToken, String)>>);

impl Cache {
    pub(crate) fn get(&self, key: &str) -> Option<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(key).map(|(_, value)| value.clone())
    }

    /// Says whether the value was taken.
    pub(crate) fn put(&self, key: &str, token: FencingToken, value: String) -> bool {
        let mut values = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_newer = values.get(key).is_none_or(|(known, _)| *known <= token);
        if is_newer {
            values.insert(key.to_owned(), (token, value));
        }
        is_newer
    }
}

/// What is in the cache, or what `build` makes, which is called by one worker at a time.
pub(crate) async fn cached(
    redlock: &Redlock,
    cache: &Cache,
    key: &str,
    build: impl AsyncFnOnce() -> String,
) -> Result<String, AcquireError> {
    // The usual case costs no lock.
    if let Some(value) = cache.get(key) {
        return Ok(value);
    }
    let guard = redlock.acquire(["cache/", key].concat()).await?;
    // Look again: whoever had the lock before us has built it while we waited.
    if let Some(value) = cache.get(key) {
        guard.release().await;
        return Ok(value);
    }
    let value = build().await;
    cache.put(key, guard.token(), value.clone());
    guard.release().await;
    Ok(value)
}

#[tokio::main]
#[expect(clippy::print_stdout, reason = "an example talks to whoever runs it")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut urls: Vec<String> = std::env::args().skip(1).collect();
    if urls.is_empty() {
        urls = (7601..7606).map(|port| format!("redis://127.0.0.1:{port}")).collect();
    }
    let nodes = RedisNode::connect_all(urls.iter().map(String::as_str)).await?;
    let redlock = Redlock::builder().nodes(nodes).build()?;
    let cache = Cache::default();
    let request = async |number: u32| {
        let build = async || {
            println!("request {number} builds the page");
            tokio::time::sleep(Duration::from_millis(300)).await;
            "the page".to_owned()
        };
        cached(&redlock, &cache, "front-page", build).await
    };
    let (one, two, three) = tokio::join!(request(1), request(2), request(3));
    println!("all three have it: {}, {}, {}", one?, two?, three?);
    Ok(())
}
