//! Cases that hold for every form of write: each is tried on all of them, which [`crate::forms`] lists.
//!
//! What one form does in particular is tested elsewhere; here it is that none of them was forgotten.

#![expect(
    clippy::future_not_send,
    reason = "writers take turns on one thread; it is the database that runs them at once"
)]

use fence_store::{FenceStore, Flavor, Isolation, LedgerTable};
use futures_util::FutureExt;
use futures_util::future::join_all;
use redlock_core::FencingToken;
use sqlx::AssertSqlSafe;

use crate::forms::{Form, Target, Told, What, Writes, forms};
use crate::support::{Bench, ISOLATIONS, grant_of, on_every_database};
use crate::tokens::unfit_columns;

on_every_database! {
    b57_every_form_keeps_tokens_exactly_postgres
    b57_every_form_keeps_tokens_exactly_mariadb
    b57_every_form_keeps_tokens_exactly_sqlite
        => tokens_are_kept_exactly;
    b57_every_form_refuses_a_column_that_cannot_hold_tokens_postgres
    b57_every_form_refuses_a_column_that_cannot_hold_tokens_mariadb
    b57_every_form_refuses_a_column_that_cannot_hold_tokens_sqlite
        => unfit_columns_are_refused;
    b59_every_form_tells_a_refusal_from_a_hit_postgres
    b59_every_form_tells_a_refusal_from_a_hit_mariadb
    b59_every_form_tells_a_refusal_from_a_hit_sqlite
        => refusals_are_told;
    b59_every_form_agrees_with_a_serial_replay_postgres
    b59_every_form_agrees_with_a_serial_replay_mariadb
    b59_every_form_agrees_with_a_serial_replay_sqlite
        => shuffled_tokens;
    b61_every_form_refuses_a_stale_token_on_an_old_snapshot_postgres
    b61_every_form_refuses_a_stale_token_on_an_old_snapshot_mariadb
    b61_every_form_refuses_a_stale_token_on_an_old_snapshot_sqlite
        => old_snapshots;
    b65_every_form_that_waits_in_vain_is_rolled_back_as_a_whole_postgres
    b65_every_form_that_waits_in_vain_is_rolled_back_as_a_whole_mariadb
    b63_every_form_that_finds_the_file_busy_for_long_is_in_conflict_sqlite
        => waits_in_vain;
    b67_first_writes_in_every_form_in_a_crowd_postgres
    b67_first_writes_in_every_form_in_a_crowd_mariadb
    b67_first_writes_in_every_form_in_a_crowd_sqlite
        => first_writes;
}

/// How often a writer who was in conflict writes again.
const TRIES_MAX: usize = 20;

/// With `source`, from which rows are inserted.
pub(crate) async fn bench<DB: Writes>(connections: u32) -> Bench<DB> {
    let bench = Bench::<DB>::new(connections).await;
    furnish(&bench).await;
    bench
}

async fn furnish<DB: Writes>(bench: &Bench<DB>) {
    bench.sql("CREATE TABLE source (place BIGINT NOT NULL PRIMARY KEY)").await;
    bench.sql("INSERT INTO source VALUES (0), (1)").await;
}

/// Tokens beyond 32 bits, and the highest of all; and one less, which would be the same if either were rounded.
async fn tokens_are_kept_exactly<DB: Writes>() {
    let bench = bench::<DB>(2).await;
    for (form, number) in forms::<DB>() {
        for (round, token) in (0..).zip([i64::from(u32::MAX) + 1, FencingToken::MAX.get() - 1, FencingToken::MAX.get()])
        {
            let target = Target::new(10 * number + round);
            target.prepare(&bench, form, 0).await;
            assert_eq!(form.write(&bench.store, &target.grant(token), &target).await, Told::Applied, "{form:?}");
            if form.writes_row_fences() && !form.deletes() {
                assert!(target.all(&bench, form, &format!("fence_token = {token}")).await, "{form:?}: {token}");
            } else {
                assert_eq!(target.ledger(&bench).await, Some(token), "{form:?}");
            }
            let late = form.write(&bench.store, &target.grant(token - 1), &target).await;
            assert_eq!(late, Told::Stale { presented: token - 1, highest: token }, "{form:?}");
        }
    }
    for negative in ["accounts WHERE fence_token < 0", "fence_ledger WHERE token < 0"] {
        assert_eq!(bench.number(format!("SELECT COUNT(*) FROM {negative}")).await, Some(0), "{negative}");
    }
}

