//! The servers of a run: seven that stay healthy, and what stands in for one of them to make trouble.
//!
//! ```text
//!   healthy   0 1 2 3 4 5 6      a quorum of n are the first n of them
//!   frozen      F                takes the place of one of five; stopped once everybody is connected
//!   killed          K            the same, killed
//!   slowed          proxy ─▶ 4   the same, 10 ms later in each direction
//! ```
//!
//! Contestants have resources of their own and are never busy at the same time, so they can share servers.

use std::time::Duration;

use super::LoadError;
use crate::proxy::{Lane, Mode};
use crate::{Proxy, RedisOptions, RedisServer, Servers};

/// The largest quorum that is measured.
pub(super) const NODES_MAX: usize = 7;

/// The number of servers of the usual quorum.
pub(super) const NODES: usize = 5;

/// How much later the slowed server's answers are.
pub(super) const SLOWED_BY: Duration = Duration::from_millis(20);

/// Which five servers a client uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    Frozen,
    Killed,
    Slowed,
    /// One frozen and one killed.
    TwoDown,
}

impl Fault {
    pub(super) const ALL: [Self; 4] = [Self::Frozen, Self::Killed, Self::Slowed, Self::TwoDown];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Frozen => "frozen",
            Self::Killed => "killed",
            Self::Slowed => "slowed",
            Self::TwoDown => "two-down",
        }
    }

    pub(super) const fn what(self) -> &'static str {
        match self {
            Self::Frozen => "1 frozen",
            Self::Killed => "1 killed",
            Self::Slowed => "1 slowed by 20 ms",
            Self::TwoDown => "1 frozen and 1 killed",
        }
    }
}

#[derive(Debug)]
pub(super) struct Stage {
    pub(super) healthy: Servers,
    frozen: RedisServer,
    killed: RedisServer,
    slowed: Proxy,
}

impl Stage {
    /// Starts all servers. All are healthy yet.
    pub(super) async fn set() -> Result<Self, LoadError> {
        let healthy = Servers::start(NODES_MAX).await?;
        let frozen = RedisServer::start(RedisOptions::new()).await?;
        let killed = RedisServer::start(RedisOptions::new()).await?;
        let slowed = Proxy::start(healthy[NODES - 1].address()).await?;
        Ok(Self { healthy, frozen, killed, slowed })
    }

    /// The first `n` healthy servers.
    pub(super) fn quorum(&self, n: usize) -> Vec<String> {
        self.healthy.urls()[..n].to_vec()
    }

    /// Five servers of which some will be in trouble, not in the same place of the list each time.
    pub(super) fn with(&self, fault: Fault) -> Vec<String> {
        let mut urls = self.quorum(NODES);
        let mut replace = |place: usize, url: String| urls[place] = url;
        match fault {
            Fault::Frozen => replace(1, self.frozen.url()),
            Fault::Killed => replace(3, self.killed.url()),
            Fault::Slowed => replace(NODES - 1, self.slowed.url()),
            Fault::TwoDown => {
                replace(1, self.frozen.url());
                replace(3, self.killed.url());
            }
        }
        urls
    }

    /// Lets the faults begin, once everybody is connected.
    pub(super) async fn make_trouble(&self) -> Result<(), LoadError> {
        self.frozen.freeze()?;
        self.killed.kill();
        let lane = Lane::Delay(SLOWED_BY / 2);
        self.slowed.set(Mode::Relay { requests: lane, replies: lane }).await?;
        Ok(())
    }
}
