//! The one way in which a test waits: for a condition, with an end.
//!
//! A fixed sleep is either too short on a busy machine or too long on a good one, and when it fails it does not say what
//! was missing. This says it.

use std::fmt;
use std::time::Duration;

use tokio::time::Instant;

/// The pause between two looks at the condition.
const PERIOD: Duration = Duration::from_millis(5);

/// The condition did not come about in time.
#[derive(Debug, thiserror::Error)]
#[error("not within {deadline:?} ({looks} looks); last seen: {last}")]
pub struct NotYet {
    /// How long the condition was awaited.
    pub deadline: Duration,
    /// How often it was looked at.
    pub looks: u64,
    /// What it said the last time.
    pub last: String,
}

/// Looks at `condition` again and again until it says `Ok`, for at most `deadline`.
///
/// The condition says in its error what is still missing; a look that itself hangs is cut off at the deadline.
///
/// ```
/// # use std::time::Duration;
/// # use redlock_bench::eventually;
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let keys_left = async || Vec::<String>::new();
/// eventually(Duration::from_secs(1), || async {
///     let keys = keys_left().await;
///     if keys.is_empty() { Ok(()) } else { Err(format!("still there: {keys:?}")) }
/// })
/// .await?;
/// # Ok(()) }
/// ```
///
/// # Errors
/// [`NotYet`] with what the condition last said.
///
/// # Cancel safety
/// Dropping it drops the look that is under way, and nothing else.
pub async fn eventually<T, E, F, Fut>(deadline: Duration, mut condition: F) -> Result<T, NotYet>
where
    F: FnMut() -> Fut,
    Fut: Future<Output = Result<T, E>>,
    E: fmt::Display,
{
    let end = Instant::now() + deadline;
    let mut last = String::from("nothing, as the first look did not end");
    let mut looks = 0;
    loop {
        looks += 1;
        match tokio::time::timeout_at(end, condition()).await {
            Ok(Ok(value)) => return Ok(value),
            Ok(Err(missing)) => last = missing.to_string(),
            Err(_) => return Err(NotYet { deadline, looks, last }),
        }
        if end <= Instant::now() + PERIOD {
            return Err(NotYet { deadline, looks, last });
        }
        tokio::time::sleep(PERIOD).await;
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[tokio::test]
    async fn a_condition_that_comes_about_gives_its_value() {
        let looks = Cell::new(0);
        let value = eventually(Duration::from_secs(5), || async {
            looks.set(looks.get() + 1);
            if looks.get() < 3 { Err("too early") } else { Ok(looks.get()) }
        })
        .await;
        assert_eq!(value.unwrap(), 3);
    }

    #[tokio::test]
    async fn a_condition_that_does_not_says_what_is_missing() {
        let error =
            eventually(Duration::from_millis(20), || async { Err::<(), _>("two keys left") }).await.unwrap_err();
        assert!(error.to_string().ends_with("last seen: two keys left"), "{error}");
        assert!(1 < error.looks, "{error}");
    }

    #[tokio::test]
    async fn a_look_that_hangs_is_cut_off() {
        let error = eventually(Duration::from_millis(20), std::future::pending::<Result<(), &str>>).await.unwrap_err();
        assert_eq!(error.looks, 1);
    }
}