/// As people write them by hand: the fence of rows, or the ledger's token.
async fn unfit_columns_are_refused<DB: Writes>() {
    let bench = bench::<DB>(2).await;
    for (number, column) in (0..).zip(unfit_columns(DB::FLAVOR)) {
        let (table, ledger) = (format!("rows_{number}"), format!("ledger_{number}"));
        bench
            .sql(format!(
                "CREATE TABLE {table} (id BIGINT PRIMARY KEY, balance BIGINT, n BIGINT, fence_token {column} NOT NULL \
                 DEFAULT 0)"
            ))
            .await;
        bench
            .sql(format!(
                "CREATE TABLE {ledger} (resource VARCHAR(100) PRIMARY KEY, token {column} NOT NULL DEFAULT 0, \
                 transaction_id BIGINT NOT NULL DEFAULT 0, raised_at VARCHAR(100))"
            ))
            .await;
        let ledger = LedgerTable::new(&ledger).unwrap();
        let mut writes = 0;
        for (form, place) in forms::<DB>() {
            let mut target = Target::new(place);
            let told = if form.writes_row_fences() {
                target.table.clone_from(&table);
                bench.sql(format!("INSERT INTO {table} (id, balance, n) VALUES ({}, 0, 0)", target.id)).await;
                writes += 1;
                form.write(&bench.store, &target.grant(1 << 40), &target).await
            } else {
                let store = FenceStore::with_ledger(bench.store.pool().clone(), ledger.clone());
                form.write(&store, &target.grant(1 << 40), &target).await
            };
            assert_eq!(told, Told::Column, "{form:?}: {column}");
        }
        let untouched = format!("SELECT COUNT(*) FROM {table} WHERE balance = 0 AND n = 0");
        assert_eq!(bench.number(untouched).await, Some(writes), "{column}");
        assert_eq!(bench.number(format!("SELECT COUNT(*) FROM {ledger}")).await, Some(0), "{column}");
    }
    assert_eq!(bench.number("SELECT COUNT(*) FROM accounts").await, Some(0));
}

/// Fence and ledger at 10; then 9, 10 and 11, each on rows of its own.
async fn refusals_are_told<DB: Writes>() {
    let bench = bench::<DB>(2).await;
    for (form, number) in forms::<DB>() {
        for (round, may_rewrite) in [(0, false), (5, true)] {
            // A claim may be repeated, and what has no fence of its own is the business of its transaction.
            let is_strict = form.has_row_fences()
                && !may_rewrite
                && !matches!(form.what, What::ClaimAndUpdate | What::ClaimAndDelete);
            let again = if is_strict { Told::AlreadyWritten } else { Told::Applied };
            let stale = Told::Stale { presented: 9, highest: 10 };
            for (step, token, expected) in [(0, 9, stale), (1, 10, again), (2, 11, Told::Applied)] {
                let target = Target { may_rewrite, ..Target::new(10 * number + round + step) };
                target.prepare(&bench, form, 10).await;
                let told = form.write(&bench.store, &target.grant(token), &target).await;
                assert_eq!(told, expected, "{form:?}, {token} after 10, may rewrite: {may_rewrite}");

                let context = format!("{form:?}, {token} after 10, which is {told:?}");
                let is_applied = told == Told::Applied;
                if form.deletes() {
                    assert_eq!(target.none(&bench, form).await, is_applied, "{context}");
                } else if form.counts() {
                    let (n, balance) = if is_applied { (1, token) } else { (0, 0) };
                    assert!(target.all(&bench, form, &format!("n = {n} AND balance = {balance}")).await, "{context}");
                } else if form.what == What::InsertSelect {
                    assert_eq!(target.all(&bench, form, &format!("balance = {token}")).await, is_applied, "{context}");
                }
                let raises = !form.has_row_fences() || (is_applied && form.deletes());
                let highest = if raises { token.max(10) } else { target.ledger(&bench).await.unwrap() };
                assert_eq!(target.ledger(&bench).await, Some(highest), "{context}");
            }
        }
    }
}

