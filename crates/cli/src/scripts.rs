//! `redlock acquire`, `extend` and `release`: a lock that outlives the call that took it, for scripts.
//!
//! Between two calls nobody keeps the lock alive and nobody hears of its loss: the script has to come back in time, and the
//! fence is what protects its writes if it does not. `redlock run` is better wherever it fits.
//!
//! The owner is the right to the lock. It is printed once, for the script, or written into a file that nobody else may read;
//! later calls take it from that file or from the environment, never from their arguments.
//!
//! Extending and releasing ask the nodes by owner. A quorum that still holds a lock for its owner has held it all the time, as
//! nothing brings a lock back that is gone; so no memory of the acquiring call is needed.

use crate::exit::{Exit, Failure, NodeSaid, with_causes};
use crate::lock::{self, Taken};
use crate::options::{AcquireOptions, Common, ExtendOptions, HolderOptions};
use crate::output::Output;
use crate::quorum;
use crate::settings::Settings;
use crate::signals::Signals;
use crate::table::time;
use futures_util::future::join_all;
use redlock_core::tally::quorum_of;
use redlock_core::validity::{Drift, whole_validity};
use redlock_core::{
    Clock as _, Extension, IntoResources as _, LockNode, NodeError, Owner, Ownership, Releasing, Resource, Resources,
    SystemClock, Ttl,
};
use serde::Serialize;
use std::fs::File;
use std::io::Write as _;
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// The longest text that is taken for an owner.
const OWNER_LEN_MAX: usize = 256;

/// The most that a node may take unless it is set: as in the library.
const NODE_TIMEOUT: Duration = Duration::from_millis(50);

#[derive(Serialize)]
struct Acquired<'a> {
    resources: Vec<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    owner: Option<&'a str>,
    token: i64,
    validity_ms: u64,
    /// The end of the validity by this machine's calendar, in seconds since 1970, rounded down.
    deadline: u64,
}

#[derive(Serialize)]
struct Extended {
    validity_ms: u64,
    deadline: u64,
    nodes: usize,
}

#[derive(Serialize)]
struct Released {
    released: usize,
    nodes: Vec<NodeSaid>,
}

/// Takes a lock and leaves it there.
///
/// # Errors
/// Why it was not granted, or could not be told; then it is given back.
///
/// # Cancel safety
/// Not to be dropped: the lock might stay until its ttl.
pub async fn acquire(options: AcquireOptions, common: &Common, output: &Output) -> Result<u8, Failure> {
    let settings = Settings::gather(common)?;
    // Before the lock: one whose owner nobody knows would be of no use.
    let file = options.owner_file.as_deref().map(create).transpose()?;
    let mut signals = Signals::listen()?;
    let locked = match lock::take(&options.lock, &settings, &mut signals).await? {
        Taken::Locked(locked) => *locked,
        Taken::Interrupted(code) => return Ok(code),
    };
    // Slow nodes are to hold it as well.
    lock::settle(&locked.redlock, locked.nodes_took).await;
    let guard = locked.guard;
    let told = lock::calendar_in(guard.remaining()).and_then(|deadline| {
        let owner = guard.owner().expose();
        if let Some((mut file, path)) = file {
            let written = empty(&file).and_then(|()| file.write_all(format!("{owner}\n").as_bytes()));
            written.map_err(|error| {
                Failure::caused(Exit::Output, &format!("{} was not written", path.display()), &error)
            })?;
        }
        let acquired = Acquired {
            resources: guard.resources().iter().map(Resource::name).collect(),
            owner: options.owner_file.is_none().then_some(owner),
            token: guard.token().get(),
            validity_ms: as_millis(guard.remaining()),
            deadline,
        };
        output.result(&acquired, || for_shells(&acquired))
    });
    match told {
        Ok(()) => {
            // What stays behind is the script's from now on.
            std::mem::forget(guard);
            Ok(0)
        }
        Err(failure) => {
            guard.release().await;
            lock::settle(&locked.redlock, locked.nodes_took).await;
            Err(failure)
        }
    }
}

/// Assignments that a shell evaluates.
fn for_shells(acquired: &Acquired<'_>) -> String {
    let quote = |text: &str| format!("'{}'", text.replace('\'', "'\\''"));
    let mut lines = Vec::new();
    if let Some(owner) = acquired.owner {
        lines.push(format!("export REDLOCK_OWNER={owner}"));
    }
    lines.push(format!("export REDLOCK_FENCING_TOKEN={}", acquired.token));
    lines.push(format!("export REDLOCK_RESOURCE={}", quote(&acquired.resources.join("\n"))));
    lines.push(format!("export REDLOCK_DEADLINE={}", acquired.deadline));
    lines.join("\n")
}

