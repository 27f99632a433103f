//! B27: the watchdog survives errors and uses what is left of the lease.

use super::support::*;
use redlock_core::KeepAlive;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b27_freezes_and_busy_scripts_do_not_end_the_renewal() -> TestResult {
    let servers = five().await;
    let redlock = client(&servers).await;
    let guard = redlock.request("r").ttl(ms(3_000)).try_acquire().await?;
    redlock.settled().await;
    guard.keep_alive(KeepAlive::default());
    let lost = guard.lost_token();

    // Phases that are not those of the renewals.
    for pause in [350, 790, 130, 610, 470] {
        for frozen in 0..3 {
            servers[frozen].freeze()?;
        }
        tokio::time::sleep(ms(1_200)).await;
        for frozen in 0..3 {
            servers[frozen].thaw()?;
        }
        tokio::time::sleep(ms(pause)).await;
        assert!(guard.is_held(), "{:?}", guard.state());
    }

    servers[1].command(&["CONFIG", "SET", "busy-reply-threshold", "100"]).await?;
    let mut stuck = servers[1].probe();
    let endless = stuck.command(&["EVAL", "while true do end", "0"]);
    let end = async {
        tokio::time::sleep(ms(800)).await;
        servers[1].command(&["SCRIPT", "KILL"]).await
    };
    let (killed, end) = tokio::join!(endless, end);
    assert!(killed?.is_error() && !end?.is_error(), "the script was busy until it was killed");
    tokio::time::sleep(ms(1_500)).await;

    assert!(!lost.is_cancelled());
    assert!(guard.is_held(), "{:?}", guard.state());
    let ours =
        holders(&servers, "r").await.into_iter().flatten().filter(|value| value == guard.owner().expose()).count();
    assert!(3 <= ours, "{ours}");
    guard.release().await;
    assert_no_keys(&servers, ms(2_000)).await;
    Ok(())
}