/// What one writer of a crowd was told, token by token.
type Tales = Vec<(i64, Told)>;

/// Lets clients write one target, each all of its tokens in their order.
async fn crowd<DB: Writes>(store: &FenceStore<DB>, form: Form, target: &Target, tokens: &[Vec<i64>]) -> Vec<Tales> {
    let clients = tokens.iter().map(async |tokens| {
        let mut tales = Tales::new();
        for token in tokens {
            let grant = target.grant(*token);
            let mut told = form.write(store, &grant, target).await;
            for _ in 1..TRIES_MAX {
                if told != Told::Conflict {
                    break;
                }
                told = form.write(store, &grant, target).await;
            }
            tales.push((*token, told));
        }
        tales
    });
    join_all(clients).await
}

/// Holds what a crowd was told against what is there.
async fn judge<DB: Writes>(bench: &Bench<DB>, form: Form, target: &Target, was_there: bool, crowd: &[Tales]) {
    let highest = crowd.iter().flatten().map(|(token, _)| *token).max().unwrap();
    let context = format!("{form:?}, row there: {was_there}, told {crowd:?}");
    let mut applied = Vec::new();
    for tales in crowd {
        let mut own = Vec::new();
        for (token, told) in tales {
            match told {
                Told::Applied => own.push(*token),
                Told::Stale { presented, highest } => assert!(presented == token && token < highest, "{context}"),
                Told::NoSuchRow => assert!(!was_there || form.deletes(), "{context}"),
                other => panic!("{other:?}: {context}"),
            }
        }
        assert!(own.is_sorted(), "one client's writes, in order: {context}");
        applied.extend(own);
    }

    let writes_the_last = was_there || form.inserts() || form.what == What::ClaimResources;
    if form.deletes() {
        assert_eq!(applied.len(), usize::from(was_there), "{context}");
        assert!(target.none(bench, form).await, "{context}");
    } else if form.what == What::InsertSelect {
        // Once they are there, there is nothing to insert.
        assert_eq!(applied.len(), 1, "{context}");
        let written = format!("balance = {0} AND fence_token = {0}", applied[0]);
        assert!(target.all(bench, form, &written).await, "{context}");
    } else if !writes_the_last {
        assert_eq!(applied, Vec::<i64>::new(), "{context}");
        assert!(target.none(bench, form).await, "{context}");
    } else {
        assert!(applied.contains(&highest), "{context}");
    }
    if form.counts() && writes_the_last {
        // Whoever was told "applied" was counted by the row, and nobody else was.
        let written = format!("n = {} AND balance = {highest}", applied.len());
        assert!(target.all(bench, form, &written).await, "{context}");
        if form.has_row_fences() {
            assert!(target.all(bench, form, &format!("fence_token = {highest}")).await, "{context}");
        }
    }
    if !form.has_row_fences() || (!was_there && form.remembers_what_is_absent()) {
        assert_eq!(target.ledger(bench).await, Some(highest), "{context}");
    }
}

const CLIENTS: i64 = 8;
const TOKENS: i64 = 40;

async fn shuffled_tokens<DB: Writes>() {
    let bench = bench::<DB>(8).await;
    // 7 is prime to 40: a permutation, different neighbours in each client.
    let token = |client, step| (client + step * CLIENTS) * 7 % TOKENS + 1;
    let tokens: Vec<Vec<i64>> =
        (0..CLIENTS).map(|client| (0..TOKENS / CLIENTS).map(|step| token(client, step)).collect()).collect();
    for (form, number) in forms::<DB>() {
        let target = Target::new(number);
        target.prepare(&bench, form, 0).await;
        let crowd = crowd(&bench.store, form, &target, &tokens).await;
        judge(&bench, form, &target, form.finds_a_row(), &crowd).await;
    }
}

const CROWD: i64 = 16;
const RESOURCES: i64 = 2;

async fn first_writes<DB: Writes>() {
    let bench = bench::<DB>(u32::try_from(CROWD).unwrap()).await;
    crowds_of_first_writers(&bench).await;
}