/// Sets the remaining time of a lock that an earlier call has taken.
///
/// # Errors
/// [`Exit::Lost`] if no quorum can hold it for this owner any more, [`Exit::Unavailable`] if too few nodes answered; then
/// what was valid still is.
///
/// # Cancel safety
/// Some nodes may have been extended.
pub async fn extend(options: ExtendOptions, common: &Common, output: &Output) -> Result<u8, Failure> {
    let settings = Settings::gather(common)?;
    let ttl =
        Ttl::new(options.ttl.unwrap_or(settings.ttl)).map_err(|error| Failure::new(Exit::Usage, error.to_string()))?;
    let held = Held::find(&options.held, &settings).await?;
    let patience = settings.node_timeout.unwrap_or(NODE_TIMEOUT.min(ttl.as_duration() / 10));
    // From before the first request: a reply's delay shortens the validity.
    let started = SystemClock.now();
    let lease = ttl.as_duration().saturating_add(settings.lock_delay);
    let lease = Ttl::new(lease).map_err(|error| Failure::new(Exit::Misconfigured, error.to_string()))?;
    let answers = held.ask_all(patience, async |node, ownership| node.extend(ownership, lease).await).await;
    let elapsed = SystemClock.now().since(started);
    let validity = whole_validity(lease, Drift::default()).saturating_sub(settings.lock_delay).saturating_sub(elapsed);
    let extended = count(&answers, |answer| matches!(answer, Ok(Extension::Extended)));
    let gone = count(&answers, |answer| matches!(answer, Ok(Extension::Gone | Extension::NotOwner)));
    held.judge("extended", extended, gone, &answers, |extension| match extension {
        Extension::Extended => "extended",
        Extension::Gone => "free, so not ours any more",
        Extension::NotOwner => "held by somebody else",
    })?;
    if validity.is_zero() {
        return Err(Failure::new(
            Exit::Unavailable,
            "extended, but so late that nothing of the ttl is left; use a longer one",
        ));
    }
    let said = Extended { validity_ms: as_millis(validity), deadline: lock::calendar_in(validity)?, nodes: extended };
    output.result(&said, || format!("valid for {}, on {extended} of {} nodes", time(validity), answers.len()))?;
    Ok(0)
}

/// Gives back a lock that an earlier call has taken.
///
/// # Errors
/// [`Exit::Lost`] if it was not ours any more, [`Exit::Unavailable`] if too few nodes could be told; the rest ends with the
/// ttl.
///
/// # Cancel safety
/// Some nodes may have released.
pub async fn release(options: HolderOptions, common: &Common, output: &Output) -> Result<u8, Failure> {
    let settings = Settings::gather(common)?;
    let held = Held::find(&options, &settings).await?;
    // A slow node may take its time: what it does not release blocks others.
    let patience = settings.node_timeout.unwrap_or(NODE_TIMEOUT).max(crate::remote::PATIENCE);
    let answers = held.ask_all(patience, async |node, ownership| node.release(ownership).await).await;
    let released = count(&answers, |answer| matches!(answer, Ok(Releasing::Released | Releasing::PassedOn)));
    let gone = count(&answers, |answer| matches!(answer, Ok(Releasing::Gone | Releasing::NotOwner)));
    let words = |releasing| match releasing {
        Releasing::Released => "released",
        Releasing::PassedOn => "released, and the next in line was called",
        Releasing::Gone => "free, so not ours any more",
        Releasing::NotOwner => "held by somebody else",
    };
    held.judge("released", released, gone, &answers, words)?;
    let said = Released { released, nodes: held.said(&answers, words) };
    output.result(&said, || format!("released on {released} of {} nodes", answers.len()))?;
    Ok(0)
}

/// A lock that was taken by an earlier call, and the nodes to ask about it.
struct Held {
    nodes: Vec<Arc<dyn LockNode>>,
    ownership: Ownership,
}

type Answers<T> = Vec<Result<T, NodeError>>;

fn count<T>(answers: &[Result<T, NodeError>], is: impl Fn(&Result<T, NodeError>) -> bool) -> usize {
    answers.iter().filter(|answer| is(answer)).count()
}

