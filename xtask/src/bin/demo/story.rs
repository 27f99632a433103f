//! The story, step by step. Each step does something, looks at what came of it, and fails if that is not as it must be.

use std::error::Error;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use fence_store::Flavor;
use redlock_core::{
    AcquireError, Guard, Holder as LockHolder, NodeOutcome, OsRandomness, Randomness, Redlock, Remaining, Report,
};
use tempfile::TempDir;
use tokio::time::Instant;

use crate::address::shown;
use crate::database::{ACCOUNT, Accounts, OPENING_BALANCE, Place};
use crate::facts::{Facts, GrantFacts, Holder as Who, Refusal, in_words};
use crate::holder::{Holder, Orders, Word};
use crate::nodes::{Nodes, PREFIX};
use crate::options::Options;
use crate::telling::{Telling, duration, setting};

/// How long B's locks live. Nobody waits for one to run out.
const TTL: Duration = Duration::from_secs(10);

/// How long a node may take to answer B. Long, as a busy machine is no outage; a node that is down refuses at once.
const NODE_TIMEOUT: Duration = Duration::from_secs(2);

/// How long B waits for the lock: for A's to run out, and for servers that have just come back.
const WAIT: Duration = Duration::from_secs(20);

/// The pause between two tries to lock on all nodes.
const PAUSE: Duration = Duration::from_millis(50);

/// What B adds to the balance each time.
const DEPOSIT: i64 = 10;

/// What the story is played on. Dropping it ends all processes and removes all files.
pub(crate) struct Stage {
    nodes: Nodes,
    place: Place,
    accounts: Box<dyn Accounts>,
    resource: String,
    /// For the database, if none was given.
    _folder: TempDir,
}

impl Stage {
    /// Gets everything ready, and says what it is.
    pub(crate) async fn set(options: &Options, telling: &Telling, facts: &mut Facts) -> Result<Self> {
        let run = random_name();
        let folder = tempfile::Builder::new().prefix("redlock-demo-").tempdir().context("a temporary folder")?;
        let nodes = match &options.nodes {
            Some(urls) => Nodes::given(urls).await?,
            None => Nodes::start().await?,
        };
        let place = Place::new(options.database.as_deref(), folder.path(), &run)?;
        let accounts = place.connect().await?;

        facts.nodes = nodes.labels().len();
        facts.node_kind = nodes.kind();
        facts.node_names = nodes.labels().to_vec();
        let (kind, database) = match accounts.flavor() {
            Flavor::Postgres => ("postgres", "Postgres"),
            Flavor::MySql => ("mysql", "MySQL or MariaDB"),
            _ => ("sqlite", "SQLite"),
        };
        facts.database = kind;

        let number = in_words(nodes.labels().len());
        telling.title("A lock that a quorum grants, and a database that has the last word");
        let names = nodes.labels().join(", ");
        match nodes.kind() {
            "given" => telling.item("the nodes", &format!("{number} given servers, each behind a relay: {names}")),
            "redis" => telling.item("the nodes", &format!("{number} Redis servers, started for this: {names}")),
            _ => {
                telling.item("the nodes", &format!("{number} in-memory nodes, each behind a port of its own: {names}"))
            }
        }
        if let Some(why) = nodes.why_in_memory() {
            telling.item("", why);
            if options.json {
                eprintln!("in-memory nodes: {why}");
            }
        }
        match &options.database {
            Some(url) => telling.item("the database", &format!("{database} at {}", shown(url))),
            None => telling.item("the database", &format!("{database}, a file in a temporary folder")),
        }
        telling.item("at stake", &format!("account {ACCOUNT}, with a balance of {OPENING_BALANCE}"));

        let resource = nodes.resource(&run);
        Ok(Self { nodes, place, accounts, resource, _folder: folder })
    }

    /// Removes what others would find otherwise: the tables.
    pub(crate) async fn clear(self) -> Result<()> {
        self.accounts.remove().await
    }
}

/// Tells it from the first step to the last.
pub(crate) async fn tell(stage: &Stage, telling: &Telling, facts: &mut Facts) -> Result<()> {
    let redlock = Redlock::builder()
        .nodes(stage.nodes.way().connect().await?)
        .key_prefix(PREFIX)
        .ttl(TTL)
        .node_timeout(NODE_TIMEOUT)
        .wait(WAIT)
        .build()?;
    stage.accounts.open().await.context("making the tables")?;

    let alive = vec![true; stage.nodes.labels().len()];
    let (balance, step, title) = (OPENING_BALANCE, 0, String::new());
    let mut story = Story { stage, telling, facts, redlock, alive, balance, step, title };
    let outcome = story.play().await;
    outcome.with_context(|| format!("step {}, {}", story.step, story.title))
}