/// In each form, holders of all tokens write at once what is not there under a resource that the ledger does not know.
pub(crate) async fn crowds_of_first_writers<DB: Writes>(bench: &Bench<DB>) {
    let tokens: Vec<Vec<i64>> = (1..=CROWD).map(|token| vec![token]).collect();
    for (form, number) in forms::<DB>() {
        for round in 0..RESOURCES {
            let target = Target::new(10 * number + round);
            let crowd = crowd(&bench.store, form, &target, &tokens).await;
            judge(bench, form, &target, false, &crowd).await;
        }
    }
}

/// On its own server, whose log nobody else writes to.
#[cfg(feature = "postgres")]
#[test]
fn b67_first_writes_in_every_form_make_no_noise_in_the_log_postgres() {
    crate::support::run(async {
        let server = redlock_bench::sql::Postgres::start().unwrap();
        let (url, _) = crate::support::database_on::<sqlx::Postgres>(server.url()).await;
        let bench = Bench::<sqlx::Postgres>::on(url, u32::try_from(CROWD).unwrap()).await;
        furnish(&bench).await;
        crowds_of_first_writers(&bench).await;
        bench.store.pool().close().await;
        let log = server.log();
        let noise: Vec<_> = log.lines().filter(|line| line.contains("ERROR") || line.contains("deadlock")).collect();
        assert_eq!(noise, Vec::<&str>::new());
    });
}

/// What each connection of an old holder begins with, so that whatever transaction it opens has an old snapshot.
fn settings(flavor: Flavor) -> Vec<(Isolation, &'static str)> {
    use Isolation::{ReadCommitted, RepeatableRead, Serializable};
    match flavor {
        Flavor::Postgres => vec![
            (ReadCommitted, "SET default_transaction_isolation = 'read committed'"),
            (RepeatableRead, "SET default_transaction_isolation = 'repeatable read'"),
            (Serializable, "SET default_transaction_isolation = 'serializable'"),
        ],
        Flavor::MySql => vec![
            (ReadCommitted, "SET innodb_snapshot_isolation = OFF, tx_isolation = 'READ-COMMITTED'"),
            (RepeatableRead, "SET innodb_snapshot_isolation = OFF, tx_isolation = 'REPEATABLE-READ'"),
            (Serializable, "SET innodb_snapshot_isolation = OFF, tx_isolation = 'SERIALIZABLE'"),
            (ReadCommitted, "SET innodb_snapshot_isolation = ON, tx_isolation = 'READ-COMMITTED'"),
            (RepeatableRead, "SET innodb_snapshot_isolation = ON, tx_isolation = 'REPEATABLE-READ'"),
            (Serializable, "SET innodb_snapshot_isolation = ON, tx_isolation = 'SERIALIZABLE'"),
            // Where a read on its own opens a transaction too.
            (RepeatableRead, "SET innodb_snapshot_isolation = OFF, tx_isolation = 'REPEATABLE-READ', autocommit = 0"),
            (RepeatableRead, "SET innodb_snapshot_isolation = ON, tx_isolation = 'REPEATABLE-READ', autocommit = 0"),
        ],
        _ => vec![(Serializable, "PRAGMA busy_timeout = 5000")],
    }
}

/// An old holder (7) reads, a newer one (8) writes, the old one writes. Where rows have fences of their own, it holds
/// another resource, so that the ledger is not what stands between.
async fn old_snapshots<DB: Writes>() {
    let bench = bench::<DB>(2).await;
    let settings = settings(DB::FLAVOR);
    assert!(
        DB::FLAVOR == Flavor::Sqlite || ISOLATIONS.iter().all(|one| settings.iter().any(|(level, _)| level == one))
    );
    for ((isolation, first), round) in settings.into_iter().zip(0..) {
        let old = bench.another(1, Some(first)).await;
        for (form, number) in forms::<DB>() {
            let context = format!("{form:?} after {first}");
            let target = Target::new(10 * number + round);
            target.prepare(&bench, form, 0).await;
            let resource =
                if form.has_row_fences() { format!("elsewhere/{}", target.id) } else { target.resource.clone() };
            let grant = grant_of(&resource, 7);
            let happens = {
                let (store, target) = (bench.store.clone(), target.clone());
                move || {
                    let (store, target) = (store.clone(), target.clone());
                    async move { newer_holder(&store, form, &target).await }.boxed_local()
                }
            };
            let mut told = form.write_disturbed(&old, &grant, &target, isolation, &happens).await;
            if told == Told::Conflict {
                let is_expected = isolation != Isolation::ReadCommitted;
                assert!(is_expected, "{context}: at read committed everybody sees the newest");
                told = form.write(&old, &grant, &target).await;
            }
            assert_eq!(told, Told::Stale { presented: 7, highest: 8 }, "{context}");
            if form.finds_a_row() {
                assert!(target.all(&bench, form, "n = 1 AND balance = 8").await, "{context}");
            } else {
                assert!(target.none(&bench, form).await, "{context}");
            }
        }
    }
}