impl Held {
    async fn find(options: &HolderOptions, settings: &Settings) -> Result<Self, Failure> {
        let resources: Resources = options
            .resources
            .as_slice()
            .into_resources()
            .map_err(|error| Failure::new(Exit::Usage, error.to_string()))?;
        let owner = owner(options)?;
        let nodes = quorum::open(settings)?;
        // For its checks: twins, even numbers, the prefix; and for the crash-recovery guard.
        let client = quorum::builder(settings, nodes.clone(), settings.ttl).build()?;
        let ownership = Ownership::new(crate::survey::prefix(settings)?, resources, owner);
        let ownership = match client.quarantine() {
            Some(quarantine) => ownership.guarded(quarantine),
            None => ownership,
        };
        quorum::warm_up(&nodes).await;
        Ok(Self { nodes, ownership })
    }

    #[expect(clippy::future_not_send, reason = "the command has one thread")]
    async fn ask_all<T>(
        &self,
        patience: Duration,
        ask: impl AsyncFn(&dyn LockNode, &Ownership) -> Result<T, NodeError>,
    ) -> Answers<T> {
        let asked = self.nodes.iter().map(async |node| {
            let answer = tokio::time::timeout(patience, ask(&**node, &self.ownership)).await;
            answer.unwrap_or(Err(NodeError::Timeout { after: patience }))
        });
        join_all(asked).await
    }

    /// Whether a quorum did it; or, if not, why not.
    fn judge<T: Copy>(
        &self,
        done: &str,
        by: usize,
        gone: usize,
        answers: &Answers<T>,
        words: impl Fn(T) -> &'static str,
    ) -> Result<(), Failure> {
        let (all, quorum) = (answers.len(), quorum_of(answers.len()));
        if quorum <= by {
            return Ok(());
        }
        let refused = count(answers, |answer| matches!(answer, Err(NodeError::Refused { .. })));
        let (exit, why) = if all - gone < quorum {
            (Exit::Lost, "the lock is not ours any more")
        } else if all - refused < quorum {
            (Exit::Misconfigured, "nodes refuse because of how they are set up; run `redlock doctor`")
        } else {
            (Exit::Unavailable, "too few nodes answered; what they held for us they still hold, until the ttl is over")
        };
        let message = format!("{done} on {by} of {all} nodes, {quorum} needed: {why}");
        Err(Failure { exit, message, nodes: self.said(answers, words) })
    }

    fn said<T: Copy>(&self, answers: &Answers<T>, words: impl Fn(T) -> &'static str) -> Vec<NodeSaid> {
        let said = |(node, answer): (&Arc<dyn LockNode>, &Result<T, NodeError>)| NodeSaid {
            node: node.name().to_owned(),
            said: answer.as_ref().map_or_else(|error| with_causes(error), |answer| words(*answer).to_owned()),
        };
        self.nodes.iter().zip(answers).map(said).collect()
    }
}

/// The owner, from the file that was named or from the environment.
fn owner(options: &HolderOptions) -> Result<Owner, Failure> {
    let (text, whence) = match &options.owner_file {
        Some(file) => {
            let text = std::fs::read_to_string(file).map_err(|error| {
                Failure::caused(Exit::Output, &format!("{} cannot be read", file.display()), &error)
            })?;
            (text, file.display().to_string())
        }
        None => (std::env::var("REDLOCK_OWNER").unwrap_or_default(), "REDLOCK_OWNER".to_owned()),
    };
    let text = text.trim();
    if text.is_empty() && options.owner_file.is_none() {
        let message = "whose lock? give --owner-file, or set REDLOCK_OWNER to what `redlock acquire` has printed";
        return Err(Failure::new(Exit::Usage, message));
    }
    let is_owner =
        |text: &str| !text.is_empty() && text.len() <= OWNER_LEN_MAX && text.chars().all(|c| c.is_ascii_graphic());
    if is_owner(text) {
        Ok(Owner::assume(text))
    } else {
        Err(Failure::new(Exit::Usage, format!("{whence} holds no owner as `redlock acquire` prints it")))
    }
}

/// A file that nobody else may read, also if it was there before. What is in it stays until there is a new owner: it may be the
/// one of the lock that we are refused for.
fn create(path: &Path) -> Result<(File, &Path), Failure> {
    let failed =
        |error: std::io::Error| Failure::caused(Exit::Output, &format!("{} cannot be written", path.display()), &error);
    let file = File::options().write(true).create(true).truncate(false).mode(0o600).open(path).map_err(failed)?;
    file.set_permissions(std::fs::Permissions::from_mode(0o600)).map_err(failed)?;
    Ok((file, path))
}

/// Takes out what is in a file; a pipe has nothing to take out.
fn empty(file: &File) -> std::io::Result<()> {
    if file.metadata()?.is_file() { file.set_len(0) } else { Ok(()) }
}

fn as_millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
