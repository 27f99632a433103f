//! B45: a wait keeps its deadline and can be cancelled, and its end says which it was.

use super::support::*;
use redlock_core::{AcquireError, NodeOutcome, Redlock, Retry};

const SLOW_RETRY: Retry = Retry { wait: ms(300), attempts: u32::MAX, delay: ms(2_000), jitter: ms(0) };

async fn held() -> (redlock_bench::Servers, Redlock, redlock_core::Guard) {
    let servers = five().await;
    let holder = client(&servers).await;
    let guard = holder.try_acquire("r").await.unwrap();
    // On all five: a straggler would be counted as this test's own call.
    holder.settled().await;
    let redlock = client(&servers).await;
    (servers, redlock, guard)
}

#[tokio::test]
async fn b45_no_wait_is_one_attempt() -> TestResult {
    let (servers, redlock, _guard) = held().await;
    let before = servers[0].probe().command_calls("evalsha").await?;
    let (took, result) = timed(redlock.request("r").wait(ms(0)).acquire()).await;
    assert!(is_contended(&result), "{result:?}");
    assert!(took < ms(300), "{took:?}");
    redlock.settled().await;
    // A node whose refusal was not heard any more, as others had decided, is sent a release as well.
    let Err(AcquireError::Contended(report)) = &result else { panic!("{result:?}") };
    let calls = if matches!(report.nodes[0].outcome, NodeOutcome::NotHeard) { 2 } else { 1 };
    assert_eq!(servers[0].probe().command_calls("evalsha").await?, before + calls, "{report}");
    Ok(())
}

#[tokio::test]
async fn b45_the_deadline_ends_a_pause() -> TestResult {
    let (servers, redlock, _guard) = held().await;
    for frozen in [None, Some(3), Some(4)] {
        if let Some(frozen) = frozen {
            servers[frozen].freeze()?;
        }
        let (took, result) = timed(redlock.request("r").retry(SLOW_RETRY).acquire()).await;
        let Err(AcquireError::TimedOut { last, attempts, .. }) = &result else { panic!("{result:?}") };
        assert!(ms(300) <= took && took < ms(1_000), "{took:?}");
        assert_eq!(*attempts, 2, "one at once, and one when the time was over");
        assert!(matches!(**last, AcquireError::Contended(_)), "{last:?}");
    }
    Ok(())
}

#[tokio::test]
async fn b45_a_cancelled_wait_says_so_at_once() -> TestResult {
    let (_servers, redlock, _guard) = held().await;
    let retry = Retry { wait: ms(60_000), ..SLOW_RETRY };
    let waiting = redlock.request("r").retry(retry).acquire_unless(tokio::time::sleep(ms(100)));
    let (took, result) = timed(waiting).await;
    assert!(matches!(result, Err(AcquireError::Cancelled { attempts: 1 })), "{result:?}");
    assert!(ms(100) <= took && took < ms(500), "{took:?}");
    Ok(())
}

#[tokio::test]
async fn b45_the_number_of_attempts_ends_a_wait_too() -> TestResult {
    let (_servers, redlock, _guard) = held().await;
    let retry = Retry { wait: ms(60_000), attempts: 3, delay: ms(1), jitter: ms(1) };
    let result = redlock.request("r").retry(retry).acquire().await;
    assert!(is_contended(&result), "{result:?}");
    Ok(())
}