/// Writes the target under 8, once: rows, and the ledger of its resource. Rows that the old one would insert it deletes.
async fn newer_holder<DB: Writes>(store: &FenceStore<DB>, form: Form, target: &Target) {
    let write = if form.finds_a_row() { What::UpdateRows } else { What::DeleteRows };
    let write = Form { what: write, place: crate::forms::Place::Store };
    match write.write(store, &target.grant(8), target).await {
        Told::Applied | Told::NoSuchRow => {}
        // Work that is run again meets it again.
        Told::AlreadyWritten => return,
        other => panic!("{form:?}: the newer holder was told {other:?}"),
    }
    store.claim_resources(&target.grant(8)).await.unwrap();
}

/// How long a writer waits here for what is locked.
fn impatience(flavor: Flavor) -> &'static str {
    match flavor {
        Flavor::Postgres => "SET lock_timeout = '200ms'",
        Flavor::MySql => "SET SESSION innodb_lock_wait_timeout = 1",
        _ => "PRAGMA busy_timeout = 50",
    }
}

/// Somebody sits on what all of them write: rows, absent rows, ledger rows, or the file. InnoDB undoes only the statement
/// then, and leaves the transaction open, with the ledger raised in it.
async fn waits_in_vain<DB: Writes>() {
    let bench = bench::<DB>(2).await;
    let targets: Vec<(Form, Target)> = forms::<DB>().map(|(form, number)| (form, Target::new(number))).collect();
    for (form, target) in &targets {
        target.prepare(&bench, *form, 0).await;
    }
    let impatient = bench.another(16, Some(impatience(DB::FLAVOR))).await;
    let mut sitting = bench.store.pool().acquire().await.unwrap();
    let begin = if DB::FLAVOR == Flavor::Sqlite { "BEGIN IMMEDIATE" } else { "BEGIN" };
    DB::execute(&mut sitting, begin).await.unwrap();
    DB::execute(&mut sitting, "UPDATE accounts SET balance = 9").await.unwrap();
    for (form, target) in &targets {
        let insert = match form.what {
            What::InsertSelect => format!("INSERT INTO accounts (id) VALUES ({})", target.id),
            What::ClaimResources => format!("INSERT INTO fence_ledger (resource) VALUES ('{}')", target.resource),
            _ => continue,
        };
        DB::execute(&mut sitting, AssertSqlSafe(insert)).await.unwrap();
    }

    let write = async |(form, target): &(Form, Target)| form.write(&impatient, &target.grant(1), target).await;
    let told = join_all(targets.iter().map(write)).await;
    for ((form, _), told) in targets.iter().zip(told) {
        assert_eq!(told, Told::Conflict, "{form:?}");
    }
    DB::execute(&mut sitting, "ROLLBACK").await.unwrap();
    drop(sitting);

    // Nothing of them was kept, not even the raise, and nothing is open any more.
    assert_eq!(DB::open_transactions(bench.store.pool()).await, 0);
    for touched in ["accounts WHERE n <> 0 OR balance <> 0 OR fence_token <> 0", "fence_ledger"] {
        assert_eq!(bench.number(format!("SELECT COUNT(*) FROM {touched}")).await, Some(0), "{touched}");
    }
    // The connections are as good as before.
    for written in &targets {
        assert_eq!(write(written).await, Told::Applied, "{:?}", written.0);
    }
}
