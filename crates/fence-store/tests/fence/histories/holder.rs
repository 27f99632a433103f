//! A holder at work: carries out what was planned for it, and notes what it is told.

use std::time::Duration;

use fence_store::{
    FenceError, FenceStore, Flavor, InsertSelect, Lent, Row, Settled, Ticket, Transaction, Upsert, Verdict,
};
use redlock_core::Grant;
use sea_query::{Expr, ExprTrait, Query, UpdateStatement};
use sqlx::AssertSqlSafe;

use super::plan::{End, Form, Guarded, Work};
use super::told::{Effect, Log, Told};
use crate::support::{TestDb, account};

/// How often a holder tries again after a conflict, or to learn what became of a write.
const TRIES_MAX: usize = 20;

/// One holder, for one work.
pub(super) struct Holder<'h, DB: TestDb> {
    store: &'h FenceStore<DB>,
    work: &'h Work,
    log: &'h Log,
    grant: Grant,
    guarded: Guarded,
    /// What was not acknowledged yet, and how to ask for it.
    ticket: std::sync::Mutex<Option<(usize, Ticket)>>,
}

/// Runs the planned form, and whatever is needed to settle what was lost on the way.
pub(super) async fn work<DB: TestDb>(store: &FenceStore<DB>, guarded: Guarded, work: &Work, log: &Log) {
    let names: Vec<String> = work.keys.iter().map(|key| format!("accounts/{key}")).collect();
    let grant = Grant::assume_granted(&names[..], work.token).unwrap();
    let holder = Holder { store, work, log, grant, guarded, ticket: std::sync::Mutex::default() };
    match work.drop_after {
        Some(polls) => drop(crate::support::polled(polls, holder.act()).await),
        None => holder.act().await,
    }
    holder.settle().await;
}

