//! Who takes part: each with a resource of its own, so that nobody stands in anybody's way.

use std::fmt;

use redlock_backends::RedisNode;
use redlock_core::{Redlock, ReleaseOutcome};

use super::LoadError;
use super::fan_out::{Commands, FanOut};
use super::stage::Stage;

/// The name of a contestant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Who {
    /// Our lock on five healthy servers.
    Redlock,
    /// Our lock while one server is frozen and one killed.
    RedlockTwoDown,
    /// A fan-out of our own scripts without the algorithm: the floor.
    Scripts,
    /// A fan-out of `SET NX PX` and compare-and-delete.
    Plain,
    /// The same while one server is frozen and one killed.
    PlainTwoDown,
    /// Our lock on a single server.
    RedlockSingle,
    /// `SET NX PX` and compare-and-delete on a single server.
    PlainSingle,
}

impl Who {
    /// All of them, in the order of the report.
    pub const ALL: [Self; 7] = [
        Self::Redlock,
        Self::RedlockTwoDown,
        Self::Scripts,
        Self::Plain,
        Self::PlainTwoDown,
        Self::RedlockSingle,
        Self::PlainSingle,
    ];

    /// A short name, for JSON and the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Redlock => "redlock",
            Self::RedlockTwoDown => "redlock-two-down",
            Self::Scripts => "scripts",
            Self::Plain => "plain",
            Self::PlainTwoDown => "plain-two-down",
            Self::RedlockSingle => "redlock-single",
            Self::PlainSingle => "plain-single",
        }
    }

    /// The same client where nothing is wrong, for one that has to cope with faults.
    #[must_use]
    pub const fn when_healthy(self) -> Option<Self> {
        match self {
            Self::RedlockTwoDown => Some(Self::Redlock),
            Self::PlainTwoDown => Some(Self::Plain),
            _ => None,
        }
    }
}

impl fmt::Display for Who {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Redlock => "redlock, 5 healthy",
            Self::RedlockTwoDown => "redlock, 1 frozen and 1 killed",
            Self::Scripts => "same scripts, first 3 of 5 (floor)",
            Self::Plain => "SET NX PX, first 3 of 5",
            Self::PlainTwoDown => "SET NX PX, 1 frozen and 1 killed",
            Self::RedlockSingle => "redlock, single server",
            Self::PlainSingle => "SET NX PX, single server",
        })
    }
}

/// A client that is ready to lock and unlock.
#[derive(Debug)]
pub(super) struct Contestant {
    who: Who,
    client: Client,
}

#[derive(Debug)]
enum Client {
    Ours { redlock: Redlock, resource: String },
    Raw(FanOut),
}

/// Connects everybody, while all servers are healthy.
pub(super) async fn all(stage: &Stage) -> Result<Vec<Contestant>, LoadError> {
    let mut contestants = Vec::with_capacity(Who::ALL.len());
    for who in Who::ALL {
        contestants.push(Contestant { who, client: connect(who, stage).await? });
    }
    Ok(contestants)
}

async fn connect(who: Who, stage: &Stage) -> Result<Client, LoadError> {
    let (healthy, damaged) = (stage.healthy.urls(), stage.damaged.urls());
    let key = format!("lock:load/{}", who.name());
    Ok(match who {
        Who::Redlock => ours(who, &healthy).await?,
        Who::RedlockTwoDown => ours(who, &damaged).await?,
        Who::RedlockSingle => ours(who, &healthy[..1]).await?,
        Who::Scripts => Client::Raw(FanOut::connect(&healthy, Commands::OurScripts, &key).await?),
        Who::Plain => Client::Raw(FanOut::connect(&healthy, Commands::Plain, &key).await?),
        Who::PlainTwoDown => Client::Raw(FanOut::connect(&damaged, Commands::Plain, &key).await?),
        Who::PlainSingle => Client::Raw(FanOut::connect(&healthy[..1], Commands::Plain, &key).await?),
    })
}

/// Our client as anybody would set it up, with every default.
async fn ours(who: Who, urls: &[String]) -> Result<Client, LoadError> {
    let nodes = RedisNode::connect_all(urls.iter().map(String::as_str)).await?;
    let redlock = Redlock::builder().nodes(nodes).build()?;
    Ok(Client::Ours { redlock, resource: format!("load/{}", who.name()) })
}

impl Contestant {
    pub(super) fn who(&self) -> Who {
        self.who
    }

    /// Locks and unlocks on a majority, or says in a word why that did not work.
    pub(super) async fn round(&mut self) -> Result<(), &'static str> {
        match &mut self.client {
            Client::Ours { redlock, resource } => {
                let guard = redlock.try_acquire(resource.as_str()).await.map_err(|error| error.class())?;
                match guard.release().await.outcome {
                    ReleaseOutcome::Everywhere | ReleaseOutcome::Quorum => Ok(()),
                    outcome => Err(outcome.as_str()),
                }
            }
            Client::Raw(fan_out) => fan_out.round().await,
        }
    }

    /// Ends what would otherwise go on in somebody else's turn. Ours has little: it leaves a silent server alone.
    pub(super) async fn settle(&mut self) {
        match &mut self.client {
            Client::Ours { .. } => {}
            Client::Raw(fan_out) => fan_out.settle().await,
        }
    }
}
