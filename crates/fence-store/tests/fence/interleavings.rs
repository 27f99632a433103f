//! Two holders, every order of begin, write and commit, every isolation level.

use fence_store::{FenceError, FenceStore, Isolation};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::JoinHandle;

use crate::support::{Bench, ISOLATIONS, TestDb, grant, grant_of, on_every_database};

on_every_database! {
    two_tokens_in_every_interleaving_postgres
    two_tokens_in_every_interleaving_mariadb
    two_tokens_in_every_interleaving_sqlite
        => every_interleaving;
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Begin,
    Write,
    Commit,
}

/// The order in which the old holder (token 1) and the new one (token 2) take their steps, as `true` for the new one.
fn schedules() -> Vec<Vec<bool>> {
    (0_u8..64)
        .filter(|bits| bits.count_ones() == 3)
        .map(|bits| (0..6).map(|step| bits >> step & 1 == 1).collect())
        .collect()
}

async fn every_interleaving<DB: TestDb>() {
    let schedules = schedules();
    assert_eq!(schedules.len(), 20);
    let bench = Bench::<DB>::new(4).await;
    let mut id = 0;
    for isolation in ISOLATIONS {
        for schedule in &schedules {
            id += 1;
            bench.insert_account(id, 0).await;
            let verdicts = play(&bench.store, isolation, schedule, id).await;
            // Whoever begins first holds the ledger row until it commits; the other one comes after it.
            let new_first = schedule[0];
            let context = format!("{isolation:?} {schedule:?} {verdicts:?}");
            let [old, new] = verdicts;
            assert!(new.is_ok(), "{context}");
            if new_first {
                assert!(matches!(old, Err(FenceError::Stale { highest: 2, .. })), "{context}");
            } else {
                assert!(old.is_ok(), "{context}");
            }
            assert_eq!(bench.balance(id).await, Some(2), "{context}");
        }
    }
    bench.store.claim_resources(&grant(1)).await.unwrap();
}

/// Plays one schedule. A holder takes its steps in order, and may be kept waiting by the database; the schedule goes on.
async fn play<DB: TestDb>(
    store: &FenceStore<DB>,
    isolation: Isolation,
    schedule: &[bool],
    id: i64,
) -> [Result<(), FenceError>; 2] {
    let mut holders = [1, 2].map(|token| Holder::start(store.clone(), isolation, token, id));
    let first = usize::from(schedule[0]);
    let mut given = [0, 0];
    for is_new in schedule {
        let index = usize::from(*is_new);
        let step = [Step::Begin, Step::Write, Step::Commit][given[index]];
        given[index] += 1;
        holders[index].steps.send(step).unwrap();
        // The first one is never kept waiting. The second one is, until the first one has committed; then it takes all
        // the steps that it has been given.
        if index == first {
            holders[index].done.recv().await.unwrap();
        } else if given[first] == 3 {
            for _ in holders[index].taken..given[index] {
                holders[index].done.recv().await.unwrap();
            }
            holders[index].taken = given[index];
        }
    }
    let [old, new] = holders;
    [old.end().await, new.end().await]
}

struct Holder {
    steps: UnboundedSender<Step>,
    done: UnboundedReceiver<()>,
    taken: usize,
    task: JoinHandle<Result<(), FenceError>>,
}

impl Holder {
    fn start<DB: TestDb>(store: FenceStore<DB>, isolation: Isolation, token: i64, id: i64) -> Self {
        let (steps, mut orders) = unbounded_channel();
        let (done_sender, done) = unbounded_channel();
        let work = async move {
            let mut transaction = None;
            let mut verdict = Ok(());
            while let Some(step) = orders.recv().await {
                if verdict.is_ok() {
                    verdict = match step {
                        Step::Begin => store
                            .begin_with(&grant_of(&id.to_string(), token), isolation)
                            .await
                            .map(|begun| transaction = Some(begun)),
                        Step::Write => {
                            let write = format!("UPDATE accounts SET balance = {token} WHERE id = {id}");
                            let transaction = transaction.as_mut().expect("begun before");
                            transaction.execute(sqlx::AssertSqlSafe(write)).await.map(|_| ())
                        }
                        Step::Commit => transaction.take().expect("begun before").commit().await,
                    };
                }
                let _ = done_sender.send(());
            }
            verdict
        };
        #[expect(clippy::disallowed_methods, reason = "the holder's own thread of control; `end` awaits it")]
        let task = tokio::spawn(work);
        Self { steps, done, taken: 0, task }
    }

    async fn end(self) -> Result<(), FenceError> {
        drop(self.steps);
        self.task.await.unwrap()
    }
}