struct Story<'a> {
    stage: &'a Stage,
    telling: &'a Telling,
    facts: &'a mut Facts,
    /// B's client.
    redlock: Redlock,
    alive: Vec<bool>,
    /// What the account must hold.
    balance: i64,
    step: usize,
    title: String,
}

impl Story<'_> {
    async fn play(&mut self) -> Result<()> {
        let mut a = self.a_is_granted().await?;
        let frozen_at = self.a_is_frozen(&a)?;
        let guard = self.b_waits().await?;
        self.b_writes(guard).await?;
        self.a_writes_late(&mut a, frozen_at).await?;
        a.end().await?;

        // Of five nodes two may be down, of three one.
        let minority = self.alive.len() - self.quorum();
        if 0 < minority {
            self.locking_goes_on_without(minority).await?;
        }
        self.no_quorum_is_left().await?;
        self.the_nodes_come_back().await?;
        self.nothing_is_left().await
    }

    async fn a_is_granted(&mut self) -> Result<Holder> {
        self.begin("A is granted the lock");
        let orders = Orders {
            way: self.stage.nodes.way(),
            resource: self.stage.resource.clone(),
            place: self.stage.place.clone(),
        };
        let mut a = Holder::start(&orders)?;
        let Word::Granted(grant) = a.word().await? else { bail!("A did not say that it was granted the lock") };
        self.note(grant)?;
        let Word::Claimed { balance } = a.word().await? else { bail!("A did not say that it claimed the account") };
        ensure!(balance == self.balance, "A read {balance} in place of {}", self.balance);
        let Word::Checked { remaining_ms } = a.word().await? else { bail!("A did not say that it checked its lock") };
        self.telling.say(&format!(
            "A is a process of its own (pid {}). Under its token it claims the account and reads {balance}. It makes sure \
             that the lock is still its own: yes, for {}. So it is about to write {}.",
            a.pid(),
            duration(Duration::from_millis(remaining_ms)),
            balance + 1
        ));
        Ok(a)
    }

    fn a_is_frozen(&mut self, a: &Holder) -> Result<Instant> {
        self.begin("A is frozen, between its check and its write");
        a.freeze()?;
        let frozen_at = Instant::now();
        self.telling.say("SIGSTOP: the process stands still, and does not know it. Its lock runs on.");
        Ok(frozen_at)
    }

    async fn b_waits(&mut self) -> Result<Guard> {
        match self.redlock.try_acquire(&self.stage.resource).await {
            Err(AcquireError::Contended(report)) => {
                let (holder, remaining) = holder_of(&report);
                self.telling.say(&format!(
                    "B asks for the lock and is told: {}, {holder} holds it for another {remaining}. So B waits.",
                    self.telling.bad("contended")
                ));
            }
            // A busy machine took so long that A's lock has run out already.
            Ok(guard) => return Ok(guard),
            Err(error) if error.is_worth_retrying() => {}
            Err(error) => return Err(error.into()),
        }
        let began = Instant::now();
        let guard = self.redlock.acquire(&self.stage.resource).await?;
        self.telling.say(&format!("After {} A's lock has run out on the nodes.", duration(began.elapsed())));
        Ok(guard)
    }

    async fn b_writes(&mut self, guard: Guard) -> Result<()> {
        self.begin("B is granted the lock, and writes");
        self.note(GrantFacts::of(Who::B, &guard, TTL))?;
        let before = self.balance;
        self.deposit(&guard).await?;
        self.telling.say(&format!(
            "B claims the account under its greater token, reads {before}, writes {}, and releases the lock.",
            self.balance
        ));
        guard.release().await;
        Ok(())
    }

    async fn a_writes_late(&mut self, a: &mut Holder, frozen_at: Instant) -> Result<()> {
        self.begin("A wakes up, still believes, writes, and is refused");
        let frozen_for = frozen_at.elapsed();
        a.thaw()?;
        self.telling.say(&format!(
            "SIGCONT after {}: A goes on where it stood. It has checked its lock, so it writes {}.",
            duration(frozen_for),
            OPENING_BALANCE + 1
        ));
        match a.word().await? {
            Word::Refused { presented, highest, said, remaining_ms } => {
                self.facts.stale_write = Some("refused");
                self.facts.refusal = Some(Refusal { presented, highest });
                self.telling.say(&format!("The database answers \"{}\".", self.telling.bad(&said)));
                ensure!(remaining_ms == 0, "A was refused although its lock had {remaining_ms} ms left");
            }
            Word::Applied => {
                self.facts.stale_write = Some("applied");
                bail!("the database applied a stale write");
            }
            other => bail!("A said {other:?} in place of what became of its write"),
        }
        let balance = self.stage.accounts.balance().await?;
        ensure!(balance == self.balance, "the balance is {balance} in place of {}", self.balance);
        self.telling.say(&format!(
            "The balance is still {}. Without the fence it would be {}, and B's deposit would be lost.",
            self.telling.good(&balance.to_string()),
            OPENING_BALANCE + 1
        ));
        Ok(())
    }

    async fn locking_goes_on_without(&mut self, minority: usize) -> Result<()> {
        for _ in 0..minority {
            self.kill_last().await?;
        }
        let who = match minority {
            1 => "One node is".to_owned(),
            _ => capitalized(&in_words(minority)) + " nodes are",
        };
        let title = who + " killed, and locking goes on";
        self.begin(&title);
        self.telling.say(self.stage.nodes.manner_of_killing());
        let guard = self.redlock.acquire(&self.stage.resource).await?;
        self.note(GrantFacts::of(Who::B, &guard, TTL))?;
        self.facts.outages.insert(minority, "granted");
        self.deposit(&guard).await?;
        guard.release().await;
        self.telling.say(&format!("B writes {}. A dead minority is not waited for.", self.balance));
        Ok(())
    }

    async fn no_quorum_is_left(&mut self) -> Result<()> {
        self.kill_last().await?;
        self.begin("One more is killed, and nobody can lock");
        let began = Instant::now();
        let error = match self.redlock.try_acquire(&self.stage.resource).await {
            Ok(_) => bail!("the lock was granted without a quorum"),
            Err(error) => error,
        };
        let took = began.elapsed();
        let down = self.down();
        self.facts.outages.insert(down.len(), error.class());
        let AcquireError::Unavailable(report) = &error else {
            return Err(error).context("this is an outage, and was taken for something else");
        };
        self.telling.say(&format!(
            "B asks, and is told within {}: {}, no quorum of nodes answered. Not \"contended\": waiting for a holder \
             would not help. The error names the nodes to mend:",
            duration(took),
            self.telling.bad("unavailable")
        ));
        let named = self.name_failed(report);
        self.facts.nodes_named.clone_from(&named);
        ensure!(named == down, "the error names {named:?} in place of {down:?}");
        Ok(())
    }

    async fn the_nodes_come_back(&mut self) -> Result<()> {
        for node in 0..self.alive.len() {
            if !self.alive[node] {
                self.stage.nodes.bring_back(node).await?;
                self.alive[node] = true;
            }
        }
        self.begin("The nodes come back, and locking works as before");
        self.telling.say(self.stage.nodes.manner_of_return());
        let (guard, tries) = self.lock_on_all().await?;
        self.facts.with_all_nodes_back = Some("granted");
        self.note(GrantFacts::of(Who::B, &guard, TTL))?;
        self.deposit(&guard).await?;
        guard.release().await;
        let all = in_words(self.alive.len());
        let at_once = if tries == 1 { "At once" } else { "Soon" };
        self.telling.say(&format!("{at_once} all {all} hold the lock again. B writes {}.", self.balance));
        Ok(())
    }

    async fn nothing_is_left(&mut self) -> Result<()> {
        self.title = "nothing is left behind".into();
        // What goes on in the background: releases on nodes that were not waited for.
        if tokio::time::timeout(WAIT, self.redlock.settled()).await.is_err() {
            bail!("after {WAIT:?} not everything is released");
        }
        let keys = self.stage.nodes.lock_keys(&self.stage.resource).await?;
        self.facts.keys_left = Some(keys);
        ensure!(keys == 0, "{keys} lock keys are left on the nodes");

        let balance = self.stage.accounts.balance().await?;
        self.facts.balance = Some(balance);
        ensure!(balance == self.balance, "the balance is {balance} in place of {}", self.balance);
        let (fence, last) = (self.stage.accounts.fence().await?, self.last_token());
        ensure!(Some(fence) == last, "the account's fence is at {fence}, the last grant's token is {last:?}");
        Ok(())
    }

    fn begin(&mut self, title: &str) {
        self.step += 1;
        self.title = title.to_owned();
        self.telling.step(self.step, title, &self.alive);
    }

    /// Checks a grant, tells it, and keeps it for the facts.
    fn note(&mut self, grant: GrantFacts) -> Result<()> {
        let last = self.last_token();
        // What arrived together with the deciding vote is counted with it.
        let (votes, nodes) = (grant.votes, self.alive.len());
        let good = self.telling.good(&votes.to_string());
        let elapsed = duration(Duration::from_secs_f64(grant.elapsed_ms / 1e3));
        let decided = if votes < nodes {
            format!("Decided by the first {good} of {nodes} votes, in {elapsed}; nobody waits for the rest.")
        } else {
            format!("Decided by all {good} votes, in {elapsed}.")
        };
        self.telling.say(&format!(
            "{decided} Token {}, ttl {}, valid for {}.",
            self.telling.token(grant.token),
            setting(Duration::from_millis(grant.ttl_ms)),
            duration(Duration::from_millis(grant.validity_ms)),
        ));
        ensure!(last < Some(grant.token), "the token {} is not greater than {last:?}", grant.token);
        ensure!(self.quorum() <= grant.votes, "granted by {} nodes, which is no quorum", grant.votes);
        self.facts.grants.push(grant);
        Ok(())
    }

    fn last_token(&self) -> Option<i64> {
        self.facts.grants.last().map(|grant| grant.token)
    }

    fn quorum(&self) -> usize {
        self.alive.len() / 2 + 1
    }

    /// Claims the account, checks what is on it, and adds to it.
    async fn deposit(&mut self, guard: &Guard) -> Result<()> {
        let account = self.stage.accounts.claim(guard.grant()).await?;
        let balance = account.balance();
        ensure!(balance == self.balance, "B read {balance} in place of {}", self.balance);
        account.write(balance + DEPOSIT).await?;
        self.balance += DEPOSIT;
        Ok(())
    }

    /// Kills the last node that is alive.
    async fn kill_last(&mut self) -> Result<()> {
        let last = self.alive.iter().rposition(|alive| *alive).context("a node that is alive")?;
        self.stage.nodes.kill(last).await?;
        self.alive[last] = false;
        Ok(())
    }

    fn down(&self) -> Vec<String> {
        let nodes = self.stage.nodes.labels().iter().zip(&self.alive);
        nodes.filter(|(_, alive)| !**alive).map(|(label, _)| label.clone()).collect()
    }

    /// Tells which nodes failed, and why; gives their labels.
    fn name_failed(&self, report: &Report) -> Vec<String> {
        let mut named = Vec::new();
        for (node, label) in report.nodes.iter().zip(self.stage.nodes.labels()) {
            if let NodeOutcome::Failed(error) = &node.outcome {
                let cause = error.source().map(|cause| format!(": {cause}")).unwrap_or_default();
                // What a relay says names the relay, which nobody knows.
                self.telling.item(label, &format!("{error}{cause}").replace(&*node.node, label));
                named.push(label.clone());
            }
        }
        named
    }

    /// Locks until all nodes hold the lock, which those that have just come back may not do at the first try.
    async fn lock_on_all(&self) -> Result<(Guard, usize)> {
        let began = Instant::now();
        let mut tries = 0;
        loop {
            tries += 1;
            let guard = self.redlock.acquire(&self.stage.resource).await?;
            let held = self.stage.nodes.held(&self.stage.resource).await?;
            if held == self.alive.len() {
                return Ok((guard, tries));
            }
            guard.release().await;
            ensure!(began.elapsed() < WAIT, "after {WAIT:?} only {held} of {} nodes hold the lock", self.alive.len());
            tokio::time::sleep(PAUSE).await;
        }
    }
}

/// Who holds the lock, and for how long, as far as the nodes say.
fn holder_of(report: &Report) -> (String, String) {
    let held = report.held().next().map(|(_, held)| held);
    let holder = match held.map(|held| &held.holder) {
        Some(LockHolder::Owner(fingerprint)) => format!("owner {fingerprint}"),
        _ => "somebody".to_owned(),
    };
    let remaining = match held.map(|held| held.remaining) {
        Some(Remaining::For(remaining)) => duration(remaining),
        _ => "unknown time".to_owned(),
    };
    (holder, remaining)
}

fn capitalized(word: &str) -> String {
    let mut characters = word.chars();
    characters.next().map(|first| first.to_uppercase().chain(characters).collect()).unwrap_or_default()
}

/// A name that no other run has.
fn random_name() -> String {
    let mut bytes = [0; 4];
    OsRandomness.fill(&mut bytes);
    format!("{:08x}", u32::from_be_bytes(bytes))
}
