//! Chaos as a test: a run with every kind of fault, and one that shows what the fence is for.

use std::path::{Path, PathBuf};
use std::time::Duration;

use redlock_chaos::check::Finding;
use redlock_chaos::fault::Kind;
use redlock_chaos::run::{Options, run};
use redlock_chaos::timeline;
use redlock_chaos::verdict::Verdict;

/// What there is against stale writes, and against nodes that forget.
#[derive(PartialEq, Eq)]
enum Fence {
    None,
    Alone,
    AndGuard,
}

/// Runs it and leaves history and timeline where whoever reads a failure finds them.
async fn chaos(name: &str, seconds: u64, fence: Fence, kinds: &[Kind]) -> (Verdict, PathBuf) {
    let program = PathBuf::from(env!("CARGO_BIN_EXE_chaos"));
    let (fenced, guarded) = (fence != Fence::None, fence == Fence::AndGuard);
    let options =
        Options { seed: 1, length: Duration::from_secs(seconds), fenced, guarded, kinds: kinds.to_vec(), program };
    let history = run(&options, |_| {}).await.unwrap();
    let verdict = Verdict::of(&history);
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("history.json"), serde_json::to_vec(&history).unwrap()).unwrap();
    std::fs::write(folder.join("timeline.html"), timeline::page(&history, &verdict)).unwrap();
    (verdict, folder)
}

/// Two minutes less what it takes to start and to judge.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn chaos_of_two_minutes_breaks_no_promise() {
    let (verdict, folder) = chaos("two-minutes", 105, Fence::Alone, &Kind::ALL).await;
    assert!(verdict.is_good(), "{verdict}\nsee {}", folder.display());
    // A verdict on nothing would be good, too.
    assert_eq!(verdict.never().collect::<Vec<_>>(), [], "{verdict}");
    assert!(100 <= verdict.counts.granted, "{verdict}");
    assert!(100 <= verdict.counts.rows, "{verdict}");
    assert!(1 <= verdict.counts.stale, "no late holder wrote, so the fence was not tested: {verdict}");
    assert!(1 <= verdict.counts.lost, "{verdict}");
    // An observer that sees next to nothing finds nothing. Holds may be shorter than its period.
    assert!(verdict.counts.granted / 2 <= verdict.counts.seen, "{verdict}");
}

/// Kleppmann's scenario has to come about when nothing prevents it: a holder is frozen past the end of its lock, another one
/// reads and writes, the first one wakes up and writes over it. The same clients, the same lock, without the fence.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn chaos_without_the_fence_shows_the_double_write() {
    let (verdict, folder) = chaos("without-fence", 20, Fence::None, &[Kind::FreezeClient]).await;
    assert!(verdict.trouble.is_empty(), "{verdict}");
    let found = |what: &str| {
        let about = |finding: &&Finding| finding.what.contains(what);
        assert!(verdict.violations().any(|finding| about(&finding)), "{what}: {verdict}\nsee {}", folder.display());
    };
    found("a stale write was applied");
    found("an update was lost");
    // And nothing else: what the freezes break is what the fence is for.
    assert!(verdict.violations().all(|finding| finding.promise == "P3"), "{verdict}");
}

/// P6: with the crash-recovery guard on, nodes that forget excuse neither two holders nor tokens that fall.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn chaos_with_the_guard_excuses_no_node_that_forgets() {
    let forgetting = [Kind::RestartEmpty, Kind::CutTail, Kind::FlushAll, Kind::RestartWithData];
    let others = [Kind::FreezeServer, Kind::FreezeClient, Kind::KillClient, Kind::Loss];
    let (verdict, folder) = chaos("guard", 45, Fence::AndGuard, &[&forgetting[..], &others].concat()).await;
    assert!(verdict.is_good(), "{verdict}\nsee {}", folder.display());
    assert_eq!(verdict.findings, [], "no excuse counts: {verdict}");
    assert_eq!(verdict.never().collect::<Vec<_>>(), [], "{verdict}");
    assert!(50 <= verdict.counts.granted, "{verdict}");
}