impl<DB: TestDb> Holder<'_, DB> {
    async fn act(&self) {
        let key = self.work.keys[0];
        match self.work.form {
            Form::Update => self.update(key).await,
            Form::UpdateTwice => {
                self.update(key).await;
                self.update(key).await;
            }
            Form::UpdateRows => self.rows(Effect::Put).await,
            Form::Upsert => self.upsert(key).await,
            Form::UpsertRows => self.rows(Effect::Put).await,
            Form::InsertSelect => self.insert_select().await,
            Form::Claim => self.claim(key, None).await,
            Form::ClaimAndUpdate => self.claim(key, Some(Effect::Put)).await,
            Form::ClaimAndDelete => self.claim(key, Some(Effect::Delete)).await,
            Form::ClaimResources => {
                let place = self.log.begin(self.work.token, self.each(Effect::Raise));
                let claimed = again(async || self.store.claim_resources(&self.grant).await).await;
                self.log.tell(place, Told::by(&claimed));
            }
            Form::Delete => self.delete(key).await,
            Form::DeleteRows => self.rows(Effect::Delete).await,
            Form::Transaction(end) => self.transaction(end).await,
            Form::Joined(end) => self.joined(end).await,
            Form::Run => self.run().await,
            Form::Unfenced => self.unfenced(key).await,
        }
    }

    fn each(&self, effect: Effect) -> Vec<(Effect, i64)> {
        self.work.keys.iter().map(|key| (effect, *key)).collect()
    }

    fn count_up(&self) -> UpdateStatement {
        Query::update().value("n", Expr::col("n").add(1)).value("balance", self.work.token).to_owned()
    }

    fn put(&self) -> Upsert {
        Upsert::new().value("balance", self.work.token).on_insert("n", 1).on_update("n", Expr::col("n").add(1))
    }

    async fn update(&self, key: i64) {
        let place = self.log.begin(self.work.token, [(Effect::Put, key)]);
        let told = again(async || self.store.update(&self.grant, &account(key), &self.count_up()).await).await;
        self.log.tell(place, Told::by(&told));
    }

    async fn upsert(&self, key: i64) {
        let place = self.log.begin(self.work.token, [(Effect::Put, key), (Effect::MayRaise, key)]);
        let told = again(async || self.store.upsert(&self.grant, &account(key), &self.put()).await).await;
        self.log.tell(place, Told::by(&told));
    }

    async fn delete(&self, key: i64) {
        let place = self.log.begin(self.work.token, [(Effect::Delete, key), (Effect::Raise, key)]);
        let told = again(async || self.store.delete(&self.grant, &account(key)).await).await;
        self.log.tell(place, Told::by(&told));
    }

    /// Many rows, and a verdict for each.
    async fn rows(&self, effect: Effect) {
        let places: Vec<usize> =
            self.work.keys.iter().map(|key| self.log.begin(self.work.token, [(effect, *key)])).collect();
        // The ledger is raised for all of them or for none.
        let raise = self.log.begin(self.work.token, self.each(Effect::Raise));
        let rows: Vec<Row> = self.work.keys.iter().map(|key| account(*key)).collect();
        let upserts: Vec<(Row, Upsert)> = rows.iter().map(|row| (row.clone(), self.put())).collect();
        let told = again(async || match self.work.form {
            Form::UpdateRows => self.store.update_rows(&self.grant, &rows, &self.count_up()).await,
            Form::UpsertRows => self.store.upsert_rows(&self.grant, &upserts).await,
            _ => self.store.delete_rows(&self.grant, &rows).await,
        })
        .await;
        let raised = if self.work.form == Form::UpdateRows { Told::Nothing } else { Told::by(&told) };
        self.log.tell(raise, raised);
        for (index, place) in places.into_iter().enumerate() {
            let verdict = told.as_ref().map(|verdicts| verdicts[index]);
            self.log.tell(
                place,
                match verdict {
                    Ok(Verdict::Applied) => Told::Applied,
                    Ok(Verdict::AlreadyWritten) => Told::AlreadyWritten,
                    Ok(Verdict::Stale { highest }) => Told::Stale(highest),
                    Ok(Verdict::NoSuchRow) => Told::NoSuchRow,
                    Err(_) => Told::by(&told),
                },
            );
        }
    }

    async fn insert_select(&self) {
        let effects = [self.each(Effect::Put), self.each(Effect::Raise)].concat();
        let place = self.log.begin(self.work.token, effects);
        let keys = self.work.keys.clone();
        let query = Query::select()
            .column("id")
            .exprs([Expr::val(self.work.token), 1.into()])
            .from("vault")
            .and_where(Expr::col("id").is_in(keys))
            .to_owned();
        let insert = InsertSelect::new("accounts", ["id", "balance", "n"], query);
        let told = again(async || self.store.insert_select(&self.grant, &insert).await).await;
        self.log.tell(place, Told::by(&told));
    }

    /// Reads under a claim, and writes what follows from what it read.
    async fn claim(&self, key: i64, then: Option<Effect>) {
        let place = self.log.begin(self.work.token, [(Effect::Claim, key), (Effect::MayRaise, key)]);
        let claimed = again(async || self.store.claim(&self.grant, &account(key), ["n"]).await).await;
        let claim = match claimed {
            Ok(claim) => claim,
            Err(error) => return self.log.tell(place, Told::by(&Err::<(), _>(error))),
        };
        let n = DB::integer(claim.row(), 0).unwrap().unwrap();
        self.log.tell(place, Told::Read(n));
        match then {
            Some(Effect::Delete) => {
                let place = self.log.begin(self.work.token, [(Effect::Delete, key), (Effect::Raise, key)]);
                let row = account(key).may_rewrite();
                let told = again(async || self.store.delete(&self.grant, &row).await).await;
                self.log.tell(place, Told::by(&told));
            }
            Some(_) => {
                let place = self.log.begin(self.work.token, [(Effect::Put, key)]);
                let write = Query::update().value("n", n + 1).value("balance", self.work.token).to_owned();
                let told = again(async || claim.update(&write).await).await;
                self.log.tell(place, Told::by(&told));
            }
            None => {}
        }
    }

    /// What a ledger transaction does here.
    fn effects(&self) -> Vec<(Effect, i64)> {
        let row = (Effect::Put, self.work.keys[0]);
        [self.each(Effect::Vault), self.each(Effect::Raise), vec![row]].concat()
    }

    async fn transaction(&self, end: End) {
        let place = self.log.begin(self.work.token, self.effects());
        let mut tries = 0;
        let told = loop {
            tries += 1;
            match self.try_transaction(place, end).await {
                Err(error) if error.is_conflict() && tries < TRIES_MAX => {}
                Ok(()) if end != End::Commit => break Told::Nothing,
                result => break Told::by(&result),
            }
        };
        self.log.tell(place, told);
    }

    async fn try_transaction(&self, place: usize, end: End) -> Result<(), FenceError> {
        let mut transaction = self.store.begin_with(&self.grant, self.work.isolation).await?;
        let ticket = transaction.ticket();
        self.write_within(&mut transaction).await?;
        match end {
            End::Commit => {
                *self.ticket.lock().unwrap() = Some((place, ticket));
                transaction.commit().await
            }
            End::Rollback => {
                transaction.rollback().await;
                Ok(())
            }
            End::Drop => Ok(()),
        }
    }

    /// Counts up what the ledger protects, from what it reads; and puts a row that has a fence of its own.
    async fn write_within(&self, transaction: &mut Transaction<DB>) -> Result<(), FenceError> {
        for key in &self.work.keys {
            let read = Query::select().column("n").from("vault").and_where(Expr::col("id").eq(*key)).to_owned();
            let n = DB::integer(&transaction.read(&read).await?[0], 0).unwrap().unwrap();
            transaction.run(&self.vault(*key, n)).await?;
        }
        transaction.upsert(&account(self.work.keys[0]), &self.put()).await?;
        Ok(())
    }

    fn vault(&self, key: i64, n: i64) -> UpdateStatement {
        Query::update()
            .table("vault")
            .value("n", n + 1)
            .value("writer", self.work.token)
            .and_where(Expr::col("id").eq(key))
            .to_owned()
    }

    async fn run(&self) {
        let place = self.log.begin(self.work.token, self.effects());
        let holder = Lent::new(self.grant.clone(), || Duration::from_secs(60));
        let running = self.store.running().isolation(self.work.isolation);
        let told =
            running.run(&holder, |mut transaction| async move { self.write_within(&mut transaction).await }).await;
        self.log.tell(place, Told::by(&told));
    }

    /// A transaction that sqlx has begun.
    async fn joined(&self, end: End) {
        let place = self.log.begin(self.work.token, self.effects());
        let mut tries = 0;
        let told = loop {
            tries += 1;
            match self.try_joined(place, end).await {
                Err(error) if error.is_conflict() && tries < TRIES_MAX => {}
                Ok(()) if end != End::Commit => break Told::Nothing,
                result => break Told::by(&result),
            }
        };
        self.log.tell(place, told);
    }

    async fn try_joined(&self, place: usize, end: End) -> Result<(), FenceError> {
        let mut callers = self.store.pool().begin().await?;
        let mut joined = self.store.join(&mut callers, &self.grant).await?;
        let ticket = joined.ticket();
        for key in &self.work.keys {
            let text = format!("UPDATE vault SET n = n + 1, writer = {} WHERE id = {key}", self.work.token);
            DB::execute(joined.connection(), AssertSqlSafe(text)).await?;
        }
        joined.upsert(&account(self.work.keys[0]), &self.put()).await?;
        drop(joined);
        match end {
            End::Commit => {
                *self.ticket.lock().unwrap() = Some((place, ticket));
                // Whatever goes wrong here, whether it was committed is asked for.
                callers.commit().await.map_err(|source| FenceError::Unknown { source })
            }
            End::Rollback => Ok(callers.rollback().await?),
            End::Drop => Ok(()),
        }
    }

    /// Sabotage: the statement without its condition, told as applied.
    async fn unfenced(&self, key: i64) {
        let place = self.log.begin(self.work.token, [(Effect::Put, key)]);
        let token = self.work.token;
        let text = format!("UPDATE accounts SET n = n + 1, balance = {token}, fence_token = {token} WHERE id = {key}");
        let mut connection = self.store.pool().acquire().await.unwrap();
        let told = DB::execute(&mut connection, AssertSqlSafe(text)).await;
        self.log.tell(
            place,
            told.map_or_else(
                |error| Told::by(&Err::<(), _>(error.into())),
                |result| {
                    if DB::rows_affected(&result) == 1 { Told::Applied } else { Told::Nothing }
                },
            ),
        );
    }

    /// Asks what became of what was lost, as the docs say: a commit by its ticket, a single row by writing it again under
    /// the strict rule.
    async fn settle(&self) {
        let ticket = self.ticket.lock().unwrap().take();
        if let Some((place, ticket)) = ticket.filter(|(place, _)| self.log.is_unknown(*place)) {
            for _ in 0..TRIES_MAX {
                match self.store.settle(&ticket).await {
                    Ok(Settled::Committed) => self.log.tell(place, Told::Applied),
                    Ok(Settled::NotCommitted) => self.log.tell(place, Told::Nothing),
                    Ok(Settled::Undecided | Settled::Superseded { .. }) => {}
                    Err(_) => continue,
                }
                break;
            }
        }
        let is_lost = self.log.deeds().last().is_some_and(|deed| deed.told == Told::Unknown);
        match self.work.form {
            Form::Update if is_lost => self.update(self.work.keys[0]).await,
            Form::Upsert if is_lost => self.upsert(self.work.keys[0]).await,
            Form::Delete if is_lost => self.delete(self.work.keys[0]).await,
            Form::Claim if is_lost && self.guarded != Guarded::Strictly => self.claim(self.work.keys[0], None).await,
            _ => {}
        }
    }
}

