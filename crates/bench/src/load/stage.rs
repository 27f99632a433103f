//! The servers of a comparison: five that stay healthy, and five of which two go down.

use super::LoadError;
use crate::Servers;

/// The number of servers of a quorum.
pub(super) const NODES: usize = 5;

/// In the second set this server is frozen…
const FROZEN: usize = 1;

/// …and this one killed.
const KILLED: usize = 3;

#[derive(Debug)]
pub(super) struct Stage {
    pub(super) healthy: Servers,
    pub(super) damaged: Servers,
}

impl Stage {
    /// Starts all servers. All are healthy yet.
    pub(super) async fn set() -> Result<Self, LoadError> {
        Ok(Self { healthy: Servers::start(NODES).await?, damaged: Servers::start(NODES).await? })
    }

    /// Freezes (SIGSTOP) one server of the second set and kills another, once everybody is connected to them.
    pub(super) fn take_two_down(&self) -> Result<(), LoadError> {
        self.damaged[FROZEN].freeze()?;
        self.damaged[KILLED].kill();
        Ok(())
    }
}
