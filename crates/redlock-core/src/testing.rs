//! What the crate's own unit tests share: a clock that is moved by hand, and nodes that answer by script.

use crate::clock::{Clock, Moment};
use crate::node::{Acquisition, Extension, LockNode, NodeError, Raising, Releasing};
use crate::owner::Ownership;
use crate::resource::Ttl;
use async_trait::async_trait;
use std::sync::Mutex;
use std::time::Duration;

#[derive(Debug, Default)]
pub(crate) struct ManualClock(Mutex<Duration>);

impl ManualClock {
    pub(crate) fn advance(&self, by: Duration) {
        *self.0.lock().unwrap() += by;
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Moment {
        Moment::from_origin(*self.0.lock().unwrap())
    }
}

/// A node for tests in which nobody is asked anything.
#[derive(Debug)]
pub(crate) struct NeverAsked;

#[async_trait]
impl LockNode for NeverAsked {
    fn name(&self) -> &str {
        "never asked"
    }

    async fn acquire(&self, _: &Ownership, _: Ttl, _: u64) -> Result<Acquisition, NodeError> {
        Err(NodeError::Unsupported)
    }

    async fn raise(&self, _: &Ownership, _: u64) -> Result<Raising, NodeError> {
        Err(NodeError::Unsupported)
    }

    async fn extend(&self, _: &Ownership, _: Ttl) -> Result<Extension, NodeError> {
        Err(NodeError::Unsupported)
    }

    async fn release(&self, _: &Ownership) -> Result<Releasing, NodeError> {
        Err(NodeError::Unsupported)
    }
}