/// Tries again after a conflict, as a caller would.
async fn again<T>(mut write: impl AsyncFnMut() -> Result<T, FenceError>) -> Result<T, FenceError> {
    let mut tries = 1;
    loop {
        match write().await {
            Err(error) if error.is_conflict() && tries < TRIES_MAX => tries += 1,
            result => return result,
        }
    }
}

/// Kills the connection of a holder, if there is one at this place, in the middle of whatever it does.
pub(super) async fn kill<DB: TestDb>(observer: &FenceStore<DB>, place: u64) {
    let mut connection = observer.pool().acquire().await.unwrap();
    let sessions = match DB::FLAVOR {
        Flavor::Postgres => {
            "SELECT CAST(pid AS BIGINT) FROM pg_stat_activity WHERE datname = current_database() \
             AND pid <> pg_backend_pid() AND backend_type = 'client backend' ORDER BY pid"
        }
        Flavor::MySql => {
            "SELECT CAST(id AS SIGNED) FROM information_schema.processlist WHERE db = DATABASE() \
             AND id <> CONNECTION_ID() ORDER BY id"
        }
        _ => return,
    };
    let found = DB::fetch_all(&mut connection, sessions).await.unwrap();
    if found.is_empty() {
        return;
    }
    let index = usize::try_from(place).unwrap() % found.len();
    let id = DB::integer(&found[index], 0).unwrap().unwrap();
    let text = if DB::FLAVOR == Flavor::Postgres {
        format!("SELECT pg_terminate_backend({id}::int)")
    } else {
        format!("KILL {id}")
    };
    // It may be gone already.
    let _ = DB::execute(&mut connection, AssertSqlSafe(text)).await;
}
